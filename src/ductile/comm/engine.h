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
  // Limits on the open sends of one operation per rail, and on its receives into staging memory:
  // this many are always allowed, and more up to this many bytes. The earliest step of a list is
  // always allowed.
  int min_open_sends = 4;
  size_t open_send_bytes = 1 << 20;
  int min_open_receives = 8;
  size_t open_receive_bytes = 4 << 20;
  // How long a waiting thread polls before it sleeps.
  std::chrono::nanoseconds spin{5'000};
  // An operation that is older than this is reported once, within a tenth of a second; 0: never.
  std::chrono::nanoseconds soft_deadline{0};
  OnStall on_stall;
  // Called once when the engine ends by an error, so that its users can end too. It is called on
  // any thread, possibly under the engine's lock, and must not call the engine.
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

// The ranks of an engine, as the transport knows them.
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

// Runs step lists over one transport: any number at a time, with their steps in the order in which
// they become possible. A thread that waits for an operation does the work; while none waits, a
// thread of the engine does it, and sleeps when there is nothing to do.
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

  // A started operation. Copies refer to the same operation; destroying them does not end it. A
  // Work may outlive the engine. Any thread may wait.
  class Work {
   public:
    Work() = default;                                 // one that is done
    bool done() const;                                // ended, well or not
    void wait() const;                                // throws the error that ended it
    bool wait_for(std::chrono::nanoseconds d) const;  // false: still under way; throws as wait()
    // Waits until one of these has ended, well or not; false: all are under way after `d`. They are
    // messages or collectives of one engine.
    static bool wait_for_any(std::span<const Work> works, std::chrono::nanoseconds d);

   private:
    friend class Engine;
    std::shared_ptr<Engine> engine_;
    std::shared_ptr<Operation> operation_;
  };

  static std::shared_ptr<Engine> make(std::unique_ptr<Transport> transport, EngineOptions options);
  ~Engine();

  // Makes a group of some ranks of this engine, including this one, in their new order. All members
  // call it with the same list; members that are in several lists together call it for these in the
  // same order. If it returns on one member it returns on all. All members get the `note` of the
  // first. Throws invalid_argument for an impossible list, and conflict, which ends the family, if
  // a member passed another list.
  Group split(std::span<const int> ranks, const std::function<int32_t()>& note);

  int rank() const { return members_->rank; }
  int size() const { return members_->size; }
  const Members& members() const { return *members_; }

  // Starts a collective. All ranks start the same ones in the same order. `waits`: the caller will
  // wait at once, so no other thread need be woken. Throws the latched error.
  Work start(std::shared_ptr<const StepOrder> order, Binding binding, std::string name,
             bool waits = false);
  // One message; those with equal peer and tag arrive in order. tag < 2^24.
  Work send(int peer, uint32_t tag, std::span<const std::byte> bytes, bool waits = false,
            int rail = 0);
  Work receive(int peer, uint32_t tag, std::span<std::byte> bytes, bool waits = false,
               int rail = 0);
  // A message that goes out only once `first`, another message or collective of this family, has
  // ended. Its place among those with its peer and tag is that of this call.
  Work send_after(const Work& first, int peer, uint32_t tag, std::span<const std::byte> bytes);
  // Runs a blocking task, such as a collective on shared memory. Tasks run one after the other, in
  // the order of these calls, beside the engine's other work, on the thread that waits or on one of
  // the engine. If a task throws, the error ends its handle and the engine.
  Work run(std::function<void()> task, std::string name, bool waits = false);

  // The oldest operation and what it waits for; nullopt if there is none. For heartbeats and
  // reports. The engine of the whole transport includes the operations of its groups.
  std::optional<Stall> oldest() const;

  // Latches a loss: every operation of the family ends with peer_lost. Any thread.
  void report_loss(PeerLoss loss);
  // To be called before the engine is destroyed. The last engine of a family ends its operations
  // under way with `unavailable` and destroys the transport. Another engine that still has
  // operations under way ends those of the whole family in this way, because they cannot be taken
  // back from the transport.
  void close();

  struct Core;

 private:
  struct Lane;
  struct Meeting;
  Engine(std::shared_ptr<Core> core, std::shared_ptr<const Members> members);
  static std::shared_ptr<Engine> make(std::shared_ptr<Core> core,
                                      std::shared_ptr<const Members> members);
  Work submit(std::shared_ptr<Operation> op, bool waits);
  std::shared_ptr<Operation> new_send(int peer, uint32_t tag, std::span<const std::byte> bytes,
                                      int rail);
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
