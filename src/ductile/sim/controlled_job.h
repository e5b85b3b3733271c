#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ductile/base/rng.h"
#include "ductile/control/membership.h"
#include "ductile/control/worker_protocol.h"

namespace ductile::sim {

// Faults of the messages between a controller and its workers; probabilities are from 0 to 1.
struct MessageFaults {
  double lost = 0, late = 0;
  double delay = 1;  // of a late message, at most, in seconds
};

struct ControlStats {
  int64_t changes = 0;      // completed starts, resizes, preemptions and losses
  int64_t generations = 0;  // that were formed
  int64_t steps = 0;        // that were committed during changes
  int64_t messages = 0, lost = 0, late = 0;
  double seconds = 0, slowest = 0;  // from a decision until it was carried out
};

// One simulated job under the real control plane: control::Membership and a control::WorkerProtocol
// for each device, exactly as a live job has them, in virtual time and with messages that may be
// lost or late. Only the changes are played, a few steps long; the hours in between, in which
// nothing happens, are left out. It checks that no step is applied twice or skipped, that no
// committed step is lost while a member survives, that a generation has each virtual rank exactly
// once, and that a preemption leaves no process but a checkpoint of the last step. Throws internal
// if one of these does not hold, or if a change is not completed within `kPatience`.
class ControlledJob {
 public:
  static constexpr double kPatience = 600;  // seconds of virtual time

  ControlledJob(std::string name, int32_t most_workers, uint64_t seed, ControlStats& stats);
  ~ControlledJob();

  // Starts, resizes, preempts (0) or resumes the job, and waits until this is done.
  void set_workers(int32_t count, const MessageFaults& faults);
  // The processes of this many devices die without a message; the others, if any, go on.
  void lose_workers(int32_t count, const MessageFaults& faults);

  int32_t workers() const { return workers_; }

 private:
  using Time = control::Time;
  struct Process;
  struct Step {  // of one generation: the progress of its members
    std::set<control::WorkerId> arrived, voted;
    control::Generation stop = 0;
  };
  struct ToWorker {
    control::WorkerId worker;
    uint64_t token;  // of the activity that it answers; 0: of any
    control::WorkerEvent event;
  };
  struct Beat {
    control::WorkerId worker;
  };
  struct Born {
    control::WorkerId worker;
  };
  struct Stalled {
    control::WorkerId worker;
    uint64_t token;
  };
  struct Item {
    Time at;
    uint64_t order;
    std::variant<control::Event, ToWorker, Beat, Born, Stalled> what;
    bool operator<(const Item& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  void settle(int32_t count);
  bool settled(int32_t count) const;
  void check(int32_t count) const;
  void play(const Item& item);
  template <class What>
  void schedule(Time at, What what) {
    queue_.push({at, order_++, std::move(what)});
  }
  bool message(Time& delay);  // false: it is lost
  void feed(const control::Event& event);
  void carry_out(const control::Command& command);
  void feed(control::WorkerId id, Process& process, const control::WorkerEvent& event);
  void carry_out(control::WorkerId id, Process& process, const control::WorkerCommand& command);
  void answer(control::WorkerId id, const Process& process, Time delay, control::WorkerEvent event);
  void see_plan(const control::GenerationPlan& plan);
  void restore_all(const control::GenerationPlan& plan);
  void step_of_all(control::Generation generation, int64_t step, const Step& state,
                   const control::GenerationPlan& plan);
  void die(control::WorkerId id, Process& process, int64_t code, int64_t signal);

  std::string name_;
  ControlStats& stats_;
  Rng rng_;
  MessageFaults faults_;
  int64_t virtual_ranks_;
  control::Membership controller_;
  Time now_{0};
  Time tick_at_{-1};
  uint64_t order_ = 0;
  std::priority_queue<Item> queue_;
  std::map<control::WorkerId, std::unique_ptr<Process>> processes_;
  std::map<std::pair<control::Generation, int64_t>, Step> steps_;
  std::map<control::Generation, control::GenerationPlan> plans_;
  std::map<control::Generation, std::set<control::WorkerId>> met_;
  int64_t committed_ = 0;  // the newest state that any worker had
  std::map<int64_t, control::Generation> applied_in_;
  int32_t workers_ = 0;
  int64_t steps_in_change_ = 0;
};

}  // namespace ductile::sim
