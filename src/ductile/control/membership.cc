#include "ductile/control/membership.h"

#include <algorithm>

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include "ductile/base/error.h"
#include "ductile/control/membership_impl.h"

namespace ductile::control {

Membership::Membership(MembershipOptions options) : state_(std::make_unique<State>()) {
  if (options.virtual_ranks < 1)
    fail(ErrorCode::invalid_argument, "a job has at least 1 virtual rank, not {}",
         options.virtual_ranks);
  if (options.max_workers == 0) options.max_workers = options.virtual_ranks;
  if (options.min_workers < 1 || options.max_workers < options.min_workers ||
      options.max_workers > options.virtual_ranks)
    fail(
        ErrorCode::invalid_argument,
        "{} to {} workers for {} virtual ranks: the minimum is at least 1, the maximum at most the "
        "number of virtual ranks",
        options.min_workers, options.max_workers, options.virtual_ranks);
  if (!options.rank_hosts.empty() && std::ssize(options.rank_hosts) != options.virtual_ranks)
    fail(ErrorCode::invalid_argument, "{} virtual ranks, and hosts for {}", options.virtual_ranks,
         options.rank_hosts.size());
  state_->checkpoints = std::move(options.checkpoints);
  state_->granted = options.last_generation;
  state_->high_water = std::max<int64_t>(0, state_->newest_checkpoint());
  state_->spent = options.spent;
  state_->options = std::move(options);
}

Membership::~Membership() = default;
Membership::Membership(const Membership& other) : state_(std::make_unique<State>(*other.state_)) {}
Membership::Membership(Membership&&) noexcept = default;
Membership& Membership::operator=(const Membership& other) {
  state_ = std::make_unique<State>(*other.state_);
  return *this;
}
Membership& Membership::operator=(Membership&&) noexcept = default;

Outcome Membership::apply(const Event& event, Time now) {
  return state_->apply(std::span(&event, 1), now);
}
Outcome Membership::apply(std::span<const Event> events, Time now) {
  return state_->apply(events, now);
}
Time Membership::next_deadline() const { return state_->wake; }
Phase Membership::phase() const { return state_->phase; }
const std::string& Membership::reason() const { return state_->reason; }
int64_t Membership::wanted_workers() const { return state_->wanted; }
const GenerationPlan& Membership::generation() const { return *state_->plan; }
int64_t Membership::step() const { return state_->high_water; }
bool Membership::crashed() const {
  return state_->phase == Phase::failed && state_->crashes > 0 && state_->too_many_failures();
}
ErrorCode Membership::error_code() const { return state_->error_code; }
int64_t Membership::unsaved_steps() const {
  const bool ends = state_->phase == Phase::preempting || state_->phase == Phase::preempted;
  return ends ? state_->unsaved_steps : 0;
}
bool Membership::result_unsaved() const {
  return state_->phase == Phase::failed && state_->result_unsaved;
}
int64_t Membership::checkpoint() const { return state_->newest_checkpoint(); }
Time Membership::longest_save() const { return state_->longest_save; }

run::Cost Membership::cost() const {
  run::Cost sum = state_->spent;
  for (const auto& [id, worker] : state_->workers) {
    sum.core_seconds += worker.report.cost.core_seconds;
    sum.peak_rss_bytes = std::max(sum.peak_rss_bytes, worker.report.cost.peak_rss_bytes);
  }
  return sum;
}

void Membership::saved(Time now) { state_->note_saved(now); }

Outcome Membership::State::apply(std::span<const Event> events, Time at) {
  now = std::max(now, at);
  note_saved(now);
  out = {};
  for (const Event& event : events) std::visit([&](const auto& e) { on(e); }, event);
  reconcile();
  if (out.must_save) unsaved_since = now;
  return std::move(out);
}

// A worker that hears nobody reads what was saved (may_go_on()), so what it may do no more counts
// from when that was on the disk, however long this took.
void Membership::State::note_saved(Time at) {
  if (!unsaved_since) return;
  for (auto& [id, worker] : workers)
    if (worker.doomed && worker.doomed_at >= *unsaved_since) worker.doomed_at = at;
  if (change && !change->saved_at) change->saved_at = at;
  unsaved_since.reset();
}

void Membership::State::reconcile() {
  // Every rule looks at the state alone. A decision may enable a rule that was looked at before it;
  // the bound is a guard against two rules that undo each other.
  int rounds = 0;
  do {
    DUCTILE_CHECK(++rounds <= 50, "membership rules do not settle in phase {}", to_string(phase));
    again = false;
    wake = Time::max();
    check_timeouts();
    if (winding_down) {
      settle();
    } else if (active()) {
      launch_and_trim();
      drive_change();
      drive_saves();
    }
  } while (again);
}

// ---- Helpers.

bool Membership::State::active() const {
  return phase == Phase::starting || phase == Phase::running || phase == Phase::resizing ||
         phase == Phase::preempting || phase == Phase::finishing;
}

bool Membership::State::due(Time at) {
  if (now >= at) return true;
  wake = std::min(wake, at);
  return false;
}

void Membership::State::note(std::string event, std::string text) {
  out.commands.emplace_back(Note{std::move(event), std::move(text)});
}

void Membership::State::refuse(std::string_view request) {
  note("refused", fmt::format("{}: the job is {}{}{}", request, to_string(phase),
                              reason.empty() ? "" : ": ", reason));
}

void Membership::State::tell(WorkerRecord& worker,
                             std::variant<Ack, Halt, Enter, Save, Stop> what) {
  if (!std::holds_alternative<Ack>(what)) worker.told_at = now;
  send(worker.id, std::move(what));
}

void Membership::State::send(WorkerId to, std::variant<Ack, Halt, Enter, Save, Stop> what) {
  SendInstruction command;
  command.instruction.controller = incarnation;
  command.instruction.worker = to;
  command.instruction.what = std::move(what);
  out.commands.emplace_back(std::move(command));
}

void Membership::State::set_phase(Phase next, std::string why) {
  if (phase == next) return;
  note("phase", fmt::format("{} -> {}: {}", to_string(phase), to_string(next), why));
  phase = next;
  reason = std::move(why);
  out.must_save = true;
  again = true;
}

WorkerRecord* Membership::State::find(WorkerId id) {
  const auto found = workers.find(id);
  return found == workers.end() ? nullptr : &found->second;
}

void Membership::State::forget(WorkerId id) {
  const auto found = workers.find(id);
  if (found == workers.end()) return;
  const run::Cost& cost = found->second.report.cost;
  spent.core_seconds += cost.core_seconds;
  spent.peak_rss_bytes = std::max(spent.peak_rss_bytes, cost.peak_rss_bytes);
  workers.erase(found);
  out.must_save = true;
}

// Every worker reads the counters of its whole machine, so one of each host counts: the first that
// reports, and when that one is gone another, from where it stood then.
void Membership::State::count_energy(const WorkerStatus& report, const WorkerRecord& before,
                                     const std::string& host) {
  if (!report.cost.energy_joules) spent.energy_joules.reset();
  if (!spent.energy_joules) return;
  WorkerId& meter = meters[host];
  if (find(meter) == nullptr) meter = report.worker;
  if (meter != report.worker) return;
  const double more = *report.cost.energy_joules - before.report.cost.energy_joules.value_or(0);
  *spent.energy_joules += std::max(0.0, more);
}

int64_t Membership::State::max_workers() const { return options.max_workers; }

// ---- Requests.

bool Membership::State::count_in_range(int64_t count) {
  if (count >= options.min_workers && count <= max_workers()) return true;
  note("refused", fmt::format("{} workers: this job runs with {} to {}", count, options.min_workers,
                              max_workers()));
  return false;
}

void Membership::State::on(const StartJob& event) {
  if (phase != Phase::queued) return refuse("start");
  if (!count_in_range(event.workers)) return;
  wanted = event.workers;
  set_phase(Phase::starting, fmt::format("start with {} asked for", counted_workers(wanted)));
}

void Membership::State::on(const ResizeJob& event) {
  if (phase == Phase::finished || phase == Phase::failed) return refuse("resize");
  if (!count_in_range(event.workers)) return;
  for (auto& [id, worker] : workers) {
    const bool goes = std::ranges::find(event.leave, id) != event.leave.end();
    if (worker.sent_away == goes) continue;
    worker.sent_away = goes;
    note("resize", fmt::format("worker {} is to {}", id, goes ? "make room" : "stay after all"));
    out.must_save = true;
  }
  launch_failures = 0;  // there may be other places now
  next_launch = now;
  if (wanted == event.workers) return;
  note("resize", fmt::format("from {} to {} asked for", wanted, counted_workers(event.workers)));
  wanted = event.workers;
  out.must_save = true;
}

void Membership::State::on(const PreemptJob&) {
  if (phase == Phase::preempting) {
    resume_after = false;
    return;
  }
  if (phase == Phase::finishing && !winding_down && !last_save_error.empty()) {
    set_phase(Phase::preempting, "preemption asked for");
    preempt_without_saving(done_worker());
    return;
  }
  if (phase != Phase::starting && phase != Phase::running && phase != Phase::resizing)
    return refuse("preempt");
  preempt_since = now;
  unsaved_steps = 0;
  next_save = now;
  set_phase(Phase::preempting, "preemption asked for");
}

void Membership::State::on(const ResumeJob& event) {
  if (event.workers != 0 && !count_in_range(event.workers)) return;
  if (phase != Phase::preempted && phase != Phase::preempting && phase != Phase::failed)
    return refuse("resume");
  if (event.workers != 0) wanted = event.workers;
  out.must_save = true;
  if (winding_down) {
    resume_after = true;
    return;
  }
  failures = crashes = 0;
  barren = 0;
  hosts_away = begin_errors = launch_failures = 0;
  places_held = false;
  troubled.clear();
  next_try = next_begin = next_launch = now;
  ran = ran && phase == Phase::preempting;
  set_phase(ran ? Phase::running : Phase::starting,
            fmt::format("resume with {} asked for", counted_workers(wanted)));
}

void Membership::State::on(const StopJob& event) {
  if (phase == Phase::finished || phase == Phase::failed) return refuse("stop");
  fail_job(event.reason);
}

void Membership::State::on(const SaveJob&) {
  if (!active()) return refuse("save");
  save_asked = true;
  next_save = now;
}

// ---- What happens to workers.

namespace {

std::string end_of(const WorkerExited& event, bool asked) {
  if (event.signal != 0) {
    const char* name = ::sigabbrev_np(static_cast<int>(event.signal));
    return fmt::format(
        "was killed by SIG{} ({}){}", name ? name : "?", event.signal,
        event.signal == SIGKILL && !asked ? "; the kernel does this when memory runs out" : "");
  }
  if (event.code < 0) return "is gone";
  if (event.code > 0 || asked) return fmt::format("exited with code {}", event.code);
  return "exited with code 0 although it was to go on: something in it, such as a model of your "
         "own, ended the process";
}

}  // namespace

void Membership::State::on(const LaunchFailed& event) {
  WorkerRecord* worker = find(event.worker);
  if (worker == nullptr || worker->connected) return;
  const bool asked = worker->doomed;
  forget(event.worker);
  if (!asked) launch_later();
  if (!asked) places_held = event.no_room;
  if (event.no_host && hosts_away > 0 && !asked) return wait_for_hosts(event.text);
  note("launch_failed", fmt::format("worker {}: {}", event.worker, event.text));
  if (asked) return;
  if (event.no_host) return wait_for_hosts(event.text);
  // As long as others train, a place that cannot be filled is no failure of the job.
  if (!change && broken().empty()) {
    last_failure = event.text;
    return;
  }
  record_failure(fmt::format("worker {} could not be launched: {}", event.worker, event.text));
}

void Membership::State::on(const WorkerExited& event) {
  WorkerRecord* worker = find(event.worker);
  if (worker == nullptr) return;
  const bool asked = worker->doomed || (worker->leaving() && event.code == 0);
  const std::string how = end_of(event, asked);
  note(asked ? "left" : "lost", fmt::format("worker {} {}", event.worker, how));
  forget(event.worker);
  if (asked) return place_is_free();
  record_failure(fmt::format("worker {} {}", event.worker, how), Failure::crash);
}

void Membership::State::on(const ConnectionClosed& event) {
  WorkerRecord* worker = find(event.worker);
  if (worker == nullptr || !worker->reachable) return;
  worker->reachable = false;
  if (worker->doomed) return;  // it was told to stop, and does
  note("unreachable", fmt::format("worker {} closed its connection", event.worker));
}

void Membership::State::on(const WorkerReported& event) {
  const WorkerStatus& report = event.report;
  WorkerRecord* worker = find(report.worker);
  if (worker == nullptr) {
    send(report.worker, Stop{"the job does not know this worker (any more)"});
    return;
  }
  if (worker->connected && report.sequence <= worker->report.sequence) return;
  const bool was_loaded = worker->loaded();
  count_energy(report, *worker, event.host);
  worker->report = report;
  if (!event.host.empty()) worker->host = event.host;
  worker->connected = true;
  worker->heard_at = now;
  if (worker->doomed) {
    tell(*worker, Stop{"replaced, or no longer needed"});
    return;
  }
  worker->reachable = true;
  worker->acked_at = now;
  tell(*worker, Ack{report.sequence});
  hosts_away = 0;
  if (!report.error.empty()) {
    // Of an only worker the user need not know that there is one.
    const std::string where = !event.host.empty()
                                  ? fmt::format("worker {} on host {}: ", report.worker, event.host)
                              : wanted > 1 ? fmt::format("worker {}: ", report.worker)
                                           : "";
    const std::string text = where + report.error;
    const bool took_part = report.generation > 0 || plan->find(report.worker) != nullptr;
    return took_part ? fail_job(text, report.error_code) : cannot_begin(*worker, event.host, text);
  }
  if (!was_loaded && worker->loaded()) {
    worker->ready_at = now;
    launch_failures = 0;
    places_held = false;
    next_launch = now;
    troubled.erase(event.host);
    begin_errors = 0;
    next_begin = now;
  }
  if (report.step > high_water) {
    high_water = report.step;
    failures = crashes = 0;
    barren = 0;
    next_try = now;
  }
  if (report.unreadable >= 0 && report.generation == plan->number)
    drop_unreadable(report.unreadable, report.note);
  take_save_status(*worker);
  repeat_instructions(*worker);
}

// What the report shows not to have been followed, though there was time.
void Membership::State::repeat_instructions(WorkerRecord& worker) {
  if (now < worker.told_at + options.resend) return;
  const bool member = plan->find(worker.id) != nullptr;
  if (change) {
    if (member && !worker.halted_for(change->number))
      tell(worker,
           Halt{change->number, change->at_boundary, change->reason, phase == Phase::preempting});
  } else if (member && worker.report.generation < plan->number) {
    tell(worker, Enter{plan, "repeated"});
  }
  if (save_task && save_task->worker == worker.id &&
      worker.report.save.attempt < save_task->attempt)
    tell_to_save(worker, "repeated");
}

}  // namespace ductile::control
