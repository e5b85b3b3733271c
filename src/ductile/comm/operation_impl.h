#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "ductile/comm/engine.h"

namespace ductile::comm {

// Staging memory, kept for the next message of about that length.
class StagingPool {
 public:
  using Buffer = std::unique_ptr<std::byte[]>;
  struct Lease {
    Buffer memory;
    size_t capacity = 0;
  };
  Lease take(size_t bytes);
  void give(Lease lease);

 private:
  std::multimap<size_t, Buffer> free_;
  size_t held_ = 0;
};

// One step list under way. All of it belongs to the thread that drives the engine, but `state`,
// `error` (set before state leaves pending) and what never changes.
class Engine::Operation {
 public:
  Operation(std::shared_ptr<const StepOrder> order, Binding binding, std::string name, Tag tag_base,
            std::shared_ptr<const Members> members);

  enum class State : uint8_t { pending, done, failed };
  std::atomic<State> state{State::pending};
  std::exception_ptr error;
  const std::string name;
  const std::shared_ptr<const Members> members;  // of the engine that it belongs to
  uint64_t sequence = 0;
  std::chrono::steady_clock::time_point began;
  bool reported = false;
  bool quiet = false;          // never named as what a rank waits for
  std::vector<int> waits;      // what waits_for() was some time ago; under the engine's lock
  std::function<void()> task;  // instead of a plan
  std::shared_ptr<const Operation> after;  // it begins only once this has ended; of the driver

  Operation(std::function<void()> task, std::string name, std::shared_ptr<const Members> members)
      : name(std::move(name)),
        members(std::move(members)),
        began(std::chrono::steady_clock::now()),
        task(std::move(task)) {}

  // Does and issues what can be; false if that was nothing.
  bool advance(Transport& transport, const EngineOptions& options, StagingPool& pool);
  bool finished() const { return remaining_ == 0; }
  // Whose messages are missing, as the group numbers them: peers from whom nothing came yet, else
  // those of all open receives, else those of open sends.
  std::vector<int> waits_for() const;
  bool any_settled() const;
  // Does what is possible without the transport: an operation that has all its messages ends well.
  void conclude(StagingPool& pool);
  // Forgets the transfers; they must be settled, or their transport gone.
  void abandon();

 private:
  struct Open {  // a transfer under way
    int32_t step;
    StagingPool::Lease staging;
    size_t bytes = 0;
    bool is_send = false;
  };
  struct Window {
    std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> ready;
    std::vector<int32_t> open;  // steps
    size_t bytes = 0;
  };

  struct View {
    std::byte* data;
    size_t elements;
  };
  View view(const Chunks& chunks);
  size_t message_bytes(const Step& step, size_t elements) const;
  bool narrow_on_wire(const Step& step) const { return binding_.wire && !step.exact; }
  bool staged(const Step& step) const;
  // To whom or from whom a step's message goes, and under which tag, as the transport has it.
  int peer(const Step& step) const { return members->on_transport(step.peer); }
  Tag tag(int32_t step) const;

  void become_ready(int32_t step);
  void run_ready(Transport* transport, StagingPool& pool);
  void execute(const Step& step);
  void absorb(const Step& step, const std::byte* received);
  void finish(int32_t step);
  bool collect(StagingPool& pool);
  bool post_staged(Transport& transport, const EngineOptions& options, StagingPool& pool);
  bool post_sends(Transport& transport, const EngineOptions& options, StagingPool& pool);

  std::shared_ptr<const StepOrder> order_;
  Binding binding_;
  Tag tag_base_;
  std::vector<std::byte> scratch_;
  int64_t mirror_first_ = 0;   // element where the mirrored chunks begin
  int64_t mirror_length_ = 0;  // elements of all mirrored chunks
  std::vector<int32_t> waiting_;
  std::unique_ptr<Transfer[]> transfers_;
  std::vector<Open> open_;
  std::vector<int32_t> ready_;                     // steps other than sends to look at
  std::map<int, Window> sends_;                    // by rail
  std::vector<int32_t> staged_;                    // receives through staging, in list order
  std::set<int> heard_;                            // peers of whom something came
  size_t next_staged_ = 0;                         // first not posted
  std::map<int32_t, StagingPool::Lease> arrived_;  // messages that wait for earlier steps
  int num_staged_ = 0;                             // posted or arrived
  size_t staged_bytes_ = 0;
  int remaining_ = 0;
};

}  // namespace ductile::comm
