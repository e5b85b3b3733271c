// The scenario, the clock, and the host of the controller with its store and its launcher.
#include "ductile/control/testing/model_job.h"

#include <algorithm>

#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/control/testing/model_job_impl.h"

namespace ductile::control {

// ---- The scenario.

void ModelJob::draw_scenario() {
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
  options_.max_failures = options_.max_crashes_alone = 1000;
  options_.checkpoint_retry = milliseconds(20);
  options_.resend = milliseconds(15);
  if (chance(0.4)) options_.checkpoint_steps = between(1, 4);
  if (chance(0.3)) options_.checkpoint_every = span(10'000, 60'000);
  const bool spread = chance(0.4) || mutation_ == Mutation::parts_are_claimed;
  const size_t few = chance(0.5) ? 2 : 1;
  copies_ = spread ? few : static_cast<size_t>(options_.max_workers);
  ends_in_parts_ = ends_in_parts_ && spread && mutation_ != Mutation::parts_are_claimed;
  options_.all_read = ends_in_parts_;
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
  const auto toss = [&](double p) { return hosts_rng_.uniform() < static_cast<float>(p); };
  const auto when = [&] {
    return Time{hosts_rng_.below(static_cast<uint32_t>(faults_end_.count()))};
  };
  hosts_.resize(1 + hosts_rng_.below(3));
  options_.num_hosts = static_cast<int64_t>(hosts_.size());
  if (hosts_.size() > 1)
    for (size_t h = 0; h < hosts_.size(); ++h) hosts_[h] = fmt::format("host{}", h);
  // No draw decides it, so that other scenarios stay as they are.
  if (hosts_.size() > 1 && virtual_ranks_ % 2 == 0)
    for (int64_t r = 0; r < virtual_ranks_; ++r)
      options_.rank_hosts.push_back(hosts_[static_cast<size_t>(r + 1) % hosts_.size()]);
  if (hosts_.size() > 1 && toss(0.3)) sick_host_ = hosts_.front();
  if (toss(0.1)) hosts_away_until_ = when();
  while (toss(0.3)) schedule(when(), Kind::nap);
  options_.finish_deadline = milliseconds(toss(0.5) ? 20 : 1000);
  read_records_ = toss(0.5) || mutation_ == Mutation::record_is_not_read;

  truth_.push_back(scramble(static_cast<uint64_t>(virtual_ranks_)));
  for (int64_t t = 0; t < steps_; ++t) {
    uint64_t sum = truth_.back();
    for (int64_t v = 0; v < virtual_ranks_; ++v) sum = scramble(sum ^ leaf(truth_.back(), t, v));
    truth_.push_back(sum);
  }
}

void ModelJob::schedule(Time at, Kind kind, WorkerId worker, uint64_t token, Payload payload) {
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

ModelJobResult ModelJob::run() {
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

void ModelJob::handle(Item& item) {
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
      if (process != nullptr && item.token == process->token && process->gathering) {
        end_gathering(item.worker, *process);
        close_connections(item.worker, *process);
      } else if (process != nullptr && item.token == process->token) {
        PeerLost lost{process->plan->number, {}, "a peer kept silent"};
        const auto& have = process->machine.voted() ? process->voted : process->contributed;
        for (size_t i = 0; i < process->plan->members.size(); ++i)
          if (process->restoring ? process->waits_for.count(process->plan->members[i].worker) != 0
                                 : !have[i])
            lost.suspects.push_back(process->plan->members[i].worker);
        close_connections(item.worker, *process);
        feed_worker(item.worker, *process, lost);
      }
      break;
    case Kind::born:
      be_born(item.worker);
      break;
    case Kind::beat:
      if (process != nullptr) {
        beat(item.worker, *process);
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
    case Kind::nap:
      put_controller_to_sleep();
      break;
    case Kind::wake:
      if (now_ >= nap_until_) wake_controller();
      break;
    case Kind::heal:
      say("--- faults end");
      healed_ = true;
      cuts_.clear();
      sick_host_.clear();
      hosts_away_until_ = now_;
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
          (controller_->phase() == Phase::preempted || controller_->phase() == Phase::preempting ||
           controller_->phase() == Phase::failed))
        feed_controller(ResumeJob{});
      schedule(now_ + milliseconds(200), Kind::push);
      break;
  }
}

// ---- The controller and its host.

void ModelJob::feed_controller(const Event& event) {
  if (now_ < nap_until_) {
    if (!std::holds_alternative<Tick>(event)) unheard_.push_back(event);
    return;
  }
  if (trace_ && !std::holds_alternative<Tick>(event))
    say("-> controller {}", dump_json(to_json(event)));
  is_news(event);
  const Outcome outcome = controller_->apply(event, now_);
  carry_out(outcome);
}

// Whether it is a report that was not overtaken by a newer one.
bool ModelJob::is_news(const Event& event) {
  const auto* reported = std::get_if<WorkerReported>(&event);
  if (reported == nullptr) return false;
  uint64_t& newest = heard_[reported->report.worker];
  if (reported->report.sequence <= newest) return false;
  newest = reported->report.sequence;
  return true;
}

void ModelJob::put_controller_to_sleep() {
  if (!controller_ || now_ < nap_until_) return;
  ++faults_since_commit_;
  nap_until_ = std::min(now_ + Time{5'000 + hosts_rng_.below(250'000)}, faults_end_);
  say("--- the controller stops until {} ms", nap_until_.count() / 1000);
  schedule(nap_until_, Kind::wake);
}

// All that came meanwhile is heard at once: nobody whose word is there is taken for silent.
void ModelJob::wake_controller() {
  const std::vector<Event> events = std::exchange(unheard_, {});
  if (!controller_) return;
  say("--- the controller goes on and hears {} events", events.size());
  const Outcome outcome = controller_->apply(events, now_);
  for (const Event& event : events) {
    if (!is_news(event)) continue;
    const WorkerId worker = std::get<WorkerReported>(event).report.worker;
    const std::string silent = fmt::format("worker {}: no heartbeat", worker);
    for (const Command& command : outcome.commands) {
      const auto* note = std::get_if<Note>(&command);
      require(note == nullptr || !note->text.starts_with(silent),
              "the controller woke up and took worker {} for silent, which had reported", worker);
    }
  }
  tick_at_ = Time{-1};
  carry_out(outcome);
}

// There is one good reason: a result that cannot be saved. A host where nobody can begin is none,
// as long as there are others, nor are hosts that cannot be reached.
void ModelJob::check_failure() {
  const bool failed = controller_->phase() == Phase::failed;
  if (std::exchange(failed_, failed) || !failed) return;
  const bool unsaved = controller_->reason().find("could not be saved") != std::string::npos;
  require(unsaved && now_ <= disk_full_until_ + milliseconds(250), "the job failed: {}",
          controller_->reason());
}

void ModelJob::beat(WorkerId id, Process& process) {
  process.beat_at = Time{-1};
  look_at_record(id, process);
  feed_worker(id, process, Beat{});
}

void ModelJob::carry_out(const Outcome& outcome) {
  if (read_records_ && outcome.must_save) record_ = controller_->save();
  if (restarts_ && mutation_ != Mutation::saves_are_lost && (outcome.must_save || chance(0.2)))
    stored_ = controller_;
  if (restarts_ && mutation_ == Mutation::saves_are_lost && (order_ < 10 || chance(0.5)))
    stored_ = controller_;
  size_t count = outcome.commands.size();
  const bool torn = outcome.must_save && chance(torn_outcome_);
  if (torn) count = rng_.below(static_cast<uint32_t>(count) + 1);
  for (size_t i = 0; i < count && controller_ && !finished_; ++i) carry_out(outcome.commands[i]);
  if (torn && controller_) crash_controller();
  if (!controller_) return;
  check_failure();
  const Time next = controller_->next_deadline();
  if (next != Time::max() && (tick_at_ < now_ || next < tick_at_)) {
    tick_at_ = std::max(next, now_ + microseconds(1));
    schedule(tick_at_, Kind::tick);
  }
}

void ModelJob::carry_out(const Command& command) {
  if (trace_) {
    const auto* send = std::get_if<SendInstruction>(&command);
    if (send == nullptr || !std::holds_alternative<Ack>(send->instruction.what))
      say("controller: {}", dump_json(to_json(command)));
  }
  if (const auto* start = std::get_if<LaunchWorker>(&command)) {
    launch(*start);
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

void ModelJob::on_plan(const GenerationPlan& plan) {
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
  uint32_t parts = 0;
  for (const Member& member : plan.members) {
    require(member.ranks.begin == at, "generation {}: virtual rank {} has no host, or two",
            plan.number, at);
    at = member.ranks.end;
    const bool holder =
        member.source == StateSource::keep || member.source == StateSource::apply_voted;
    from_state |= holder;
    if (holder) parts |= bits_of(member.held);
  }
  require(!from_state || parts == kAllParts, "generation {} starts without all parts of the state",
          plan.number);
  require(at == virtual_ranks_, "generation {}: virtual rank {} has no host", plan.number, at);
  if (from_state) {
    // A member that was lost may have taken along the only copy of a part of the newest state.
    // Where nobody alive has applied that step, all go back to the one before.
    const int64_t lost = copies_ < static_cast<size_t>(options_.max_workers) ? 1 : 0;
    require(plan.start >= max_committed_ - lost, "generation {} starts at {}, but {} was committed",
            plan.number, plan.start, max_committed_);
    max_committed_ = std::min(max_committed_, plan.start);
    result_.redone += std::max<int64_t>(max_begun_ + 1 - plan.start, 0);
    // One fault costs one step at most. Only a second one, of the single survivor that held the
    // reduction of a step not committed yet, can cost that step, too.
    require(max_begun_ + 1 - plan.start <= lost + std::max<int64_t>(1, faults_since_commit_),
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

void ModelJob::check_state(WorkerId id, const Process& process) {
  require(process.state_step >= 0 && process.state_step <= steps_ &&
              process.state == truth_[static_cast<size_t>(process.state_step)],
          "worker {} has a wrong state of step {}", id, process.state_step);
}

// Who goes on in a generation, or is done there, comes to no meeting of it any more: one that has
// not come by then would wait for it for ever.
void ModelJob::check_meeting(WorkerId id, const Process& process) {
  const WorkerPhase phase = process.machine.phase();
  if (phase != WorkerPhase::running && phase != WorkerPhase::done) return;
  const Generation generation = process.machine.generation();
  for (const Member& member : plans_.at(generation).members)
    require(met_[generation].contains(member.worker),
            "worker {} goes on in generation {}, which worker {} has not come to", id, generation,
            member.worker);
}

// A step is committed when all members of a generation voted for it. A generation that was followed
// by another never commits one that the other does not start after.
void ModelJob::check_commit(WorkerId id, const Apply& command) {
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

int64_t ModelJob::newest_good() const {
  for (auto it = published_.rbegin(); it != published_.rend(); ++it)
    if (bad_.count(it->first) == 0) return it->first;
  return -1;
}

void ModelJob::publish(const PublishCheckpoint& command) {
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

void ModelJob::crash_controller() {
  say("--- controller dies");
  controller_.reset();
  unheard_.clear();
  nap_until_ = now_;
  schedule(now_ + span(1'000, 150'000), Kind::restart);
}

void ModelJob::restart_controller() {
  say("--- controller restarts");
  ++result_.restarts;
  Outcome first;
  options_.checkpoints.clear();
  for (const auto& [step, state] : published_) options_.checkpoints.push_back(step);
  controller_.emplace(
      Membership::restore(options_, parse_json(dump_json(stored_->save())), now_, first));
  tick_at_ = Time{-1};
  carry_out(first);
  // Its launcher finds out what became of the processes; the publication it left open is settled.
  for (const auto& [id, process] : processes_)
    if (!process->alive) to_controller_in(span(100, 5'000), WorkerExited{id, 0, 9});
}

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
    case Mutation::record_is_not_read:
      return "record_is_not_read";
    case Mutation::promise_is_not_kept:
      return "promise_is_not_kept";
    case Mutation::votes_are_forgotten:
      return "votes_are_forgotten";
    case Mutation::refusals_are_damage:
      return "refusals_are_damage";
    case Mutation::parts_are_claimed:
      return "parts_are_claimed";
    case Mutation::nobody_is_met:
      return "nobody_is_met";
  }
  return "?";
}

ModelJobResult run_model_job(uint64_t seed, Mutation mutation, bool trace) {
  return ModelJob(seed, mutation, trace).run();
}

}  // namespace ductile::control
