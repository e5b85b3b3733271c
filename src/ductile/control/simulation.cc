#include "ductile/control/simulation.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ductile/base/rng.h"
#include "ductile/control/membership.h"
#include "ductile/control/worker_protocol.h"

namespace ductile::control {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// The state after t steps is one word that depends on the order and the content of all of them.
uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
uint64_t leaf(uint64_t state, int64_t step, int64_t rank) {
  return scramble(state ^ scramble(static_cast<uint64_t>(step * 1000 + rank + 1)));
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
  heal,     // the end of all faults
  restart,  // of the controller
  push,     // towards the end: resume what is preempted
};

struct DataMessage {
  enum class What : uint8_t { contribution, vote, state };
  What what = What::contribution;
  Generation generation = 0;
  int64_t step = 0;
  WorkerId from = 0;
  RankRange ranks;
  uint64_t state = 0;
  Generation stop = 0;
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
};

struct Cut {
  WorkerId from, to;  // 0 is the controller
  Time until;
};

class Simulation {
 public:
  Simulation(uint64_t seed, Mutation mutation, bool trace)
      : rng_(seed, 0x636f6e74), mutation_(mutation), trace_(trace) {}

  SimulationResult run();

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
  void send_data(WorkerId from, WorkerId to, DataMessage message);
  void take_data(WorkerId id, Process& process, const DataMessage& message);
  void look_at_early(WorkerId id, Process& process);
  void close_connections(WorkerId id, Process& process);
  void kill(WorkerId id, bool confirmed, int64_t signal);
  void check_state(WorkerId id, const Process& process);
  void check_commit(WorkerId id, const Apply& command);

  // ---- network, faults
  bool cut(WorkerId from, WorkerId to);
  Time delay();
  void inject();
  WorkerId any_worker();

  Rng rng_;
  Mutation mutation_;
  bool trace_;
  SimulationResult result_;

  // The scenario.
  int64_t virtual_ranks_ = 1, steps_ = 1;
  MembershipOptions options_;
  Time worker_lease_{0};
  Time step_time_{0}, data_deadline_{0}, load_time_{0}, faults_end_{0};
  double loss_ = 0, doubling_ = 0, slow_ = 0, slow_join_ = 0, launch_failure_ = 0, unconfirmed_ = 0,
         torn_outcome_ = 0;
  bool restarts_ = false;
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
  std::optional<Membership> controller_;
  std::optional<Membership> stored_;  // what is on stable storage
  Time tick_at_{-1};
  std::map<WorkerId, std::unique_ptr<Process>> processes_;
  std::map<std::pair<WorkerId, int64_t>, uint64_t> written_;
  std::map<int64_t, uint64_t> published_;
  std::set<int64_t> bad_;  // published, but no longer readable
  std::map<Generation, GenerationPlan> plans_;
  int64_t max_committed_ = 0;  // the newest state that all members of a generation voted for
  int64_t max_begun_ = -1;     // the newest step begun
  int64_t faults_since_commit_ = 0;
  bool finished_ = false;
};

// ---- The scenario.

void Simulation::draw_scenario() {
  constexpr int64_t kRanks[] = {1, 2, 3, 4, 4, 6, 8};
  virtual_ranks_ = kRanks[rng_.below(7)];
  steps_ = between(4, 24);
  options_.virtual_ranks = virtual_ranks_;
  options_.max_workers = std::min<int64_t>(virtual_ranks_, 4);
  options_.min_workers = chance(0.2) ? std::min<int64_t>(2, options_.max_workers) : 1;
  options_.heartbeat_deadline = milliseconds(70);
  options_.lease = milliseconds(150);
  options_.clock_drift = milliseconds(5);
  options_.reattach = milliseconds(100);
  options_.start_deadline = milliseconds(300);
  options_.join_window = milliseconds(30);
  options_.pause_deadline = milliseconds(60);
  options_.stop_deadline = milliseconds(30);
  options_.preempt_deadline = milliseconds(150);
  options_.backoff_base = milliseconds(1);
  options_.backoff_max = milliseconds(60);
  options_.max_failures = 1000;
  options_.checkpoint_retry = milliseconds(20);
  options_.resend = milliseconds(15);
  if (chance(0.4)) options_.checkpoint_steps = between(1, 4);
  if (chance(0.3)) options_.checkpoint_every = span(10'000, 60'000);
  worker_lease_ = mutation_ == Mutation::no_lease ? std::chrono::hours(1) : options_.lease;
  step_time_ = span(2'000, 12'000);
  data_deadline_ = span(40'000, 90'000);
  load_time_ = span(2'000, 30'000);
  if (chance(0.3)) loss_ = 0.02;
  if (chance(0.3)) doubling_ = 0.1;
  if (chance(0.4)) slow_ = 0.05;
  if (chance(0.2)) slow_join_ = 0.3;
  if (chance(0.2)) launch_failure_ = 0.3;
  if (chance(0.2)) unconfirmed_ = 0.7;
  restarts_ = chance(0.3) || mutation_ == Mutation::saves_are_lost;
  if (restarts_) torn_outcome_ = 0.03;
  faults_end_ = span(50'000, 500'000);

  truth_.push_back(scramble(static_cast<uint64_t>(virtual_ranks_)));
  for (int64_t t = 0; t < steps_; ++t) {
    uint64_t sum = truth_.back();
    for (int64_t v = 0; v < virtual_ranks_; ++v) sum = scramble(sum ^ leaf(truth_.back(), t, v));
    truth_.push_back(sum);
  }
}

void Simulation::schedule(Time at, Kind kind, WorkerId worker, uint64_t token, Payload payload) {
  uint32_t slot = 0;
  if (!std::holds_alternative<std::monostate>(payload)) {
    if (free_payloads_.empty()) {
      payloads_.emplace_back();
      free_payloads_.push_back(static_cast<uint32_t>(payloads_.size() - 1));
    }
    slot = free_payloads_.back();
    free_payloads_.pop_back();
    payloads_[slot] = std::move(payload);
  }
  queue_.push({at, ++order_, kind, worker, token, slot});
}

SimulationResult Simulation::run() {
  payloads_.emplace_back();  // slot 0: none
  draw_scenario();
  controller_.emplace(options_);
  if (restarts_) stored_ = controller_;
  const int64_t num_faults = between(0, 10);
  for (int64_t i = 0; i < num_faults; ++i)
    schedule(Time{between(0, faults_end_.count())}, Kind::fault);
  schedule(faults_end_, Kind::heal);
  try {
    feed_controller(StartJob{between(options_.min_workers, options_.max_workers)});
    // No fault lasts beyond faults_end_; what they left behind is bounded by the sum of deadlines.
    const Time limit = faults_end_ + std::chrono::seconds(4);
    while (!finished_) {
      if (queue_.empty() || queue_.top().at >= limit)
        throw Violation{fmt::format("no end {} ms after the faults stopped: {}",
                                    (now_ - faults_end_).count() / 1000,
                                    controller_ ? controller_->why(now_) : "no controller")};
      Item item = queue_.top();
      queue_.pop();
      now_ = item.at;
      ++result_.events;
      handle(item);
    }
  } catch (const Violation& violation) {
    result_.violation = violation.text;
  } catch (const std::exception& error) {
    result_.violation = fmt::format("threw: {}", error.what());
  }
  if (!result_.violation.empty()) say("VIOLATION {}", result_.violation);
  result_.seconds = std::chrono::duration<double>(now_).count();
  result_.generations = static_cast<int64_t>(plans_.size());
  return result_;
}

void Simulation::handle(Item& item) {
  Payload payload;
  if (item.payload != 0) {
    payload = std::move(payloads_[item.payload]);
    free_payloads_.push_back(item.payload);
  }
  Process* process = item.worker != 0 && item.kind != Kind::born ? living(item.worker) : nullptr;
  if (process != nullptr && process->asleep_until > now_) {
    schedule(process->asleep_until, item.kind, item.worker, item.token, std::move(payload));
    return;
  }
  switch (item.kind) {
    case Kind::to_controller:
      if (controller_) feed_controller(std::get<Event>(payload));
      break;
    case Kind::to_worker:
      if (process != nullptr && (item.token == 0 || item.token == process->token))
        feed_worker(item.worker, *process, std::get<WorkerEvent>(payload));
      break;
    case Kind::data:
      if (process != nullptr) take_data(item.worker, *process, std::get<DataMessage>(payload));
      break;
    case Kind::computed:
      if (process != nullptr && item.token == process->token) {
        DataMessage message;
        message.generation = process->plan->number;
        message.step = process->step;
        message.from = item.worker;
        message.ranks = process->plan->find(item.worker)->ranks;
        message.state = process->state;
        for (const Member& member : process->plan->members)
          send_data(item.worker, member.worker, message);
      }
      break;
    case Kind::stalled:
      if (process != nullptr && item.token == process->token) {
        PeerLost lost{process->plan->number, {}, "a peer kept silent"};
        const auto& have = process->machine.voted() ? process->voted : process->contributed;
        for (size_t i = 0; i < process->plan->members.size(); ++i)
          if (process->restoring
                  ? process->plan->members[i].worker == process->plan->find(item.worker)->feeder
                  : !have[i])
            lost.suspects.push_back(process->plan->members[i].worker);
        close_connections(item.worker, *process);
        feed_worker(item.worker, *process, lost);
      }
      break;
    case Kind::born: {
      if (processes_.count(item.worker) != 0 && !processes_[item.worker]->alive) break;
      WorkerOptions options;
      options.worker = item.worker;
      options.address = "w";
      options.heartbeat = milliseconds(30);
      options.lease = worker_lease_;
      auto& born = processes_[item.worker];
      born = std::make_unique<Process>(options);
      feed_worker(item.worker, *born, Beat{});
      Time load = load_time_ + span(0, 5'000);
      if (!healed_ && chance(slow_join_)) load += span(20'000, 400'000);
      schedule(now_ + load, Kind::to_worker, item.worker, 0, WorkerEvent{Loaded{}});
      break;
    }
    case Kind::beat:
      if (process != nullptr) {
        process->beat_at = Time{-1};
        feed_worker(item.worker, *process, Beat{});
      }
      break;
    case Kind::tick:
      if (controller_ && now_ >= tick_at_) {
        tick_at_ = Time{-1};
        feed_controller(Tick{});
      }
      break;
    case Kind::fault:
      inject();
      break;
    case Kind::heal:
      say("--- faults end");
      healed_ = true;
      cuts_.clear();
      loss_ = doubling_ = slow_ = slow_join_ = launch_failure_ = unconfirmed_ = torn_outcome_ = 0;
      disk_full_until_ = now_;
      if (!controller_) restart_controller();
      for (const auto& [id, p] : processes_)
        if (!p->alive) to_controller_in(span(0, 1'000), WorkerExited{id, 0, 9});
      schedule(now_, Kind::push);
      break;
    case Kind::restart:
      if (!controller_) restart_controller();
      break;
    case Kind::push:
      if (controller_ &&
          (controller_->phase() == Phase::preempted || controller_->phase() == Phase::preempting))
        feed_controller(ResumeJob{});
      schedule(now_ + milliseconds(200), Kind::push);
      break;
  }
}

// ---- The controller and its host.

void Simulation::feed_controller(const Event& event) {
  if (trace_ && !std::holds_alternative<Tick>(event))
    say("-> controller {}", to_json(event).dump());
  const Outcome outcome = controller_->apply(event, now_);
  carry_out(outcome);
}

void Simulation::carry_out(const Outcome& outcome) {
  if (restarts_ && mutation_ != Mutation::saves_are_lost && (outcome.must_save || chance(0.2)))
    stored_ = controller_;
  if (restarts_ && mutation_ == Mutation::saves_are_lost && (order_ < 10 || chance(0.5))) stored_ = controller_;
  size_t count = outcome.commands.size();
  const bool torn = outcome.must_save && chance(torn_outcome_);
  if (torn) count = rng_.below(static_cast<uint32_t>(count) + 1);
  for (size_t i = 0; i < count && controller_ && !finished_; ++i) carry_out(outcome.commands[i]);
  if (torn && controller_) crash_controller();
  if (!controller_) return;
  require(controller_->phase() != Phase::failed, "the job failed: {}", controller_->reason());
  const Time next = controller_->next_deadline();
  if (next != Time::max() && (tick_at_ < now_ || next < tick_at_)) {
    tick_at_ = std::max(next, now_ + microseconds(1));
    schedule(tick_at_, Kind::tick);
  }
}

void Simulation::carry_out(const Command& command) {
  if (trace_) {
    const auto* send = std::get_if<SendInstruction>(&command);
    if (send == nullptr || !std::holds_alternative<Ack>(send->instruction.what))
      say("controller: {}", to_json(command).dump());
  }
  if (const auto* launch = std::get_if<LaunchWorker>(&command)) {
    require(processes_.count(launch->worker) == 0, "worker id {} was given twice", launch->worker);
    if (chance(launch_failure_)) {
      if (chance(0.7)) to_controller_in(span(100, 3'000), LaunchFailed{launch->worker, "no room"});
    } else {
      schedule(now_ + span(500, 3'000), Kind::born, launch->worker);
    }
  } else if (const auto* kill_it = std::get_if<KillWorker>(&command)) {
    if (chance(unconfirmed_)) return;
    const auto found = processes_.find(kill_it->worker);
    if (found != processes_.end() && found->second->alive) {
      kill(kill_it->worker, true, 9);
    } else {
      if (found == processes_.end()) {  // not born yet, and now never
        processes_[kill_it->worker] = std::make_unique<Process>(WorkerOptions{});
        processes_[kill_it->worker]->alive = false;
      }
      to_controller_in(span(100, 1'000), WorkerExited{kill_it->worker, 0, 9});
    }
  } else if (const auto* send = std::get_if<SendInstruction>(&command)) {
    const Instruction& instruction = send->instruction;
    if (const auto* enter = std::get_if<Enter>(&instruction.what)) on_plan(*enter->plan);
    if (cut(0, instruction.worker) || chance(loss_)) return;
    schedule(now_ + delay(), Kind::to_worker, instruction.worker, 0,
             WorkerEvent{InstructionReceived{instruction}});
    if (chance(doubling_))
      schedule(now_ + delay() * 4, Kind::to_worker, instruction.worker, 0,
               WorkerEvent{InstructionReceived{instruction}});
  } else if (const auto* publication = std::get_if<PublishCheckpoint>(&command)) {
    publish(*publication);
  } else if (const auto* release = std::get_if<Release>(&command)) {
    for (const auto& [id, process] : processes_)
      require(!process->alive || process->machine.lease_until() < now_,
              "released while worker {} may still act", id);
    if (controller_->phase() == Phase::preempted) ++result_.preemptions;
    if (controller_->phase() != Phase::finished) return;
    require(!published_.empty() && published_.rbegin()->first == steps_,
            "finished without a checkpoint of the last step: {}", release->reason);
    finished_ = true;
  }
}

void Simulation::on_plan(const GenerationPlan& plan) {
  const auto known = plans_.find(plan.number);
  if (known != plans_.end()) {
    require(known->second == plan, "generation {} was formed twice, differently", plan.number);
    return;
  }
  require(plans_.empty() || plan.number > plans_.rbegin()->first,
          "generation {} was formed after {}", plan.number,
          plans_.empty() ? 0 : plans_.rbegin()->first);
  int64_t at = 0;
  bool from_state = false;
  for (const Member& member : plan.members) {
    require(member.ranks.begin == at, "generation {}: virtual rank {} has no host, or two",
            plan.number, at);
    at = member.ranks.end;
    from_state |= member.source == StateSource::keep || member.source == StateSource::apply_voted;
  }
  require(at == virtual_ranks_, "generation {}: virtual rank {} has no host", plan.number, at);
  if (from_state) {
    require(plan.start >= max_committed_, "generation {} starts at {}, but {} was committed",
            plan.number, plan.start, max_committed_);
    result_.redone += std::max<int64_t>(max_begun_ + 1 - plan.start, 0);
    // One fault costs one step at most. Only a second one, of the single survivor that held the
    // reduction of a step not committed yet, can cost that step, too.
    require(max_begun_ + 1 - plan.start <= std::max<int64_t>(1, faults_since_commit_),
            "generation {} starts at {}, {} was begun", plan.number, plan.start, max_begun_);
    max_begun_ = plan.start - 1;
  } else {
    if (!plans_.empty()) {
      ++result_.fallbacks;
      for (const Member& member : plans_.rbegin()->second.members) {
        const Process* process = living(member.worker);
        require(process == nullptr || process->machine.promised() >= plan.number ||
                    process->machine.lease_until() < now_ ||
                    (process->machine.generation() < plans_.rbegin()->first &&
                     process->machine.step() < 0),
                "generation {} starts without state while worker {} may go on", plan.number,
                member.worker);
      }
    }
    const int64_t newest = std::max<int64_t>(newest_good(), 0);
    require(plan.start == newest || bad_.count(plan.start) != 0,
            "generation {} starts at {}, the newest checkpoint is of {}", plan.number, plan.start,
            newest);
    max_committed_ = plan.start;
    max_begun_ = plan.start - 1;
  }
  plans_.emplace(plan.number, plan);
}

int64_t Simulation::newest_good() const {
  for (auto it = published_.rbegin(); it != published_.rend(); ++it)
    if (bad_.count(it->first) == 0) return it->first;
  return -1;
}

void Simulation::publish(const PublishCheckpoint& command) {
  const auto found = written_.find({command.worker, command.step});
  require(found != written_.end(), "worker {} never wrote a checkpoint of {}", command.worker,
          command.step);
  require(found->second == truth_[static_cast<size_t>(command.step)],
          "a checkpoint of {} with the wrong state", command.step);
  const bool again = published_.count(command.step) != 0 && bad_.count(command.step) == 0;
  if (!again) {
    require(plans_.rbegin()->second.find(command.worker) != nullptr,
            "worker {} published though generation {} is without it", command.worker,
            plans_.rbegin()->first);
    const int64_t newest = newest_good();
    require(command.step > newest, "the checkpoints went back from {} to {}", newest, command.step);
  }
  if (disk_full_until_ > now_ && !again) {
    to_controller_in(span(100, 2'000), PublishFailed{command.step, "disk full"});
    return;
  }
  published_[command.step] = found->second;
  bad_.erase(command.step);
  ++result_.publications;
  to_controller_in(span(100, 2'000), CheckpointPublished{command.step});
  if (chance(doubling_)) to_controller_in(span(100, 9'000), CheckpointPublished{command.step});
}

void Simulation::crash_controller() {
  say("--- controller dies");
  controller_.reset();
  schedule(now_ + span(1'000, 150'000), Kind::restart);
}

void Simulation::restart_controller() {
  say("--- controller restarts");
  ++result_.restarts;
  Outcome first;
  controller_.emplace(
      Membership::restore(options_, nlohmann::json::parse(stored_->save().dump()), now_, first));
  tick_at_ = Time{-1};
  carry_out(first);
  // Its launcher finds out what became of the processes; the publication it left open is settled.
  for (const auto& [id, process] : processes_)
    if (!process->alive) to_controller_in(span(100, 5'000), WorkerExited{id, 0, 9});
}

// ---- Workers.

Process* Simulation::living(WorkerId id) {
  const auto found = processes_.find(id);
  return found != processes_.end() && found->second->alive ? found->second.get() : nullptr;
}

void Simulation::feed_worker(WorkerId id, Process& process, const WorkerEvent& event) {
  if (const auto* received = std::get_if<InstructionReceived>(&event);
      received != nullptr && mutation_ == Mutation::promise_is_not_kept) {
    if (const auto* halt = std::get_if<Halt>(&received->instruction.what);
        halt != nullptr && process.machine.phase() == WorkerPhase::running) {
      Report lie;
      lie.worker = id;
      lie.sequence = 1'000'000 + order_;
      lie.phase = WorkerPhase::halted;
      lie.generation = process.machine.generation();
      lie.promised = halt->generation;
      lie.step = process.machine.step();
      lie.voted = process.machine.voted();
      to_controller_in(delay(), WorkerReported{lie});
      return;
    }
  }
  if (trace_) {
    const auto* received = std::get_if<InstructionReceived>(&event);
    if (received != nullptr && !std::holds_alternative<Ack>(received->instruction.what))
      say("worker {} hears {}", id, to_json(received->instruction).dump());
  }
  std::vector<WorkerCommand> commands = process.machine.apply(event, now_);
  for (WorkerCommand& command : commands) {
    if (!process.alive) return;
    carry_out(id, process, command);
  }
  const Time next = process.machine.next_deadline();
  if (process.alive && process.beat_at < now_) {
    process.beat_at = next;
    schedule(next, Kind::beat, id);
  }
}

void Simulation::carry_out(WorkerId id, Process& process, WorkerCommand& command) {
  if (auto* send = std::get_if<SendReport>(&command)) {
    if (mutation_ == Mutation::votes_are_forgotten) send->report.voted = false;
    if (cut(id, 0) || chance(loss_)) return;
    if (chance(doubling_)) to_controller_in(delay() * 4, WorkerReported{send->report});
    to_controller_in(delay(), WorkerReported{std::move(send->report)});
  } else if (auto* restore = std::get_if<Restore>(&command)) {
    restore_state(id, process, *restore);
  } else if (auto* feed = std::get_if<Feed>(&command)) {
    DataMessage message;
    message.what = DataMessage::What::state;
    message.generation = feed->plan->number;
    message.step = feed->plan->start;
    message.from = id;
    message.state = process.state;
    for (WorkerId to : feed->to) send_data(id, to, message);
  } else if (auto* step = std::get_if<RunStep>(&command)) {
    run_step(id, process, *step);
  } else if (auto* vote = std::get_if<CastVote>(&command)) {
    if (mutation_ == Mutation::commit_without_vote)
      loop_event(id, process, Time{1}, AllVoted{vote->generation, vote->step, vote->stop});
    DataMessage message;
    message.what = DataMessage::What::vote;
    message.generation = vote->generation;
    message.step = vote->step;
    message.from = id;
    message.stop = vote->stop;
    for (const Member& member : process.plan->members) send_data(id, member.worker, message);
  } else if (auto* apply = std::get_if<Apply>(&command)) {
    check_commit(id, *apply);
    ++process.token;
    // Ends whatever happens, in one piece; the machine may hear other things meanwhile.
    require(process.reduction_step == apply->step && process.state_step == apply->step,
            "worker {} applies step {} to state {}, holding the reduction of {}", id, apply->step,
            process.state_step, process.reduction_step);
    process.state = process.reduction;
    process.state_step = apply->step + 1;
    check_state(id, process);
    loop_event(id, process, span(50, 800),
               Restored{apply->generation, apply->step + 1, apply->step + 1 == steps_});
  } else if (auto* abandon = std::get_if<Abandon>(&command)) {
    close_connections(id, process);
    ++process.token;
    loop_event(id, process, span(10, 3'000), Abandoned{abandon->generation});
  } else if (auto* write = std::get_if<WriteCheckpoint>(&command)) {
    require(process.state_step == write->step, "worker {} saves {} but has {}", id, write->step,
            process.state_step);
    WorkerEvent answer = Saved{write->attempt, write->step};
    if (disk_full_until_ > now_)
      answer = SaveFailed{write->attempt, "disk full"};
    else
      written_[{id, write->step}] = process.state;
    const Time takes = span(500, 20'000);
    schedule(now_ + takes, Kind::to_worker, id, 0, std::move(answer));
    if (mutation_ == Mutation::worker_publishes && disk_full_until_ <= now_ &&
        published_.count(write->step) == 0 && chance(0.3)) {
      publish({id, process.machine.generation(), write->step});
    }
  } else if (std::get_if<Exit>(&command) != nullptr) {
    kill(id, true, 0);
  }
}

void Simulation::run_step(WorkerId id, Process& process, const RunStep& command) {
  ++process.token;
  process.plan = command.plan;
  process.step = command.step;
  process.restoring = false;
  process.contributed.assign(command.plan->members.size(), false);
  process.voted.assign(command.plan->members.size(), false);
  process.sums.assign(static_cast<size_t>(virtual_ranks_), 0);
  process.stop = 0;
  require(process.state_step == command.step, "worker {} runs step {} with state {}", id,
          command.step, process.state_step);
  if (plans_.rbegin()->first == command.plan->number)
    max_begun_ = std::max(max_begun_, command.step);
  const int64_t share = command.plan->find(id)->ranks.size() * 1000 / virtual_ranks_;
  Time takes = Time{step_time_.count() * share / 1000} + span(100, 2'000);
  if (chance(slow_)) takes += span(1'000, 30'000);
  schedule(now_ + takes, Kind::computed, id, process.token);
  schedule(now_ + takes + data_deadline_, Kind::stalled, id, process.token);
  look_at_early(id, process);
}

void Simulation::restore_state(WorkerId id, Process& process, const Restore& command) {
  ++process.token;
  process.plan = command.plan;
  process.restoring = true;
  process.state_step = -1;
  const int64_t start = command.plan->start;
  if (command.self.source == StateSource::peer) {
    schedule(now_ + data_deadline_, Kind::stalled, id, process.token);
    look_at_early(id, process);
    return;
  }
  if (command.self.source == StateSource::checkpoint) {
    const auto found = published_.find(start);
    if (found == published_.end() || bad_.count(start) != 0) {
      loop_event(id, process, span(100, 2'000), RestoreFailed{command.plan->number, "torn"});
      return;
    }
    process.state = found->second;
  } else {
    process.state = truth_[0];
  }
  process.state_step = start;
  check_state(id, process);
  loop_event(id, process, span(100, 5'000), Restored{command.plan->number, start, start == steps_});
}

void Simulation::send_data(WorkerId from, WorkerId to, DataMessage message) {
  if (from != to && (cut(from, to) || chance(loss_ * 0.3))) return;
  const Time takes = from == to ? Time{0} : delay();
  schedule(now_ + takes, Kind::data, to, 0, message);
}

void Simulation::look_at_early(WorkerId id, Process& process) {
  std::vector<DataMessage> early = std::move(process.early);
  process.early.clear();
  for (const DataMessage& message : early) take_data(id, process, message);
}

void Simulation::take_data(WorkerId id, Process& process, const DataMessage& message) {
  const Generation current = process.plan ? process.plan->number : 0;
  const bool fenced = message.generation < current && mutation_ != Mutation::no_generation_check;
  if (fenced) return;
  const bool here =
      process.plan && (message.generation == current || mutation_ == Mutation::no_generation_check);
  const auto later = [&] {
    if (message.generation > current || message.step > process.step ||
        (message.generation == current && process.restoring))
      process.early.push_back(message);
  };
  if (message.what == DataMessage::What::state) {
    if (!here || !process.restoring || message.generation != current) return later();
    if (process.state_step >= 0) return;
    process.state_step = message.step;
    process.state = message.state;
    ++process.token;
    check_state(id, process);
    loop_event(id, process, span(100, 5'000),
               Restored{message.generation, message.step, message.step == steps_});
    return;
  }
  if (!here || process.restoring || message.step != process.step) return later();
  const Member* member = process.plan->find(message.from);
  if (member == nullptr) return;
  const auto from = static_cast<size_t>(member - process.plan->members.data());
  if (message.what == DataMessage::What::contribution) {
    if (process.contributed[from]) return;
    process.contributed[from] = true;
    for (int64_t v = message.ranks.begin; v < message.ranks.end; ++v)
      process.sums[static_cast<size_t>(v)] += leaf(message.state, message.step, v);
    if (std::find(process.contributed.begin(), process.contributed.end(), false) !=
        process.contributed.end())
      return;
    process.reduction = process.state;
    for (uint64_t sum : process.sums) process.reduction = scramble(process.reduction ^ sum);
    process.reduction_step = process.step;
    loop_event(id, process, Time{0}, Reduced{current, process.step});
  } else {
    process.voted[from] = true;
    process.stop = std::max(process.stop, message.stop);
    if (std::find(process.voted.begin(), process.voted.end(), false) == process.voted.end())
      loop_event(id, process, Time{0}, AllVoted{current, process.step, process.stop});
  }
}

// The peers' transports notice, unless the network keeps it from them.
void Simulation::close_connections(WorkerId id, Process& process) {
  if (!process.plan) return;
  for (const Member& member : process.plan->members) {
    Process* peer = living(member.worker);
    if (peer == nullptr || member.worker == id || cut(id, member.worker) || chance(loss_)) continue;
    schedule(now_ + delay(), Kind::to_worker, member.worker, 0,
             WorkerEvent{PeerLost{process.plan->number, {id}, "a peer closed its connection"}});
  }
}

void Simulation::kill(WorkerId id, bool confirmed, int64_t signal) {
  Process* process = living(id);
  if (process == nullptr) return;
  say("--- worker {} ends ({})", id, signal);
  process->alive = false;
  close_connections(id, *process);
  if (!cut(id, 0) && chance(0.7)) to_controller_in(delay(), ConnectionClosed{id});
  if (confirmed || !chance(unconfirmed_))
    to_controller_in(span(100, 3'000), WorkerExited{id, signal == 0 ? 0 : 0, signal});
}

void Simulation::check_state(WorkerId id, const Process& process) {
  require(process.state_step >= 0 && process.state_step <= steps_ &&
              process.state == truth_[static_cast<size_t>(process.state_step)],
          "worker {} has a wrong state of step {}", id, process.state_step);
}

// A step is committed when all members of a generation voted for it. A generation that was followed
// by another never commits one that the other does not start after.
void Simulation::check_commit(WorkerId id, const Apply& command) {
  // Who begins a generation one step behind only catches up.
  if (command.step < plans_.at(command.generation).start) return;
  const auto next = plans_.upper_bound(command.generation);
  if (next != plans_.end()) {
    require(command.step + 1 <= next->second.start,
            "worker {} commits step {} in generation {}, but {} started at {}", id, command.step,
            command.generation, next->first, next->second.start);
    return;
  }
  max_committed_ = std::max(max_committed_, command.step + 1);
  faults_since_commit_ = 0;
}

// ---- Network and faults.

bool Simulation::cut(WorkerId from, WorkerId to) {
  for (const Cut& c : cuts_)
    if (c.from == from && c.to == to && now_ < c.until) return true;
  return false;
}

Time Simulation::delay() {
  if (chance(slow_)) return span(1'000, 40'000);
  return span(30, 500);
}

WorkerId Simulation::any_worker() {
  std::vector<WorkerId> alive;
  for (const auto& [id, process] : processes_)
    if (process->alive) alive.push_back(id);
  return alive.empty() ? 0 : alive[rng_.below(static_cast<uint32_t>(alive.size()))];
}

void Simulation::inject() {
  ++faults_since_commit_;
  const uint32_t kind = rng_.below(14);
  const WorkerId victim = any_worker(), other = any_worker();
  const Time until = now_ + span(5'000, 150'000);
  const auto request = [&](Event event) {
    if (controller_) feed_controller(event);
  };
  if (kind <= 7 && victim == 0) return;
  switch (kind) {
    case 0:
    case 1:
      ++result_.kills;
      kill(victim, false, 9);
      break;
    case 2:
    case 3: {
      say("--- worker {} stops until {} ms", victim, until.count() / 1000);
      Process& process = *living(victim);
      process.asleep_until = std::max(process.asleep_until, std::min(until * 2, faults_end_));
      break;
    }
    case 4:
      if (other == victim) break;
      say("--- from worker {} to {} nothing gets through", victim, other);
      cuts_.push_back({victim, other, until});
      if (chance(0.5)) cuts_.push_back({other, victim, until});
      break;
    case 5:
      say("--- worker {} and the controller are cut off", victim);
      if (chance(0.7)) cuts_.push_back({victim, 0, until * 2});
      if (chance(0.7)) cuts_.push_back({0, victim, until * 2});
      if (chance(0.3)) to_controller_in(delay(), ConnectionClosed{victim});
      break;
    case 6:
      say("--- all workers and the controller are cut off");
      for (const auto& [id, process] : processes_) {
        cuts_.push_back({id, 0, until * 3});
        cuts_.push_back({0, id, until * 3});
      }
      break;
    case 7:
      say("--- worker {} is asked to leave", victim);
      feed_worker(victim, *living(victim), LeaveAsked{});
      break;
    case 8:
      request(ResizeJob{between(options_.min_workers, options_.max_workers)});
      break;
    case 9:
      request(PreemptJob{});
      if (chance(0.7))
        schedule(now_ + span(1'000, 100'000), Kind::to_controller, 0, 0,
                 Event{ResumeJob{
                     chance(0.5) ? 0 : between(options_.min_workers, options_.max_workers)}});
      break;
    case 10:
      say("--- the disk is full");
      disk_full_until_ = until;
      break;
    case 11:
      request(SaveJob{});
      break;
    case 12:
      if (restarts_ && controller_) crash_controller();
      break;
    case 13:
      if (newest_good() < 0 || !chance(0.3)) break;
      say("--- the checkpoint of step {} goes bad", newest_good());
      bad_.insert(newest_good());
      break;
  }
}

}  // namespace

std::string_view to_string(Mutation mutation) {
  switch (mutation) {
    case Mutation::none:
      return "none";
    case Mutation::commit_without_vote:
      return "commit_without_vote";
    case Mutation::worker_publishes:
      return "worker_publishes";
    case Mutation::no_generation_check:
      return "no_generation_check";
    case Mutation::saves_are_lost:
      return "saves_are_lost";
    case Mutation::no_lease:
      return "no_lease";
    case Mutation::promise_is_not_kept:
      return "promise_is_not_kept";
    case Mutation::votes_are_forgotten:
      return "votes_are_forgotten";
  }
  return "?";
}

SimulationResult simulate(uint64_t seed, Mutation mutation, bool trace) {
  return Simulation(seed, mutation, trace).run();
}

}  // namespace ductile::control
