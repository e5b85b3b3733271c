#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/base/dtype.h"
#include "ductile/comm/reduction.h"
#include "ductile/comm/stall.h"
#include "ductile/comm/step_order.h"
#include "ductile/comm/transport.h"

namespace ductile::comm {

struct EngineOptions {
  // Sends of one operation open at a time on a rail, and receives that are held back in staging
  // memory: at least so many, and more up to so many bytes. Steps earlier in the list always may.
  int min_open_sends = 4;
  size_t open_send_bytes = 1 << 20;
  int min_open_receives = 8;
  size_t open_receive_bytes = 4 << 20;
  // How long a waiting thread polls before it sleeps.
  std::chrono::nanoseconds spin{5'000};
  // An operation as old as this is reported once, to a tenth of a second; 0: never.
  std::chrono::nanoseconds soft_deadline{0};
  OnStall on_stall;
  // Told once when the engine ends by an error, so that what lies beside it can end too. Any
  // thread, possibly under the engine's lock: must not call the engine.
  std::function<void(const std::string& reason)> on_failure;
};

// The memory that a step list runs on. All of it belongs to the caller and stays in place until the
// operation has ended.
struct Binding {
  // The blocks of `in`: one pointer for blocks that follow each other, or one per block.
  std::vector<const std::byte*> in;
  std::byte* out = nullptr;
  int64_t block_elements = 0;  // elements in each block
  DType type = DType::u8;
  Reduction reduction = Reduction::sum;
  std::optional<DType> wire;  // f16 or bf16: how f32 travels, unless a step is exact
};

// Who the ranks of an engine are to the transport.
struct Members {
  int rank = 0;
  int size = 1;
  std::vector<int> ranks;          // of the transport, by own number; empty: all, as they are
  std::vector<uint32_t> contexts;  // under which each wants this group's messages; empty: 0
  std::string name;                // " among ranks 4, 0 and 2"; empty for all

  int on_transport(int r) const { return ranks.empty() ? r : ranks[static_cast<size_t>(r)]; }
  std::vector<int> on_transport(std::vector<int> group) const;
  uint32_t context_of(int r) const {
    return contexts.empty() ? 0 : contexts[static_cast<size_t>(r)];
  }
};

// Runs step lists over one transport: any number at a time, in whatever order their steps become
// possible. Whoever waits for an operation does the work; while nobody waits, a thread of the
// engine does, which sleeps when there is nothing to do.
//
// A group is an engine for some of the ranks, over the same transport: it has its own numbers of
// operations, its own context in the tags of its messages, and its own lane of tasks; the
// transport, the work and the failure are common to the whole family.
//
// Failure: the first error of the transport ends every operation of the family. All handles and
// all later calls then throw that error, and no memory of the caller is touched any more.
class Engine {
 public:
  class Operation;
  struct Group;

  // A started operation. Copies refer to the same one; letting go of it does not end it. It may
  // outlive the engine. Any thread may wait.
  class Work {
   public:
    Work() = default;                                 // one that is done
    bool done() const;                                // ended, well or not
    void wait() const;                                // throws the error that ended it
    bool wait_for(std::chrono::nanoseconds d) const;  // false: still under way; throws as wait()

   private:
    friend class Engine;
    std::shared_ptr<Engine> engine_;
    std::shared_ptr<Operation> operation_;
  };

  static std::shared_ptr<Engine> make(std::unique_ptr<Transport> transport, EngineOptions options);
  ~Engine();

  // A group of the ranks `ranks` of this engine, this one among them, in their new order. All of
  // them call it with the same list, and as often as they are in a list together in the same order.
  // Once it returns, it does so for all of them. `note` of the first is given to all. Throws
  // invalid_argument for a list that makes no sense; conflict, which ends the family, where a
  // member came with another list.
  Group split(std::span<const int> ranks, const std::function<int32_t()>& note);

  int rank() const { return members_->rank; }
  int size() const { return members_->size; }
  const Members& members() const { return *members_; }

  // Starts a collective. All ranks start the same ones in the same order. `waits`: the caller is
  // going to wait right now, so nobody else need be woken. Throws the latched error.
  Work start(std::shared_ptr<const StepOrder> order, Binding binding, std::string name,
             bool waits = false);
  // One message; those with equal peer and tag arrive in order. tag < 2^24.
  Work send(int peer, uint32_t tag, std::span<const std::byte> bytes, bool waits = false,
            int rail = 0);
  Work receive(int peer, uint32_t tag, std::span<std::byte> bytes, bool waits = false,
               int rail = 0);
  // Something that blocks, such as a collective on shared memory. Tasks run one after the other in
  // the order of these calls, beside the engine's own work, on the thread that waits or one of the
  // engine's. What a task throws ends its handle and the engine.
  Work run(std::function<void()> task, std::string name, bool waits = false);

  // What the oldest operation waits for; nullopt when there is none. For heartbeats and reports.
  // That of the whole transport sees the operations of its groups, too.
  std::optional<Stall> oldest() const;

  // Latches a loss: every operation of the family ends with peer_lost. Any thread.
  void report_loss(PeerLoss loss);
  // Called before letting go. The last of a family ends what is under way with `unavailable` and
  // destroys the transport. Another that still has operations under way ends those of the whole
  // family so: they cannot be taken back from the transport.
  void close();

  struct Core;

 private:
  struct Lane;
  struct Meeting;
  Engine(std::shared_ptr<Core> core, std::shared_ptr<const Members> members);
  static std::shared_ptr<Engine> make(std::shared_ptr<Core> core,
                                      std::shared_ptr<const Members> members);
  Work submit(std::shared_ptr<Operation> op, bool waits);
  void check_list(std::span<const int> ranks) const;
  void check_message(int peer, uint32_t tag, int rail) const;
  void throw_if_ended() const;
  bool any_under_way() const;
  void end_lane(std::unique_lock<std::mutex>& lock);
  std::weak_ptr<Engine> self_;
  std::shared_ptr<const Members> members_;
  std::shared_ptr<Core> core_;
  std::unique_ptr<Lane> lane_;
};

using Work = Engine::Work;

struct Engine::Group {
  std::shared_ptr<Engine> engine;
  int32_t note = 0;  // of the first
};

}  // namespace ductile::comm
