#pragma once

#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/control/membership.h"
#include "ductile/control/testing/model_job.h"
#include "ductile/control/worker_protocol.h"

namespace ductile::control {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// The state after t steps is one word that depends on the order and the content of all of them.
inline uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
inline uint64_t leaf(uint64_t state, int64_t step, int64_t rank) {
  return scramble(state ^ scramble(static_cast<uint64_t>(step * 1000 + rank + 1)));
}

// The parts of the state.
constexpr int64_t kNumParts = 6;
constexpr uint32_t kAllParts = (1u << kNumParts) - 1;
constexpr size_t kAtLeader = ~size_t{0};  // and nowhere else, for a preemption
inline uint32_t bits_of(const Parts& parts) {
  uint32_t bits = 0;
  for (const PartRange& range : parts)
    for (int64_t p = range.begin; p < range.end; ++p) bits |= 1u << p;
  return bits;
}
inline Parts parts_of(uint32_t bits) {
  Parts parts;
  for (int64_t p = 0; p < kNumParts; ++p) {
    if ((bits >> p & 1) == 0) continue;
    if (!parts.empty() && parts.back().end == p)
      ++parts.back().end;
    else
      parts.push_back({p, p + 1});
  }
  return parts;
}

struct Violation {
  std::string text;
};

enum class Kind : uint8_t {
  to_controller,  // payload: an Event
  to_worker,      // payload: a WorkerEvent of `worker`, if `token` is 0 or still its activity
  data,           // payload: a DataMessage
  computed,       // the own ranks' gradients of a step
  stalled,        // a peer kept silent for too long
  born,           // a launched process begins
  beat,           // a worker's timer
  tick,           // the controller's timer
  fault,
  nap,      // the controller is stopped
  wake,     // and goes on
  heal,     // the end of all faults
  restart,  // of the controller
  push,     // towards the end: resume what is preempted
};

struct DataMessage {
  enum class What : uint8_t { contribution, vote, parts, gathered };
  What what = What::contribution;
  Generation generation = 0;
  int64_t step = 0;
  WorkerId from = 0;
  RankRange ranks;
  uint64_t state = 0;
  Generation stop = 0;
  size_t writer = 0;  // of a vote: 1 + the rank at which the parts are to be gathered, or kAtLeader
  uint32_t parts = 0;  // of the state, as bits
};

using Payload = std::variant<std::monostate, Event, WorkerEvent, DataMessage>;

struct Item {
  Time at;
  uint64_t order;
  Kind kind;
  WorkerId worker;
  uint64_t token;
  uint32_t payload;
  bool operator<(const Item& other) const {
    return at != other.at ? at > other.at : order > other.order;
  }
};

struct Process {
  explicit Process(WorkerOptions options) : machine(std::move(options)) {}

  WorkerProtocol machine;
  bool alive = true;
  Time asleep_until{0};
  Time refused_until{0};  // its host refuses whatever it needs
  Time beat_at{-1};
  uint64_t token = 1;  // changes with every new thing that the step loop is about
  std::shared_ptr<const GenerationPlan> plan;
  int64_t state_step = -1;
  uint64_t state = 0;
  int64_t step = -1;  // being run
  std::vector<bool> contributed, voted;
  std::vector<uint64_t> sums;
  Generation stop = 0;
  uint64_t reduction = 0;
  int64_t reduction_step = -1;
  bool restoring = false;
  std::vector<DataMessage> early;

  // Parts, as bits.
  uint32_t held = 0;  // of the state of state_step
  uint32_t next = 0;  // of the reduction, hence of the state after it
  uint32_t missing = 0, arrived = 0;
  bool fed = true;
  std::set<WorkerId> waits_for;
  size_t writer = 0;
  bool gathering = false;
  bool gathers_on_disk = false;
  uint32_t on_disk = 0;  // of the state, where each writes its own
  Restored applied;      // what is said once the parts are gathered
};

struct Cut {
  WorkerId from, to;  // 0 is the controller
  Time until;
};

class ModelJob {
 public:
  ModelJob(uint64_t seed, Mutation mutation, bool trace)
      : rng_(seed, 0x636f6e74),
        hosts_rng_(seed, 0x686f7374),
        ends_in_parts_(Rng(seed, 0x656e6473).below(2) == 0),
        mutation_(mutation),
        trace_(trace) {}

  ModelJobResult run();

 private:
  // ---- chance
  bool chance(double p) { return rng_.uniform() < static_cast<float>(p); }
  int64_t between(int64_t low, int64_t high) {
    return low + rng_.below(static_cast<uint32_t>(high - low + 1));
  }
  Time span(int64_t low_us, int64_t high_us) { return Time{between(low_us, high_us)}; }

  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    if (trace_) [[unlikely]]
      fmt::print(stderr, "{:9.3f} ms  {}\n", static_cast<double>(now_.count()) / 1000,
                 fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
    if (!condition) [[unlikely]]
      throw Violation{fmt::format(format, std::forward<Args>(args)...)};
  }

  void draw_scenario();
  void schedule(Time at, Kind kind, WorkerId worker = 0, uint64_t token = 0, Payload payload = {});
  void handle(Item& item);

  // ---- controller's host
  void feed_controller(const Event& event);
  void put_controller_to_sleep();
  void wake_controller();
  bool is_news(const Event& event);
  void check_failure();
  void carry_out(const Outcome& outcome);
  void carry_out(const Command& command);
  void on_plan(const GenerationPlan& plan);
  void publish(const PublishCheckpoint& command);
  int64_t newest_good() const;
  void crash_controller();
  void restart_controller();
  void to_controller_in(Time delay, Event event) {
    schedule(now_ + delay, Kind::to_controller, 0, 0, std::move(event));
  }

  // ---- workers
  Process* living(WorkerId id);
  void feed_worker(WorkerId id, Process& process, const WorkerEvent& event);
  void carry_out(WorkerId id, Process& process, WorkerCommand& command);
  void loop_event(WorkerId id, Process& process, Time delay, WorkerEvent event) {
    schedule(now_ + delay, Kind::to_worker, id, process.token, std::move(event));
  }
  void run_step(WorkerId id, Process& process, const RunStep& command);
  void restore_state(WorkerId id, Process& process, const Restore& command);
  void exchange_parts(WorkerId id, Process& process);
  void parts_arrived(WorkerId id, Process& process, const DataMessage& message);
  void after_apply(WorkerId id, Process& process, const Apply& command);
  void end_gathering(WorkerId id, Process& process);
  void end_in_parts(WorkerId id, Process& process);
  uint32_t parts_of(const GenerationPlan& plan, WorkerId id) const;
  void send_data(WorkerId from, WorkerId to, DataMessage message);
  void take_data(WorkerId id, Process& process, const DataMessage& message);
  void look_at_early(WorkerId id, Process& process);
  void close_connections(WorkerId id, Process& process);
  void kill(WorkerId id, bool confirmed, int64_t signal);
  void launch(const LaunchWorker& command);
  std::string choose_host(const LaunchWorker& command);
  bool any_alive() const;
  void be_born(WorkerId id);
  void beat(WorkerId id, Process& process);
  void look_at_record(WorkerId id, Process& process);
  void check_state(WorkerId id, const Process& process);
  void check_commit(WorkerId id, const Apply& command);
  void check_meeting(WorkerId id, const Process& process);

  // ---- network, faults
  bool cut(WorkerId from, WorkerId to);
  Time delay();
  void inject();
  WorkerId any_worker();

  Rng rng_;
  Rng hosts_rng_;  // of hosts, naps and the last save
  // No worker gets all parts at the end, or at a preemption: each writes its own, and the leader
  // may join them.
  bool ends_in_parts_;
  Mutation mutation_;
  bool trace_;
  ModelJobResult result_;

  // The scenario.
  int64_t virtual_ranks_ = 1, steps_ = 1;
  MembershipOptions options_;
  Time worker_lease_{0};
  Time step_time_{0}, data_deadline_{0}, load_time_{0}, faults_end_{0};
  double loss_ = 0, doubling_ = 0, slow_ = 0, slow_join_ = 0, launch_failure_ = 0, unconfirmed_ = 0,
         torn_outcome_ = 0;
  bool restarts_ = false, read_records_ = false;
  size_t copies_ = 1;  // of each part; as many as there may be workers: all hold all
  std::vector<std::string> hosts_;
  std::string sick_host_;  // no worker can begin there; empty: none
  std::vector<uint64_t> truth_;

  // The world.
  Time now_{0};
  uint64_t order_ = 0;
  std::priority_queue<Item> queue_;
  std::vector<Payload> payloads_;
  std::vector<uint32_t> free_payloads_;
  bool healed_ = false;
  std::vector<Cut> cuts_;
  Time disk_full_until_{0};
  Time hosts_away_until_{0};  // no host can be reached
  std::map<WorkerId, std::string> host_of_;
  Time nap_until_{0};                   // of the controller
  std::map<WorkerId, uint64_t> heard_;  // the newest report of each
  std::vector<Event> unheard_;          // during its nap
  std::optional<Membership> controller_;
  std::optional<Membership> stored_;  // what is on stable storage
  nlohmann::json record_;             // the same for workers that hear no controller
  Time tick_at_{-1};
  std::map<WorkerId, std::unique_ptr<Process>> processes_;
  std::map<std::pair<WorkerId, int64_t>, uint64_t> written_;
  std::map<int64_t, uint64_t> published_;
  std::set<int64_t> bad_;  // published, but no longer readable
  std::map<Generation, GenerationPlan> plans_;
  std::map<Generation, std::set<WorkerId>> met_;  // who was told to Restore
  int64_t max_committed_ = 0;  // the newest state that all members of a generation voted for
  int64_t max_begun_ = -1;     // the newest step begun
  int64_t faults_since_commit_ = 0;
  bool finished_ = false;
  bool failed_ = false;
};

}  // namespace ductile::control
