// Events and commands as JSON, and the controller's own state.
#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/control/json_impl.h"
#include "ductile/control/membership_impl.h"

namespace ductile::control {
namespace {

using nlohmann::json;

// The formats before: whole states were not in parts; and, before that, costs were not saved.
constexpr int64_t kFormat = 3, kWithoutParts = 2, kWithoutCosts = 1;

const Words<Phase> kPhases = {{Phase::queued, "queued"},         {Phase::starting, "starting"},
                              {Phase::running, "running"},       {Phase::resizing, "resizing"},
                              {Phase::preempting, "preempting"}, {Phase::preempted, "preempted"},
                              {Phase::finishing, "finishing"},   {Phase::finished, "finished"},
                              {Phase::failed, "failed"}};

json named(const char* kind, const char* name, json rest = json::object()) {
  rest[kind] = name;
  return rest;
}

struct EventWriter {
  json operator()(const StartJob& e) { return named("event", "start", {{"workers", e.workers}}); }
  json operator()(const ResizeJob& e) {
    return named("event", "resize", {{"workers", e.workers}, {"leave", e.leave}});
  }
  json operator()(const PreemptJob&) { return named("event", "preempt"); }
  json operator()(const ResumeJob& e) { return named("event", "resume", {{"workers", e.workers}}); }
  json operator()(const StopJob& e) { return named("event", "stop", {{"reason", e.reason}}); }
  json operator()(const SaveJob&) { return named("event", "save"); }
  json operator()(const LaunchFailed& e) {
    return named(
        "event", "launch_failed",
        {{"worker", e.worker}, {"text", e.text}, {"no_host", e.no_host}, {"no_room", e.no_room}});
  }
  json operator()(const WorkerExited& e) {
    return named("event", "worker_exited",
                 {{"worker", e.worker}, {"code", e.code}, {"signal", e.signal}});
  }
  json operator()(const ConnectionClosed& e) {
    return named("event", "connection_closed", {{"worker", e.worker}});
  }
  json operator()(const WorkerReported& e) {
    return named("event", "worker_reported", {{"report", to_json(e.report)}, {"host", e.host}});
  }
  json operator()(const CheckpointPublished& e) {
    return named("event", "checkpoint_published", {{"step", e.step}});
  }
  json operator()(const PublishFailed& e) {
    return named("event", "publish_failed", {{"step", e.step}, {"text", e.text}});
  }
  json operator()(const Tick&) { return named("event", "tick"); }
};

struct CommandWriter {
  json operator()(const LaunchWorker& c) {
    return named("command", "launch_worker",
                 {{"worker", c.worker}, {"reason", c.reason}, {"avoid", c.avoid}});
  }
  json operator()(const KillWorker& c) {
    return named("command", "kill_worker", {{"worker", c.worker}, {"reason", c.reason}});
  }
  json operator()(const SendInstruction& c) {
    return named("command", "send_instruction", {{"instruction", to_json(c.instruction)}});
  }
  json operator()(const PublishCheckpoint& c) {
    return named("command", "publish_checkpoint",
                 {{"worker", c.worker},
                  {"generation", c.generation},
                  {"step", c.step},
                  {"figures", to_json(c.figures)}});
  }
  json operator()(const Release& c) { return named("command", "release", {{"reason", c.reason}}); }
  json operator()(const Note& c) {
    return named("command", "note", {{"event", c.event}, {"text", c.text}});
  }
};

json save_worker(const WorkerRecord& worker) {
  return {{"report", to_json(worker.report)},
          {"connected", worker.connected},
          {"doomed", worker.doomed},
          {"sent_away", worker.sent_away}};
}

}  // namespace

std::string_view to_string(Phase phase) { return word_of(kPhases, phase); }

json to_json(const Event& event) { return std::visit(EventWriter{}, event); }
json to_json(const Command& command) { return std::visit(CommandWriter{}, command); }

Event event_from_json(const json& value) {
  const JsonFields in(value, "event");
  std::string name;
  in.read("event", name);
  const auto workers = [&] {
    int64_t count = 0;
    in.read("workers", count);
    return count;
  };
  const auto worker = [&] {
    WorkerId id = 0;
    in.read("worker", id);
    return id;
  };
  const auto step = [&] {
    int64_t at = 0;
    in.read("step", at);
    return at;
  };
  const auto text = [&] {
    std::string words;
    in.read("text", words);
    return words;
  };
  if (name == "start") return StartJob{workers()};
  if (name == "resize") {
    ResizeJob event{workers()};
    for (const json& entry : in.array("leave")) {
      if (!entry.is_number_unsigned())
        fail(ErrorCode::invalid_argument, "event: 'leave' is not a list of workers");
      event.leave.push_back(entry.get<WorkerId>());
    }
    return event;
  }
  if (name == "preempt") return PreemptJob{};
  if (name == "resume") return ResumeJob{workers()};
  if (name == "stop") {
    StopJob event;
    in.read("reason", event.reason);
    return event;
  }
  if (name == "save") return SaveJob{};
  if (name == "launch_failed") {
    LaunchFailed event{worker(), text()};
    in.read("no_host", event.no_host);
    in.read("no_room", event.no_room);
    return event;
  }
  if (name == "worker_exited") {
    WorkerExited event{worker(), 0, 0};
    in.read("code", event.code);
    in.read("signal", event.signal);
    return event;
  }
  if (name == "connection_closed") return ConnectionClosed{worker()};
  if (name == "worker_reported") {
    WorkerReported event{worker_status_from_json(in.at("report"))};
    in.read("host", event.host);
    return event;
  }
  if (name == "checkpoint_published") return CheckpointPublished{step()};
  if (name == "publish_failed") return PublishFailed{step(), text()};
  if (name == "tick") return Tick{};
  fail(ErrorCode::invalid_argument, "event: there is no event \"{}\"", name);
}

namespace {

PublishCheckpoint publication_from(const json& value, const char* where) {
  const JsonFields in(value, where);
  PublishCheckpoint out;
  in.read("worker", out.worker);
  in.read("generation", out.generation);
  in.read("step", out.step);
  if (in.has("figures"))  // earlier versions did not keep them
    out.figures = save_figures_from_json(in.at("figures"));
  return out;
}

[[noreturn]] void refuse_ranks(int64_t saved, int64_t now) {
  fail(ErrorCode::invalid_argument,
       "the saved controller state is of a job with {} virtual ranks, not {}: the number is fixed "
       "for the life of a job",
       saved, now);
}

}  // namespace

Command command_from_json(const json& value) {
  const JsonFields in(value, "command");
  std::string name;
  in.read("command", name);
  if (name == "launch_worker") {
    LaunchWorker command;
    in.read("worker", command.worker);
    in.read("reason", command.reason);
    for (const json& host : in.array("avoid")) {
      if (!host.is_string())
        fail(ErrorCode::invalid_argument, "command: 'avoid' is not a list of hosts");
      command.avoid.push_back(host.get<std::string>());
    }
    return command;
  }
  if (name == "kill_worker") {
    KillWorker command;
    in.read("worker", command.worker);
    in.read("reason", command.reason);
    return command;
  }
  if (name == "send_instruction")
    return SendInstruction{instruction_from_json(in.at("instruction"))};
  if (name == "publish_checkpoint") return publication_from(value, "command");
  if (name == "release") {
    Release command;
    in.read("reason", command.reason);
    return command;
  }
  if (name == "note") {
    Note command;
    in.read("event", command.event);
    in.read("text", command.text);
    return command;
  }
  fail(ErrorCode::invalid_argument, "command: there is no command \"{}\"", name);
}

namespace {

// A state that is not in parts is one that its worker holds all of.
void put_in_one_part(WorkerStatus& report) {
  if (report.step < 0 || report.num_parts > 0) return;
  report.num_parts = 1;
  report.held = {{0, 1}};
  if (report.voted) report.next = report.held;
}

WorkerRecord worker_from_json(const json& entry, int64_t format, const MembershipOptions& options,
                              Time now) {
  const JsonFields in(entry, "saved worker");
  WorkerRecord worker;
  json status = in.at("report");
  if (format == kWithoutCosts && status.is_object()) {
    status["cost"] = run::to_json(run::Cost{});
    status["error_code"] = ductile::to_string(ErrorCode::internal);
  }
  // States of earlier versions do not have it: no worker saved what others lacked.
  if (status.is_object() && !status.contains("can_save")) status["can_save"] = false;
  worker.report = worker_status_from_json(status);
  if (format <= kWithoutParts) put_in_one_part(worker.report);
  in.read("connected", worker.connected);
  in.read("doomed", worker.doomed);
  if (entry.contains("sent_away")) in.read("sent_away", worker.sent_away);
  worker.id = worker.report.worker;
  // Everyone is given time to report, and held for able to act until a lease from now ends.
  worker.reachable = worker.connected;
  worker.launched_at = worker.acked_at = worker.ready_at = worker.doomed_at = now;
  worker.heard_at = now + options.reattach - options.heartbeat_deadline;
  worker.told_at = now - options.resend;
  return worker;
}

// Why the job is in its phase, and if it failed, by what kind of error: states of earlier versions
// do not say it.
void read_reason(const JsonFields& in, const json& saved, std::string& reason, ErrorCode& code,
                 bool& result_unsaved, int64_t& unsaved_steps) {
  in.read("reason", reason);
  if (saved.contains("unsaved_steps")) in.read("unsaved_steps", unsaved_steps);
  if (saved.contains("result_unsaved")) in.read("result_unsaved", result_unsaved);
  std::string name(ductile::to_string(ErrorCode::internal));
  if (saved.contains("error_code")) in.read("error_code", name);
  code = error_code_from(name);
}

}  // namespace

// Times are not saved: they begin anew with the controller that restores.
json Membership::save() const {
  const State& s = *state_;
  json workers = json::array();
  for (const auto& [id, worker] : s.workers) workers.push_back(save_worker(worker));
  json unreadable = json::array();
  for (const auto& [step, why] : s.unreadable) unreadable.push_back({{"step", step}, {"why", why}});
  json value = {{"format", kFormat},
                {"virtual_ranks", s.options.virtual_ranks},
                {"phase", to_string(s.phase)},
                {"reason", s.reason},
                {"error_code", ductile::to_string(s.error_code)},
                {"result_unsaved", s.result_unsaved},
                {"unsaved_steps", s.unsaved_steps},
                {"incarnation", s.incarnation},
                {"wanted", s.wanted},
                {"winding_down", s.winding_down},
                {"after", to_string(s.after)},
                {"resume_after", s.resume_after},
                {"next_worker", s.next_worker},
                {"workers", std::move(workers)},
                {"spent", run::to_json(s.spent)},
                {"granted", s.granted},
                {"plan", to_json(*s.plan)},
                {"ran", s.ran},
                {"high_water", s.high_water},
                {"formed_high", s.formed_high},
                {"failures", s.failures},
                {"barren", s.barren},
                {"last_failure", s.last_failure},
                {"checkpoints", s.checkpoints},
                {"unreadable", std::move(unreadable)},
                {"save_attempts", s.save_attempts},
                {"offered_attempt", s.offered_attempt},
                {"save_asked", s.save_asked}};
  if (s.change)
    value["change"] = {{"number", s.change->number},
                       {"at_boundary", s.change->at_boundary},
                       {"after_loss", s.change->after_loss},
                       {"judged", s.change->judged},
                       {"reason", s.change->reason}};
  if (s.publishing)
    value["publishing"] = {{"worker", s.publishing->worker},
                           {"generation", s.publishing->generation},
                           {"step", s.publishing->step},
                           {"figures", to_json(s.publishing->figures)}};
  return value;
}

Membership Membership::restore(MembershipOptions options, const json& saved, Time now,
                               Outcome& first) {
  Membership membership(options);
  State& s = *membership.state_;
  int64_t virtual_ranks = 0;
  std::string missing;  // the step of a checkpoint that is gone
  try {
    const JsonFields in(saved, "saved controller state");
    int64_t format = 0;
    in.read("format", format);
    if (format < kWithoutCosts || format > kFormat)
      fail(ErrorCode::data_loss, "saved controller state: format {} is none of {} to {}", format,
           kWithoutCosts, kFormat);
    in.read("virtual_ranks", virtual_ranks);
    in.read("phase", s.phase, kPhases);
    read_reason(in, saved, s.reason, s.error_code, s.result_unsaved, s.unsaved_steps);
    in.read("incarnation", s.incarnation);
    in.read("wanted", s.wanted);
    if (format > kWithoutCosts) s.spent = run::cost_from_json(in.at("spent"));
    in.read("winding_down", s.winding_down);
    in.read("after", s.after, kPhases);
    in.read("resume_after", s.resume_after);
    in.read("next_worker", s.next_worker);
    for (const json& entry : in.array("workers")) {
      WorkerRecord worker = worker_from_json(entry, format, options, now);
      if (!s.workers.emplace(worker.id, std::move(worker)).second)
        fail(ErrorCode::data_loss, "saved controller state: a worker comes twice");
    }
    in.read("granted", s.granted);
    s.granted = std::max(s.granted, s.options.last_generation);
    s.plan = std::make_shared<GenerationPlan>(plan_from_json(in.at("plan")));
    in.read("ran", s.ran);
    in.read("high_water", s.high_water);
    in.read("formed_high", s.formed_high);
    in.read("failures", s.failures);
    s.failures = 0;  // whoever starts the job again gives it all its tries
    in.read("barren", s.barren);
    in.read("last_failure", s.last_failure);
    // Which checkpoints there are the store knows; the saved list only says whether there were any.
    if (!in.array("checkpoints").empty() && s.checkpoints.empty())
      missing = dump_json(in.array("checkpoints").back());
    for (const json& entry : in.array("unreadable")) {
      const JsonFields from(entry, "unreadable checkpoint");
      int64_t step = 0;
      from.read("step", step);
      from.read("why", s.unreadable[step]);
    }
    std::vector<int64_t> readable = s.checkpoints;
    std::erase_if(readable, [&](int64_t step) { return s.unreadable.contains(step); });
    if (readable.empty())
      s.unreadable.clear();
    else
      s.checkpoints = std::move(readable);
    in.read("save_attempts", s.save_attempts);
    in.read("offered_attempt", s.offered_attempt);
    in.read("save_asked", s.save_asked);
    if (saved.contains("change")) {
      const JsonFields from(saved["change"], "saved change");
      s.change.emplace();
      from.read("number", s.change->number);
      from.read("at_boundary", s.change->at_boundary);
      from.read("after_loss", s.change->after_loss);
      from.read("judged", s.change->judged);
      from.read("reason", s.change->reason);
      s.change->saved_at = s.change->since = now;
    }
    if (saved.contains("publishing"))
      s.publishing = publication_from(saved["publishing"], "saved publication");
  } catch (const Error& error) {
    fail(ErrorCode::data_loss, "{}", error.message());
  } catch (const json::exception& error) {
    fail(ErrorCode::data_loss, "saved controller state: {}", error.what());
  }
  if (!missing.empty())
    fail(ErrorCode::not_found,
         "the job had a checkpoint of step {}, and now there is none: put it back and resume, or "
         "start a new run",
         missing);
  if (virtual_ranks != s.options.virtual_ranks) {
    if (!s.options.may_change_ranks) refuse_ranks(virtual_ranks, s.options.virtual_ranks);
    return membership.successor(now, first);
  }
  s.check_restored();
  s.wanted = std::min(s.wanted, s.options.max_workers);
  ++s.incarnation;
  s.now = s.next_try = s.next_save = s.last_checkpoint = s.preempt_since = s.finish_since = now;
  first = membership.apply(Tick{}, now);
  first.must_save = true;  // the incarnation
  // Commands that were decided and saved, but perhaps not carried out: each may be done twice.
  if (s.publishing) first.commands.push_back(*s.publishing);
  if (!s.active() && !s.winding_down && s.phase != Phase::queued)
    first.commands.push_back(Release{fmt::format("the job is {}", to_string(s.phase))});
  for (auto& [id, worker] : s.workers)
    if (worker.doomed && !worker.killed) s.tell(worker, Stop{"no longer needed"});
  for (Command& command : s.out.commands) first.commands.push_back(std::move(command));
  s.out = {};
  return membership;
}

// The same job with other virtual ranks, of which no worker and no generation of before knows
// anything.
Membership Membership::successor(Time now, Outcome& first) const {
  const State& s = *state_;
  if (!s.workers.empty())
    fail(ErrorCode::conflict,
         "the job has got another plan, and {} workers of the plan before are not known to have "
         "ended",
         s.workers.size());
  Membership out(s.options);
  State& n = *out.state_;
  n.checkpoints = s.checkpoints;
  n.unreadable = s.unreadable;
  n.high_water = std::max<int64_t>(0, n.newest_checkpoint());
  n.granted = s.granted;
  n.next_worker = s.next_worker;
  n.save_attempts = s.save_attempts;
  n.spent = s.spent;
  n.incarnation = s.incarnation + 1;
  n.now = n.next_try = n.next_save = n.last_checkpoint = n.preempt_since = n.finish_since = now;
  first = {};
  first.must_save = true;
  return out;
}

bool may_go_on(const json& saved, WorkerId worker, Generation generation) {
  try {
    const JsonFields in(saved, "saved controller state");
    Phase phase{};
    bool winding_down = false;
    Generation granted = 0;
    in.read("phase", phase, kPhases);
    in.read("winding_down", winding_down);
    in.read("granted", granted);
    const bool active = phase == Phase::starting || phase == Phase::running ||
                        phase == Phase::resizing || phase == Phase::finishing;
    if (!active || winding_down || granted != generation) return false;
    for (const json& entry : in.array("workers")) {
      const JsonFields from(entry, "saved worker");
      WorkerId id = 0;
      bool doomed = true;
      from.read("doomed", doomed);
      JsonFields(from.at("report"), "report").read("worker", id);
      if (id == worker) return !doomed;
    }
  } catch (const Error&) {  // a damaged file lets nobody do anything
  } catch (const json::exception&) {
  }
  return false;
}

}  // namespace ductile::control
