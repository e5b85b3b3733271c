// The workers with their step loops, the network between them, and the faults.
#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/control/testing/model_job_impl.h"

namespace ductile::control {

// ---- Workers.

void ModelJob::launch(const LaunchWorker& command) {
  require(processes_.count(command.worker) == 0, "worker id {} was given twice", command.worker);
  if (now_ < hosts_away_until_)
    return to_controller_in(span(100, 500), LaunchFailed{command.worker, "nobody answers", true});
  host_of_[command.worker] = choose_host(command);
  if (chance(launch_failure_)) {
    const bool held = command.worker % 2 == 0;  // by workers of the job
    if (chance(0.7))
      to_controller_in(span(100, 3'000), LaunchFailed{command.worker, "no room", held, held});
  } else {
    schedule(now_ + span(500, 3'000), Kind::born, command.worker);
  }
}

// Hosts to avoid are taken where the others are full.
std::string ModelJob::choose_host(const LaunchWorker& command) {
  std::vector<std::string> others;
  for (const std::string& host : hosts_)
    if (std::ranges::find(command.avoid, host) == command.avoid.end()) others.push_back(host);
  const bool full = any_alive() && hosts_rng_.uniform() < 0.3f;
  const std::vector<std::string>& from = others.empty() || full ? hosts_ : others;
  return from[hosts_rng_.below(static_cast<uint32_t>(from.size()))];
}

bool ModelJob::any_alive() const {
  return std::ranges::any_of(processes_, [](const auto& p) { return p.second->alive; });
}

void ModelJob::be_born(WorkerId id) {
  if (processes_.count(id) != 0 && !processes_[id]->alive) return;
  WorkerOptions options;
  options.worker = id;
  options.address = "w";
  options.heartbeat = milliseconds(30);
  options.lease = worker_lease_;
  auto& born = processes_[id];
  born = std::make_unique<Process>(options);
  feed_worker(id, *born, Beat{});
  Time load = load_time_ + span(0, 5'000);
  if (!healed_ && chance(slow_join_)) load += span(20'000, 400'000);
  const bool sick = !sick_host_.empty() && host_of_[id] == sick_host_;
  schedule(now_ + load, Kind::to_worker, id, 0,
           sick ? WorkerEvent{JobError{"no data here"}} : WorkerEvent{Loaded{}});
}

// What it finds is as old as the look, and may come late.
void ModelJob::look_at_record(WorkerId id, Process& process) {
  if (!read_records_ || !process.machine.misses_controller(now_)) return;
  const RecordRead read{now_, process.machine.generation()};
  if (mutation_ == Mutation::record_is_not_read || may_go_on(record_, id, read.generation))
    schedule(now_ + Time{hosts_rng_.below(60'000)}, Kind::to_worker, id, 0, WorkerEvent{read});
}

Process* ModelJob::living(WorkerId id) {
  const auto found = processes_.find(id);
  return found != processes_.end() && found->second->alive ? found->second.get() : nullptr;
}

void ModelJob::feed_worker(WorkerId id, Process& process, const WorkerEvent& event) {
  if (const auto* received = std::get_if<InstructionReceived>(&event);
      received != nullptr && mutation_ == Mutation::promise_is_not_kept) {
    if (const auto* halt = std::get_if<Halt>(&received->instruction.what);
        halt != nullptr && process.machine.phase() == WorkerPhase::running) {
      WorkerStatus lie;
      lie.worker = id;
      lie.sequence = 1'000'000 + order_;
      lie.phase = WorkerPhase::halted;
      lie.generation = process.machine.generation();
      lie.promised = halt->generation;
      lie.step = process.machine.step();
      lie.voted = process.machine.voted();
      to_controller_in(delay(), WorkerReported{lie, host_of_[id]});
      return;
    }
  }
  if (trace_) {
    const auto* received = std::get_if<InstructionReceived>(&event);
    if (received != nullptr && !std::holds_alternative<Ack>(received->instruction.what))
      say("worker {} hears {}", id, dump_json(to_json(received->instruction)));
  }
  std::vector<WorkerCommand> commands = process.machine.apply(event, now_);
  for (WorkerCommand& command : commands) {
    if (!process.alive) return;
    carry_out(id, process, command);
  }
  check_meeting(id, process);
  const Time next = process.machine.next_deadline();
  if (process.alive && process.beat_at < now_) {
    process.beat_at = next;
    schedule(next, Kind::beat, id);
  }
}

void ModelJob::carry_out(WorkerId id, Process& process, WorkerCommand& command) {
  if (auto* send = std::get_if<SendStatus>(&command)) {
    if (mutation_ == Mutation::votes_are_forgotten) send->report.voted = false;
    if (cut(id, 0) || chance(loss_)) return;
    if (chance(doubling_))
      to_controller_in(delay() * 4, WorkerReported{send->report, host_of_[id]});
    to_controller_in(delay(), WorkerReported{std::move(send->report), host_of_[id]});
  } else if (auto* restore = std::get_if<Restore>(&command)) {
    restore_state(id, process, *restore);
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
    if (vote->gather == CastVote::Gather::at_leader) message.writer = kAtLeader;
    if (vote->gather == CastVote::Gather::here)
      message.writer =
          1 + static_cast<size_t>(process.plan->find(id) - process.plan->members.data());
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
    after_apply(id, process, *apply);
  } else if (auto* abandon = std::get_if<Abandon>(&command)) {
    close_connections(id, process);
    ++process.token;
    process.writer = 0;
    process.restoring = false;
    loop_event(id, process, span(10, 3'000), Abandoned{abandon->generation});
  } else if (auto* write = std::get_if<WriteCheckpoint>(&command)) {
    require(process.state_step == write->step, "worker {} saves {} but has {}", id, write->step,
            process.state_step);
    require(process.held == kAllParts || process.on_disk == kAllParts,
            "worker {} saves without all parts", id);
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

void ModelJob::run_step(WorkerId id, Process& process, const RunStep& command) {
  ++process.token;
  process.plan = command.plan;
  process.step = command.step;
  process.restoring = false;
  process.contributed.assign(command.plan->members.size(), false);
  process.voted.assign(command.plan->members.size(), false);
  process.sums.assign(static_cast<size_t>(virtual_ranks_), 0);
  process.stop = 0;
  process.writer = 0;
  process.on_disk = 0;
  require((parts_of(*command.plan, id) & ~process.held) == 0,
          "worker {} runs step {} without its parts", id, command.step);
  require(process.state_step == command.step, "worker {} runs step {} with state {}", id,
          command.step, process.state_step);
  if (plans_.rbegin()->first == command.plan->number)
    max_begun_ = std::max(max_begun_, command.step);
  const int64_t share = command.plan->find(id)->ranks.size() * 1000 / virtual_ranks_;
  Time takes = Time{step_time_.count() * share / 1000} + span(100, 2'000);
  if (chance(slow_)) takes += span(1'000, 30'000);
  if (process.refused_until > now_)
    return loop_event(id, process, takes / 2, Faulted{command.plan->number, "no descriptors"});
  schedule(now_ + takes, Kind::computed, id, process.token);
  schedule(now_ + takes + data_deadline_, Kind::stalled, id, process.token);
  look_at_early(id, process);
}

void ModelJob::restore_state(WorkerId id, Process& process, const Restore& command) {
  ++process.token;
  process.plan = command.plan;
  process.restoring = true;
  process.writer = 0;
  process.on_disk = 0;
  met_[command.plan->number].insert(id);
  const int64_t start = command.plan->start;
  const StateSource source = command.self.source;
  if (source == StateSource::keep || source == StateSource::apply_voted) {
    require(process.state_step == start, "worker {} keeps state {}, not {}", id, process.state_step,
            start);
    if (mutation_ == Mutation::nobody_is_met)
      return loop_event(id, process, Time{1},
                        Restored{command.plan->number, start, start == steps_, kNumParts,
                                 control::parts_of(process.held)});
    return exchange_parts(id, process);
  }
  process.state_step = -1;
  process.held = 0;
  if (source == StateSource::peer) return exchange_parts(id, process);
  if (process.refused_until > now_) {
    WorkerEvent answer = Faulted{command.plan->number, "no descriptors"};
    if (mutation_ == Mutation::refusals_are_damage)
      answer = RestoreFailed{command.plan->number, "no descriptors"};
    return loop_event(id, process, span(100, 2'000), std::move(answer));
  }
  if (source == StateSource::checkpoint) {
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
  process.held = kAllParts;
  check_state(id, process);
  exchange_parts(id, process);
}

// ---- Parts.

// The members that host virtual ranks share the parts evenly; each part is at its owner and at so
// many after it as there are copies. At the end of the job the leader has all, or each has its own.
uint32_t ModelJob::parts_of(const GenerationPlan& plan, WorkerId id) const {
  if (plan.start == steps_ && plan.members[0].worker == id && !ends_in_parts_) return kAllParts;
  std::vector<WorkerId> hosts;
  for (const Member& member : plan.members)
    if (member.ranks.size() > 0) hosts.push_back(member.worker);
  const auto n = static_cast<int64_t>(hosts.size());
  uint32_t bits = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    for (size_t c = 0; c < std::min(copies_, hosts.size()); ++c)
      if (hosts[(i + c) % hosts.size()] == id)
        bits |= bits_of({{kNumParts * at / n, kNumParts * (at + 1) / n}});
  }
  return bits;
}

namespace {

// What each member of a plan brings along is known to all.
uint32_t brought(const Member& member) {
  const bool anew =
      member.source == StateSource::checkpoint || member.source == StateSource::initial;
  return anew ? kAllParts : bits_of(member.held);
}

}  // namespace

// All members bring the parts to where the plan wants them: what each is told is enough to know who
// sends what to whom. They meet for it: each hears from each, were it that it gets nothing.
void ModelJob::exchange_parts(WorkerId id, Process& process) {
  const GenerationPlan& plan = *process.plan;
  process.fed = plan.find(id)->source != StateSource::peer;
  process.missing = parts_of(plan, id) & ~process.held;
  process.arrived = 0;
  process.waits_for.clear();
  for (const Member& to : plan.members) {
    if (to.worker == id) continue;
    process.waits_for.insert(to.worker);
    DataMessage message;
    message.what = DataMessage::What::parts;
    message.generation = plan.number;
    message.step = plan.start;
    message.from = id;
    if (process.fed) message.state = process.state;
    const uint32_t wanted = parts_of(plan, to.worker) & ~brought(to);
    for (int64_t p = 0; p < kNumParts; ++p) {
      const uint32_t bit = 1u << p;
      if ((wanted & bit) == 0) continue;
      const auto source = std::ranges::find_if(
          plan.members, [&](const Member& m) { return (brought(m) & bit) != 0; });
      if (source->worker == id) message.parts |= bit;
    }
    require((message.parts & ~process.held) == 0, "worker {} is to give parts it does not have",
            id);
    send_data(id, to.worker, message);
  }
  schedule(now_ + data_deadline_, Kind::stalled, id, process.token);
  look_at_early(id, process);
  if (process.restoring && process.waits_for.empty()) parts_arrived(id, process, {});
}

void ModelJob::parts_arrived(WorkerId id, Process& process, const DataMessage& message) {
  process.waits_for.erase(message.from);
  process.arrived |= message.parts;
  if (!process.fed && message.from == process.plan->find(id)->feeder) process.state = message.state;
  if (mutation_ == Mutation::parts_are_claimed && process.fed && chance(0.2))
    process.waits_for.clear();
  if (!process.waits_for.empty()) return;
  process.missing &= ~process.arrived;
  process.held |= process.arrived;  // those of an exchange that fails are dropped
  const StateSource source = process.plan->find(id)->source;
  if (source == StateSource::checkpoint || source == StateSource::initial)
    process.held = parts_of(*process.plan, id);
  require(process.missing == 0 || mutation_ == Mutation::parts_are_claimed,
          "worker {} did not get all parts", id);
  const int64_t start = process.plan->start;
  process.fed = true;
  process.state_step = start;
  ++process.token;
  check_state(id, process);
  const uint32_t claimed =
      mutation_ == Mutation::parts_are_claimed ? process.held | process.missing : process.held;
  process.missing = 0;
  if (start == steps_ && ends_in_parts_) {
    process.applied = Restored{process.plan->number, start, true};
    return end_in_parts(id, process);
  }
  loop_event(id, process, span(100, 5'000),
             Restored{process.plan->number, start, start == steps_, kNumParts,
                      control::parts_of(claimed)});
}

// The parts go to the worker that all votes agreed on; who only catches up gathers nothing.
void ModelJob::after_apply(WorkerId id, Process& process, const Apply& command) {
  const bool done = command.step + 1 == steps_;
  process.applied = Restored{command.generation, command.step + 1, done};
  process.held = process.next;
  const bool together = process.plan && process.plan->number == command.generation &&
                        process.step == command.step && !process.restoring;
  size_t writer = together ? std::exchange(process.writer, 0) : 0;
  const bool ends = together && (done || writer == kAtLeader);
  if (ends && ends_in_parts_) return end_in_parts(id, process);
  if (ends) writer = 1;
  process.gathers_on_disk = false;
  if (writer != 0) {
    const WorkerId to = process.plan->members[writer - 1].worker;
    DataMessage message;
    message.what = DataMessage::What::gathered;
    message.generation = command.generation;
    message.step = command.step + 1;
    message.from = id;
    message.parts = process.held;
    if (to == id) {
      process.gathering = true;
      schedule(now_ + data_deadline_, Kind::stalled, id, process.token);
      look_at_early(id, process);
      if (process.held == kAllParts && process.gathering) end_gathering(id, process);
      return;
    }
    send_data(id, to, message);
    // As long as the leader does not have all parts, the job is not done here either.
  }
  process.applied.num_parts = kNumParts;
  process.applied.held = control::parts_of(process.held);
  loop_event(id, process, span(50, 800), process.applied);
}

// All members, which write what they hold before they say that the step is done.
void ModelJob::end_in_parts(WorkerId id, Process& process) {
  const WorkerId leader = process.plan->members.front().worker;
  if (leader != id) {
    DataMessage message;
    message.what = DataMessage::What::gathered;
    message.generation = process.plan->number;
    message.step = process.state_step;
    message.from = id;
    message.parts = process.held;
    send_data(id, leader, message);
    return end_gathering(id, process);
  }
  process.gathers_on_disk = true;
  process.on_disk = process.held;
  process.gathering = true;
  schedule(now_ + data_deadline_, Kind::stalled, id, process.token);
  look_at_early(id, process);
  if (process.on_disk == kAllParts && process.gathering) end_gathering(id, process);
}

void ModelJob::end_gathering(WorkerId id, Process& process) {
  process.gathering = false;
  ++process.token;
  process.applied.can_save = process.applied.on_disk = process.on_disk == kAllParts;
  process.applied.num_parts = kNumParts;
  process.applied.held = control::parts_of(process.held);
  loop_event(id, process, span(50, 800), process.applied);
}

void ModelJob::send_data(WorkerId from, WorkerId to, DataMessage message) {
  if (from != to && (cut(from, to) || chance(loss_ * 0.3))) return;
  const Time takes = from == to ? Time{0} : delay();
  schedule(now_ + takes, Kind::data, to, 0, message);
}

void ModelJob::look_at_early(WorkerId id, Process& process) {
  std::vector<DataMessage> early = std::move(process.early);
  process.early.clear();
  for (const DataMessage& message : early) take_data(id, process, message);
}

void ModelJob::take_data(WorkerId id, Process& process, const DataMessage& message) {
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
  if (message.what == DataMessage::What::parts) {
    if (!here || !process.restoring || message.generation != current) return later();
    if (process.waits_for.count(message.from) != 0) parts_arrived(id, process, message);
    return;
  }
  if (message.what == DataMessage::What::gathered) {
    if (message.generation != current || message.step != process.state_step || !process.gathering)
      return later();
    uint32_t& gathered = process.gathers_on_disk ? process.on_disk : process.held;
    gathered |= message.parts;
    if (gathered == kAllParts) end_gathering(id, process);
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
    process.next = parts_of(*process.plan, id);
    loop_event(id, process, Time{0},
               Reduced{current, process.step, control::parts_of(process.next)});
  } else {
    process.voted[from] = true;
    // One word, as the real votes are: a wish to stop hides wishes to save.
    std::tie(process.stop, process.writer) =
        std::max(std::pair(process.stop, process.writer), std::pair(message.stop, message.writer));
    if (std::find(process.voted.begin(), process.voted.end(), false) == process.voted.end())
      loop_event(id, process, Time{0}, AllVoted{current, process.step, process.stop});
  }
}

// The peers' transports notice, unless the network keeps it from them.
void ModelJob::close_connections(WorkerId id, Process& process) {
  if (!process.plan) return;
  for (const Member& member : process.plan->members) {
    Process* peer = living(member.worker);
    if (peer == nullptr || member.worker == id || cut(id, member.worker) || chance(loss_)) continue;
    schedule(now_ + delay(), Kind::to_worker, member.worker, 0,
             WorkerEvent{PeerLost{process.plan->number, {id}, "a peer closed its connection"}});
  }
}

void ModelJob::kill(WorkerId id, bool confirmed, int64_t signal) {
  Process* process = living(id);
  if (process == nullptr) return;
  say("--- worker {} ends ({})", id, signal);
  process->alive = false;
  close_connections(id, *process);
  if (!cut(id, 0) && chance(0.7)) to_controller_in(delay(), ConnectionClosed{id});
  if (confirmed || !chance(unconfirmed_))
    to_controller_in(span(100, 3'000), WorkerExited{id, signal == 0 ? 0 : 0, signal});
}

// ---- Network and faults.

bool ModelJob::cut(WorkerId from, WorkerId to) {
  for (const Cut& c : cuts_)
    if (c.from == from && c.to == to && now_ < c.until) return true;
  return false;
}

Time ModelJob::delay() {
  if (chance(slow_)) return span(1'000, 40'000);
  return span(30, 500);
}

WorkerId ModelJob::any_worker() {
  std::vector<WorkerId> alive;
  for (const auto& [id, process] : processes_)
    if (process->alive) alive.push_back(id);
  return alive.empty() ? 0 : alive[rng_.below(static_cast<uint32_t>(alive.size()))];
}

void ModelJob::inject() {
  ++faults_since_commit_;
  const uint32_t kind = rng_.below(15);
  const WorkerId victim = any_worker(), other = any_worker();
  const Time until = now_ + span(5'000, 150'000);
  const auto request = [&](Event event) {
    if (controller_) feed_controller(event);
  };
  if ((kind <= 7 || kind == 14) && victim == 0) return;
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
      request(ResizeJob{between(options_.min_workers, options_.max_workers),
                        chance(0.3) ? std::vector<WorkerId>{victim} : std::vector<WorkerId>()});
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
      // Where the only one goes bad the job ends, and rightly; that is another test's.
      if (published_.size() - bad_.size() < 2 || !chance(0.5)) break;
      say("--- the checkpoint of step {} goes bad", newest_good());
      bad_.insert(newest_good());
      break;
    case 14:
      say("--- the host of worker {} refuses everything until {} ms", victim, until.count() / 1000);
      living(victim)->refused_until = std::min(until, faults_end_);
      break;
  }
}

}  // namespace ductile::control
