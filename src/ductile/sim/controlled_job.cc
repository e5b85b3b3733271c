#include "ductile/sim/controlled_job.h"

#include <algorithm>

#include "ductile/base/error.h"

namespace ductile::sim {

using namespace control;
using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

constexpr Time kStep = milliseconds(100);      // of training
constexpr Time kPeer = milliseconds(1);        // between workers
constexpr Time kStalled = milliseconds(600);   // until a peer that is silent is given up
constexpr Time kBirth = milliseconds(50);      // of a process
constexpr Time kLoad = milliseconds(300);      // of code and data
constexpr Time kTransfer = milliseconds(200);  // of the state
constexpr int64_t kStepsSeen = 2;              // committed before a change counts as done

MembershipOptions options_for(int64_t virtual_ranks) {
  MembershipOptions options;
  options.virtual_ranks = virtual_ranks;
  options.max_failures = options.max_crashes_alone = 1000;  // messages may be lost for minutes
  return options;
}

}  // namespace

struct ControlledJob::Process {
  explicit Process(WorkerOptions options) : machine(std::move(options)) {}
  WorkerProtocol machine;
  bool alive = true;
  Time beat_at{-1};
  uint64_t token = 1;  // changes with everything that its step loop begins
  Generation generation = 0;
  int64_t step = -1;  // being run
  Generation restoring = 0;
};

ControlledJob::ControlledJob(std::string name, int32_t most_workers, uint64_t seed,
                             ControlStats& stats)
    : name_(std::move(name)),
      stats_(stats),
      rng_(seed, 0xc0117201),
      virtual_ranks_(most_workers),
      controller_(options_for(most_workers)) {}
ControlledJob::~ControlledJob() = default;

bool ControlledJob::message(Time& delay) {
  ++stats_.messages;
  delay = microseconds(200 + rng_.below(800));
  if (faults_.lost > 0 && rng_.uniform(0, 1) < faults_.lost) {
    ++stats_.lost;
    return false;
  }
  if (faults_.late > 0 && rng_.uniform(0, 1) < faults_.late) {
    ++stats_.late;
    delay += microseconds(static_cast<int64_t>(1e6 * rng_.uniform(0, 1) * faults_.delay));
  }
  return true;
}

// ---- The controller and its host.

void ControlledJob::feed(const Event& event) {
  const Outcome outcome = controller_.apply(event, now_);
  for (const Command& command : outcome.commands) carry_out(command);
  const Time next = controller_.next_deadline();
  if (tick_at_ <= now_ || next < tick_at_) {
    tick_at_ = std::max(next, now_ + microseconds(1));
    schedule(tick_at_, Event{Tick{}});
  }
}

void ControlledJob::carry_out(const Command& command) {
  if (const auto* launch = std::get_if<LaunchWorker>(&command)) {
    DUCTILE_CHECK(!processes_.contains(launch->worker), "{}: worker {} was there before", name_,
                  launch->worker);
    schedule(now_ + kBirth, Born{launch->worker});
  } else if (const auto* kill = std::get_if<KillWorker>(&command)) {
    const auto found = processes_.find(kill->worker);
    if (found != processes_.end() && found->second->alive) {
      die(kill->worker, *found->second, 0, 9);
    } else {
      if (found == processes_.end())  // not born yet, and now never
        (processes_[kill->worker] = std::make_unique<Process>(WorkerOptions{}))->alive = false;
      schedule(now_ + kPeer, Event{WorkerExited{kill->worker, 0, 9}});
    }
  } else if (const auto* send = std::get_if<SendInstruction>(&command)) {
    if (const auto* enter = std::get_if<Enter>(&send->instruction.what)) see_plan(*enter->plan);
    Time delay;
    if (message(delay))
      schedule(now_ + delay,
               ToWorker{send->instruction.worker, 0, InstructionReceived{send->instruction}});
  } else if (const auto* publish = std::get_if<PublishCheckpoint>(&command)) {
    schedule(now_ + milliseconds(5), Event{CheckpointPublished{publish->step}});
  }
}

void ControlledJob::see_plan(const GenerationPlan& plan) {
  const auto [known, fresh] = plans_.emplace(plan.number, plan);
  DUCTILE_CHECK(known->second == plan, "{}: two plans of generation {}", name_, plan.number);
  if (!fresh) return;
  ++stats_.generations;
  int64_t begin = 0;
  bool survivor = false;
  for (const Member& member : plan.members) {
    DUCTILE_CHECK(member.ranks.begin == begin, "{}: virtual ranks {} to {} after {}", name_,
                  member.ranks.begin, member.ranks.end, begin);
    begin = member.ranks.end;
    survivor |= member.source == StateSource::keep || member.source == StateSource::apply_voted;
  }
  DUCTILE_CHECK(begin == virtual_ranks_, "{}: generation {} has {} of {} virtual ranks", name_,
                plan.number, begin, virtual_ranks_);
  DUCTILE_CHECK(!survivor || plan.start >= committed_,
                "{}: generation {} starts at step {}, {} were committed", name_, plan.number,
                plan.start, committed_);
  if (!survivor) committed_ = plan.start;
}

// ---- The workers.

void ControlledJob::answer(WorkerId id, const Process& process, Time delay, WorkerEvent event) {
  schedule(now_ + delay, ToWorker{id, process.token, std::move(event)});
}

void ControlledJob::feed(WorkerId id, Process& process, const WorkerEvent& event) {
  for (const WorkerCommand& command : process.machine.apply(event, now_)) {
    if (!process.alive) return;
    carry_out(id, process, command);
  }
  if (process.alive && process.beat_at <= now_) {
    process.beat_at = std::max(process.machine.next_deadline(), now_ + microseconds(1));
    schedule(process.beat_at, Beat{id});
  }
}

void ControlledJob::die(WorkerId id, Process& process, int64_t code, int64_t signal) {
  process.alive = false;
  schedule(now_ + kPeer, Event{ConnectionClosed{id}});
  schedule(now_ + 2 * kPeer, Event{WorkerExited{id, code, signal}});
}

void ControlledJob::carry_out(WorkerId id, Process& process, const WorkerCommand& command) {
  if (const auto* send = std::get_if<SendStatus>(&command)) {
    Time delay;
    if (message(delay)) schedule(now_ + delay, Event{WorkerReported{send->report}});
  } else if (const auto* restore = std::get_if<Restore>(&command)) {
    ++process.token;
    process.generation = process.restoring = restore->plan->number;
    schedule(now_ + 2 * kStalled, Stalled{id, process.token});
    met_[process.restoring].insert(id);
    restore_all(*restore->plan);
  } else if (const auto* run = std::get_if<RunStep>(&command)) {
    ++process.token;
    process.restoring = 0;
    process.generation = run->plan->number;
    process.step = run->step;
    Step& step = steps_[{run->plan->number, run->step}];
    step.arrived.insert(id);
    schedule(now_ + kStalled, Stalled{id, process.token});
    step_of_all(run->plan->number, run->step, step, *run->plan);
  } else if (const auto* vote = std::get_if<CastVote>(&command)) {
    Step& step = steps_[{vote->generation, vote->step}];
    step.voted.insert(id);
    step.stop = std::max(step.stop, vote->stop);
    const GenerationPlan& plan = plans_.at(vote->generation);
    if (step.voted.size() < plan.members.size()) return;
    for (const Member& member : plan.members)
      if (const auto found = processes_.find(member.worker);
          found != processes_.end() && found->second->alive &&
          found->second->generation == vote->generation && found->second->step == vote->step)
        answer(member.worker, *found->second, kPeer,
               AllVoted{vote->generation, vote->step, step.stop});
  } else if (const auto* apply = std::get_if<Apply>(&command)) {
    ++process.token;
    const auto [known, fresh] = applied_in_.emplace(apply->step, apply->generation);
    DUCTILE_CHECK(apply->step <= committed_, "{}: step {} is applied, {} are committed", name_,
                  apply->step, committed_);
    DUCTILE_CHECK(fresh || known->second <= apply->generation,
                  "{}: step {} is applied in generation {} after {}", name_, apply->step,
                  apply->generation, known->second);
    known->second = apply->generation;
    if (apply->step + 1 > committed_) {
      committed_ = apply->step + 1;
      ++steps_in_change_;
      ++stats_.steps;
    }
    answer(id, process, kPeer, Restored{apply->generation, apply->step + 1});
  } else if (const auto* abandon = std::get_if<Abandon>(&command)) {
    ++process.token;
    process.step = -1;
    process.restoring = 0;
    answer(id, process, kPeer, Abandoned{abandon->generation});
  } else if (const auto* write = std::get_if<WriteCheckpoint>(&command)) {
    // Goes on whatever the loop does meanwhile.
    schedule(now_ + milliseconds(20), ToWorker{id, 0, Saved{write->attempt, write->step}});
  } else if (std::get_if<Exit>(&command) != nullptr) {
    die(id, process, 0, 0);
  }
}

// Once all members have come to the meeting of a generation, each gets what it lacks.
void ControlledJob::restore_all(const GenerationPlan& plan) {
  if (met_[plan.number].size() < plan.members.size()) return;
  for (const Member& member : plan.members) {
    const auto found = processes_.find(member.worker);
    if (found == processes_.end() || !found->second->alive ||
        found->second->restoring != plan.number)
      continue;
    const bool has_it =
        member.source == StateSource::keep || member.source == StateSource::apply_voted;
    answer(member.worker, *found->second, has_it ? kPeer : kTransfer,
           Restored{plan.number, plan.start});
  }
}

// Once all members have come to a step, its reduction is there for all of them.
void ControlledJob::step_of_all(Generation generation, int64_t number, const Step& step,
                                const GenerationPlan& plan) {
  if (step.arrived.size() < plan.members.size()) return;
  for (const Member& member : plan.members)
    if (const auto found = processes_.find(member.worker);
        found != processes_.end() && found->second->alive &&
        found->second->generation == generation && found->second->step == number)
      answer(member.worker, *found->second, kStep, Reduced{generation, number});
}

void ControlledJob::play(const Item& item) {
  if (const auto* event = std::get_if<Event>(&item.what)) {
    feed(*event);
    return;
  }
  if (const auto* born = std::get_if<Born>(&item.what)) {
    if (processes_.contains(born->worker)) return;  // killed before
    WorkerOptions options;
    options.worker = born->worker;
    options.address = name_;
    auto& process = processes_[born->worker] = std::make_unique<Process>(options);
    answer(born->worker, *process, kLoad, Loaded{});
    feed(born->worker, *process, control::Beat{});
    return;
  }
  const auto living = [&](WorkerId id) -> Process* {
    const auto found = processes_.find(id);
    return found != processes_.end() && found->second->alive ? found->second.get() : nullptr;
  };
  if (const auto* to = std::get_if<ToWorker>(&item.what)) {
    Process* process = living(to->worker);
    if (process != nullptr && (to->token == 0 || to->token == process->token))
      feed(to->worker, *process, to->event);
  } else if (const auto* beat = std::get_if<Beat>(&item.what)) {
    if (Process* process = living(beat->worker)) feed(beat->worker, *process, control::Beat{});
  } else if (const auto* stalled = std::get_if<Stalled>(&item.what)) {
    Process* process = living(stalled->worker);
    if (process == nullptr || process->token != stalled->token) return;
    PeerLost lost{process->generation, {}, "silent"};
    if (const auto plan = plans_.find(process->generation); plan != plans_.end())
      for (const Member& member : plan->second.members)
        if (living(member.worker) == nullptr) lost.suspects.push_back(member.worker);
    feed(stalled->worker, *process, lost);
  }
}

// ---- Changes.

bool ControlledJob::settled(int32_t count) const {
  if (count == 0)
    return controller_.phase() == Phase::preempted &&
           std::none_of(processes_.begin(), processes_.end(),
                        [](const auto& entry) { return entry.second->alive; });
  const GenerationPlan& plan = controller_.generation();
  if (controller_.phase() != Phase::running || plan.members.size() != static_cast<size_t>(count) ||
      steps_in_change_ < kStepsSeen)
    return false;
  return std::all_of(plan.members.begin(), plan.members.end(), [&](const Member& member) {
    const auto found = processes_.find(member.worker);
    return found != processes_.end() && found->second->alive &&
           found->second->machine.generation() == plan.number &&
           found->second->machine.phase() == WorkerPhase::running;
  });
}

void ControlledJob::check(int32_t count) const {
  int32_t alive = 0;
  for (const auto& [id, process] : processes_) alive += process->alive;
  DUCTILE_CHECK(alive <= count, "{}: {} processes on {} devices", name_, alive, count);
  DUCTILE_CHECK(count > 0 || std::max<int64_t>(controller_.checkpoint(), 0) == committed_,
                "{}: preempted with a checkpoint of step {}, {} were committed", name_,
                controller_.checkpoint(), committed_);
}

void ControlledJob::settle(int32_t count) {
  const Time begin = now_, end = begin + microseconds(static_cast<int64_t>(1e6 * kPatience));
  steps_in_change_ = 0;
  while (!settled(count)) {
    if (queue_.empty() || queue_.top().at > end || controller_.phase() == Phase::failed)
      fail(ErrorCode::internal, "{}: still not on {} devices after {} s of control: {}", name_,
           count, kPatience, controller_.why(now_));
    const Item item = queue_.top();
    queue_.pop();
    now_ = std::max(now_, item.at);
    play(item);
  }
  // Those that were told to stop and have not yet exited are not of this change any more, unless
  // their devices go to others: wait for them.
  const auto alive = [&] {
    return std::count_if(processes_.begin(), processes_.end(),
                         [](const auto& entry) { return entry.second->alive; });
  };
  while (alive() > count && !queue_.empty() && queue_.top().at <= end) {
    const Item item = queue_.top();
    queue_.pop();
    now_ = std::max(now_, item.at);
    play(item);
  }
  check(count);
  const double seconds = 1e-6 * static_cast<double>((now_ - begin).count());
  ++stats_.changes;
  stats_.seconds += seconds;
  stats_.slowest = std::max(stats_.slowest, seconds);
  std::erase_if(processes_, [&](const auto& entry) {
    return !entry.second->alive && entry.first + 4096 < processes_.rbegin()->first;
  });
  std::erase_if(steps_, [&](const auto& entry) { return entry.first.second < committed_ - 2; });
}

void ControlledJob::set_workers(int32_t count, const MessageFaults& faults) {
  faults_ = faults;
  if (count == 0 && workers_ == 0) return;
  switch (controller_.phase()) {
    case Phase::queued:
      feed(StartJob{count});
      break;
    case Phase::preempted:
      feed(ResumeJob{count});
      break;
    default:
      if (count > 0)
        feed(ResizeJob{count});
      else
        feed(PreemptJob{});
  }
  workers_ = count;
  settle(count);
}

void ControlledJob::lose_workers(int32_t count, const MessageFaults& faults) {
  faults_ = faults;
  for (auto& [id, process] : processes_) {
    if (count == 0) break;
    if (!process->alive) continue;
    // Nothing is heard of it but that its connection broke; the host says later that it is gone.
    process->alive = false;
    schedule(now_ + milliseconds(5), Event{ConnectionClosed{id}});
    schedule(now_ + milliseconds(2000), Event{WorkerExited{id, -1, 0}});
    --count;
  }
  // With the last of those that had the state, what was not saved is gone.
  if (std::none_of(processes_.begin(), processes_.end(), [](const auto& entry) {
        return entry.second->alive && entry.second->machine.step() >= 0;
      }))
    committed_ = std::max<int64_t>(controller_.checkpoint(), 0);
}

}  // namespace ductile::sim
