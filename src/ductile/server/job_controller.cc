#include "ductile/server/job_controller.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <poll.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/link/addresses.h"
#include "ductile/link/boot_clock.h"
#include "ductile/net/store_server.h"
#include "ductile/run/diary.h"
#include "ductile/run/folder.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/report.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/connections_impl.h"
#include "ductile/server/publisher_impl.h"
#include "ductile/server/refusals_impl.h"
#include "ductile/server/request_server_impl.h"
#include "ductile/server/saved_state_impl.h"

namespace ductile::server {
namespace {

using namespace control;
using nlohmann::json;

constexpr std::chrono::milliseconds kSaveRetry{500};
// Listening that took longer was interrupted. Well below the shortest deadline for a heartbeat.
constexpr std::chrono::milliseconds kListening{100};

fs::path state_file(const fs::path& run) { return run / "membership.json"; }

// The port that the controller before this one had, where it is known: its workers look there
// first.
template <class Listen>
auto listen_again(uint16_t port, const Listen& listen) {
  if (port != 0) {
    try {
      return listen(port);
    } catch (const Error&) {  // somebody else has it now
    }
  }
  return listen(uint16_t{0});
}

link::Addresses addresses_before(const fs::path& run) {
  try {
    return link::read_addresses(run);
  } catch (const Error&) {
    return {};
  }
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double rounded(double seconds) { return std::round(seconds * 1000) / 1000; }

}  // namespace

bool was_elastic(const fs::path& run) { return kind_of(state_file(run)) != FileKind::none; }

namespace {

// The steps of the checkpoints that lie there, ascending. Throws where they cannot be told now, or
// where all are damaged: a job does not begin anew while there is something to mend.
std::vector<int64_t> stored_checkpoints(const fs::path& checkpoints) {
  std::vector<int64_t> steps;
  std::string damaged;
  for (const ckpt::CheckpointSummary& c : ckpt::list(checkpoints)) {
    if (c.error.empty()) {
      steps.push_back(c.step);
    } else if (c.error_code == ErrorCode::data_loss) {
      damaged += fmt::format("\n  step {}: {}", c.step, c.error);
    } else if (c.error_code != ErrorCode::not_found) {
      fail(c.error_code,
           "{}: the checkpoint of step {} cannot be read now; nothing was changed: {}",
           checkpoints.string(), c.step, c.error);
    }
  }
  if (steps.empty() && !damaged.empty())
    fail(
        ErrorCode::data_loss,
        "{}: no checkpoint can be used; put back what is damaged and resume, or start a new run:{}",
        checkpoints.string(), damaged);
  std::reverse(steps.begin(), steps.end());
  return steps;
}

}  // namespace

struct JobController::Impl {
  Impl(JobControllerOptions o, std::unique_ptr<Launcher> l);

  // ---- the machine
  // From 0 on: a new job's first checkpoint by time is due when that time has passed.
  Time now() const { return link::boot_time() - epoch; }
  void begin(int64_t workers);
  void drain();
  void handle(Outcome outcome);
  bool try_save();
  void carry_out(const std::vector<Command>& commands);
  void on(const LaunchWorker& command);
  void on(const KillWorker& command) { launcher->kill(command.worker); }
  void on(const SendInstruction& command) { connections->send(command.instruction); }
  void on(const PublishCheckpoint& command) { publisher.publish(command); }
  void on(const Release&) {}  // processes of this machine hold nothing once they are gone
  void on(const Note& command);

  // ---- the world
  JobEnd loop();
  void wait();
  void listen();
  void hear(Event event);
  void take_from_launcher();
  bool at_rest() const;
  bool gives_up() const;
  JobEnd end_unsaved();
  void log(std::string_view event, const std::string& text);
  void end_run(const JobEnd& end);
  void write_event(std::string_view kind, json fields);
  void note_size();

  // ---- requests
  json answer(const json& request);
  std::string request(const Event& event);
  std::string waits_for_disk() const;
  json status() const;

  JobControllerOptions options;
  std::unique_ptr<Launcher> launcher;
  const run::RunFolder folder;
  run::Diary events;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  double seconds_before = 0;
  const Time epoch = link::boot_time();
  net::Secret secret;
  std::string job;
  std::unique_ptr<Connections> connections;
  std::unique_ptr<net::StoreServer> store;
  std::mutex refusals_mutex;  // of the store's thread, too
  std::vector<net::Refusal> refusals;
  Refusals refused_notes;
  link::Addresses addresses;
  Publisher publisher;
  std::unique_ptr<RequestServer> requests;

  std::optional<Membership> membership;
  std::vector<Event> inbox;
  Time heard{0};              // all that had come by then is in the inbox, or was told
  std::vector<Command> held;  // of a state that could not be saved yet
  net::Deadline held_since{};
  net::Deadline save_again{};
  std::string save_error;
  std::string refused;  // what the machine said to the last request; empty: taken
  std::map<WorkerId, WorkerStatus> reports;
  size_t members = 0;  // of the last generation
  bool killed = false;
};

JobController::Impl::Impl(JobControllerOptions o, std::unique_ptr<Launcher> l)
    : options(std::move(o)),
      launcher(std::move(l)),
      folder(run::RunFolder::open(options.run)),
      events(folder.events_file()),
      secret(secret_of(options.run)),
      job(link::job_name(options.run)),
      publisher(options.run / "checkpoints", options.keep_checkpoints) {
  options.membership.last_generation =
      static_cast<Generation>(run::last_generation(folder.events_file()));
  run::for_each_json_line(folder.events_file(), [&](json& line) {
    double seconds = 0;
    if (line.contains("seconds") && run::number_from_json(line["seconds"], seconds))
      seconds_before = std::max(seconds_before, seconds);
  });
  const link::Addresses before = addresses_before(options.run);
  const auto refuse = [this](const net::Refusal& refusal) {
    const std::lock_guard guard(refusals_mutex);
    refusals.push_back(refusal);
  };
  connections = listen_again(before.controller.port, [&](uint16_t port) {
    return std::make_unique<Connections>(net::Address{options.listen, port}, secret, job, refuse,
                                         [this](const Event& e) { hear(e); });
  });
  store = listen_again(before.store.port, [&](uint16_t port) {
    return std::make_unique<net::StoreServer>(net::Address{options.listen, port}, secret, job,
                                              net::StoreServerOptions{}, refuse);
  });
  addresses = {{options.listen, connections->address().port},
               {options.listen, store->address().port}};
}

// ---- The machine.

void JobController::Impl::begin(int64_t workers) {
  heard = now();
  const fs::path file = state_file(options.run);
  const std::optional<json> saved = read_state(file);
  MembershipOptions wishes = options.membership;
  wishes.checkpoints = stored_checkpoints(folder.checkpoints());
  Outcome first;
  if (saved) {
    try {
      membership.emplace(Membership::restore(wishes, *saved, heard, first));
    } catch (const Error& e) {
      if (e.code() == ErrorCode::not_found)
        fail(ErrorCode::data_loss, "{}: {}", folder.checkpoints().string(), e.message());
      if (e.code() != ErrorCode::data_loss) throw;
      fail(ErrorCode::data_loss, "{}: {}; {}", file.string(), e.message(), state_remedy(file));
    }
    std::vector<WorkerId> known;
    for (const json& worker : saved->at("workers"))
      known.push_back(worker_status_from_json(worker.at("report")).worker);
    launcher->adopt(known);
  }
  if (!membership || membership->phase() == Phase::finished) membership.emplace(wishes);
  link::write_addresses(options.run, addresses);
  requests = std::make_unique<RequestServer>(options.run);
  first.must_save = true;  // also: that a controller has run this job
  handle(std::move(first));
  const Phase phase = membership->phase();
  if (phase == Phase::queued) {
    request(StartJob{std::max<int64_t>(1, workers)});
  } else if (phase == Phase::preempted || phase == Phase::failed || phase == Phase::preempting) {
    request(ResumeJob{workers});
  } else if (workers > 0 && workers != membership->wanted_workers()) {
    request(ResizeJob{workers});
  }
  if (!refused.empty()) fail(ErrorCode::invalid_argument, "{}", refused);
}

// Until nothing is left to tell the machine, or its state cannot be saved now. What came together
// is told together, and as of the time at which all had been heard: whose report is still to be
// read is never taken for silent.
void JobController::Impl::drain() {
  while (!inbox.empty() && held.empty()) {
    std::vector<Event> events = std::exchange(inbox, {});
    for (const Event& event : events) {
      if (const auto* reported = std::get_if<WorkerReported>(&event))
        reports[reported->report.worker] = reported->report;
      if (const auto* exited = std::get_if<WorkerExited>(&event)) reports.erase(exited->worker);
    }
    handle(membership->apply(events, heard));
  }
}

void JobController::Impl::handle(Outcome outcome) {
  if (outcome.must_save && !try_save()) {
    held = std::move(outcome.commands);
    held_since = net::Clock::now();
    held.emplace_back(
        Note{"disk", fmt::format("the job waits: its state could not be saved: {}", save_error)});
    return;
  }
  carry_out(outcome.commands);
  note_size();
}

bool JobController::Impl::try_save() {
  try {
    write_file_atomic(state_file(options.run), sealed(membership->save()));
    return true;
  } catch (const Error& e) {
    save_error = e.what();
    save_again = net::Clock::now() + kSaveRetry;
    return false;
  }
}

void JobController::Impl::carry_out(const std::vector<Command>& commands) {
  for (const Command& command : commands) std::visit([&](const auto& c) { on(c); }, command);
}

void JobController::Impl::on(const LaunchWorker& command) {
  try {
    launcher->start(
        {command.worker,
         {"--run", options.run.string(), "--worker", std::to_string(command.worker), "--controller",
          addresses.controller.to_string(), "--store", addresses.store.to_string()},
         {{"DUCTILE_SECRET_FILE", (options.run / "secret").string()}},
         membership->wanted_workers(),
         command.avoid});
    log("launch", fmt::format("worker {}: {}", command.worker, command.reason));
  } catch (const Error& e) {
    inbox.emplace_back(LaunchFailed{command.worker, e.what(), !launcher->reachable()});
  }
}

void JobController::Impl::on(const Note& command) {
  if (command.event == "refused") refused = command.text;
  log(command.event, command.text);
  if (options.on_note) options.on_note(command);
}

void JobController::Impl::log(std::string_view event, const std::string& text) {
  json fields = {{"event", event}, {"text", text}};
  // From here on lines of workers of earlier generations are void (run/diary.h).
  if (event == "generation") fields["generation"] = membership->generation().number;
  write_event("control", std::move(fields));
}

void JobController::Impl::write_event(std::string_view kind, json fields) {
  const double seconds =
      seconds_before +
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  fields["kind"] = kind;
  fields["time"] = rounded(wall_seconds());
  fields["seconds"] = rounded(seconds);
  events.append(fields);
}

// Only the controller knows how a run ended. The figures are the last ones that a leader wrote
// down.
void JobController::Impl::end_run(const JobEnd& end) {
  json fields = json::object();
  try {
    run::for_each_diary_line(folder.events_file(), [&](json& line) {
      const json kind = line.value("kind", json());
      if (kind == "end") fields = json::object();  // of an earlier part of the run
      if (kind == "summary") fields = std::move(line);
    });
    ckpt::remove_leftovers(folder.checkpoints());
  } catch (const Error& e) {
    log("end", e.what());
  }
  const json status = fields.value("status", json());
  for (const char* key : {"kind", "time", "seconds", "generation"}) fields.erase(key);
  if (end.killed || end.phase == Phase::preempted) {
    fields["status"] = "interrupted";
  } else if (end.phase == Phase::finished) {
    fields["status"] = status == "target_reached" ? "target_reached" : "done";
  } else {
    fields["status"] = "failed";
    fields["message"] = end.reason;
  }
  fields["step"] = end.step;
  if (end.checkpoint >= 0) fields["checkpoint"] = end.checkpoint;
  write_event("end", std::move(fields));
  events.sync();
  if (std::string text = run::leave_report(folder); !text.empty())
    on(Note{"report", std::move(text)});
}

// The report draws the number of workers over time by these events.
void JobController::Impl::note_size() {
  const size_t size = membership->generation().members.size();
  if (size == members || size == 0) return;
  if (members > 0)
    write_event("resize", {{"from", members}, {"to", size}, {"step", membership->step()}});
  members = size;
}

// ---- The world.

bool JobController::Impl::at_rest() const {
  const Phase phase = membership->phase();
  return phase == Phase::preempted || phase == Phase::finished || phase == Phase::failed;
}

// A state that cannot be saved is waited for as long as the job runs. One that is done, or is to
// end, has nothing to gain by it: without the save it is as if all had been killed.
bool JobController::Impl::gives_up() const {
  if (held.empty()) return false;
  const net::Deadline now = net::Clock::now();
  switch (membership->phase()) {
    case Phase::failed:
      return true;
    case Phase::finishing:
    case Phase::finished:
      return now >= held_since + options.membership.finish_deadline;
    case Phase::preempting:
    case Phase::preempted:
      return now >= held_since + options.membership.preempt_deadline;
    default:
      return false;
  }
}

JobEnd JobController::Impl::end_unsaved() {
  JobEnd end{membership->phase(), membership->reason(), membership->step(),
             membership->checkpoint()};
  launcher.reset();  // ends and reaps them
  const int64_t again = end.step - std::max<int64_t>(end.checkpoint, 0);
  on(Note{"disk",
          fmt::format("all workers were ended, since the job's state could not be saved: {}{}",
                      save_error,
                      again > 0 ? fmt::format("; {} steps will be done again", again) : "")});
  if (end.phase == Phase::preempting) end.phase = Phase::preempted;
  if (end.phase != Phase::finishing) return end;
  end.phase = Phase::failed;
  end.reason = fmt::format(
      "all {} steps are done, but the job's state could not be saved within {} s: {}", end.step,
      std::chrono::duration_cast<std::chrono::seconds>(options.membership.finish_deadline).count(),
      save_error);
  return end;
}

JobEnd JobController::Impl::loop() {
  while (true) {
    drain();
    if (killed) break;
    if (at_rest() && launcher->running() == 0 && held.empty() && inbox.empty()) break;
    wait();
    listen();
    drain();
    requests->serve([this](const json& request) { return answer(request); });
    std::vector<net::Refusal> strangers;
    {
      const std::lock_guard guard(refusals_mutex);
      strangers.swap(refusals);
    }
    for (const std::string& line : refused_notes.take(strangers, net::Clock::now()))
      log("connection", line);
    if (!held.empty() && net::Clock::now() >= save_again && try_save())
      carry_out(std::exchange(held, {}));
    if (gives_up()) return end_unsaved();
    if (held.empty() && membership->next_deadline() <= heard) inbox.emplace_back(Tick{});
  }
  if (killed) {
    launcher.reset();  // ends and reaps them
    log("killed", "all workers were killed on request");
  }
  for (const std::string& line : refused_notes.rest()) log("connection", line);
  try_save();
  return {membership->phase(), membership->reason(), membership->step(), membership->checkpoint(),
          killed};
}

// Everything that has come is heard before time is said to have passed: a controller that was
// stopped for a while must not take its workers for silent. Where it was stopped, or had to wait
// for a processor, while it listened, more has come: it listens again.
void JobController::Impl::listen() {
  for (int round = 0; round < 10; ++round) {
    heard = now();
    connections->serve();
    take_from_launcher();
    for (Event& event : publisher.take()) inbox.push_back(std::move(event));
    if (now() - heard < kListening) return;
  }
}

void JobController::Impl::hear(Event event) {
  // Now, while the launcher still knows: a report may be a worker's last one.
  if (auto* reported = std::get_if<WorkerReported>(&event)) {
    reported->host = launcher->host_of(reported->report.worker);
    // The newest report replaces all before it; without a word to the machine they would pile up.
    if (!held.empty()) {
      std::erase_if(inbox, [&](const Event& earlier) {
        const auto* other = std::get_if<WorkerReported>(&earlier);
        return other != nullptr && other->report.worker == reported->report.worker &&
               other->report.sequence <= reported->report.sequence;
      });
    }
  }
  inbox.push_back(std::move(event));
}

void JobController::Impl::wait() {
  using std::chrono::milliseconds;
  std::vector<pollfd> watched = {{launcher->fd(), POLLIN, 0},
                                 {publisher.fd(), POLLIN, 0},
                                 {requests->fd(), POLLIN, 0},
                                 {options.watch_fd, POLLIN, 0}};
  connections->add_to(watched);
  int64_t wait = 500;
  // While nothing can be saved, nothing is told to the machine, whatever it waits for.
  const Time next = held.empty() ? membership->next_deadline() : Time::max();
  if (next != Time::max())
    wait = std::min<int64_t>(wait, std::chrono::ceil<milliseconds>(next - now()).count());
  const net::Deadline soon = std::min(connections->next_deadline(), requests->next_deadline());
  if (soon != net::Deadline::max()) wait = std::min<int64_t>(wait, net::poll_milliseconds(soon));
  const int timeout = static_cast<int>(std::max<int64_t>(0, wait));
  if (::poll(watched.data(), watched.size(), timeout) < 0 && errno != EINTR)
    fail_errno("poll", errno);
  if (watched[3].revents != 0 && options.on_watch) options.on_watch();
}

void JobController::Impl::take_from_launcher() {
  for (LauncherEvent& event : launcher->take()) {
    if (auto* line = std::get_if<WorkerLine>(&event)) {
      if (options.on_line) options.on_line(line->worker, line->text);
    } else if (auto* failed = std::get_if<LaunchFailed>(&event)) {
      inbox.emplace_back(std::move(*failed));
    } else {
      inbox.emplace_back(std::get<WorkerExited>(event));
    }
  }
}

// ---- Requests.

// Why it is not followed, or not yet; empty: it is.
std::string JobController::Impl::request(const Event& event) {
  refused.clear();
  inbox.push_back(event);
  drain();
  if (refused.empty() && !held.empty()) return waits_for_disk();
  return refused;
}

std::string JobController::Impl::waits_for_disk() const {
  return "waits for room to save its state: " + save_error;
}

json JobController::Impl::answer(const json& value) {
  const auto workers = [&](int64_t otherwise) {
    const auto found = value.find("workers");
    if (found == value.end() && otherwise >= 0) return otherwise;
    if (found == value.end() || !found->is_number_integer() || *found < 0 || *found > 1'000'000)
      fail(ErrorCode::invalid_argument, "\"workers\" is a number of workers");
    return found->get<int64_t>();
  };
  const std::string what = value.value("request", json()).is_string() ? value["request"] : "";
  if (what == "status") return status();
  if (what == "resize") {
    request(ResizeJob{workers(-1)});
  } else if (what == "resume") {
    request(ResumeJob{workers(0)});
  } else if (what == "preempt") {
    request(PreemptJob{});
  } else if (what == "stop") {
    request(StopJob{});
  } else if (what == "save") {
    request(SaveJob{});
  } else {
    fail(ErrorCode::invalid_argument,
         "unknown request; there are status, resize, preempt, resume, save and stop");
  }
  if (!refused.empty()) fail(ErrorCode::conflict, "{}", refused);
  return {{"phase", to_string(membership->phase())}};
}

json JobController::Impl::status() const {
  const GenerationPlan& plan = membership->generation();
  json workers = json::array();
  for (const auto& [id, report] : reports) {
    json worker = {{"id", id},
                   {"phase", to_string(report.phase)},
                   {"step", report.step},
                   {"generation", report.generation},
                   {"connected", connections->has(id)}};
    if (const Member* member = plan.find(id))
      worker["ranks"] = {member->ranks.begin, member->ranks.end};
    if (const std::string host = launcher->host_of(id); !host.empty()) worker["host"] = host;
    if (!report.note.empty()) worker["note"] = report.note;
    workers.push_back(std::move(worker));
  }
  return {{"run", options.run.string()},
          {"pid", getpid()},
          {"phase", to_string(membership->phase())},
          {"reason", membership->reason()},
          {"why", held.empty() ? membership->why(now()) : waits_for_disk()},
          {"wanted", membership->wanted_workers()},
          {"step", membership->step()},
          {"checkpoint", membership->checkpoint()},
          {"generation", {{"number", plan.number}, {"start", plan.start}}},
          {"processes", launcher->running()},
          {"workers", std::move(workers)}};
}

JobController::JobController(const run::RunLock&, JobControllerOptions options,
                             std::unique_ptr<Launcher> launcher)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(launcher))) {}

JobController::~JobController() = default;

JobEnd JobController::run(int64_t workers) {
  impl_->begin(workers);
  const JobEnd end = impl_->loop();
  impl_->end_run(end);
  return end;
}

std::string JobController::request(const Event& event) { return impl_->request(event); }

void JobController::kill() { impl_->killed = true; }

nlohmann::json JobController::status() const { return impl_->status(); }

}  // namespace ductile::server
