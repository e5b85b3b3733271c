#include "ductile/server/job_controller.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <poll.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/link/addresses.h"
#include "ductile/link/job_driver.h"
#include "ductile/net/store_server.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/connections_impl.h"
#include "ductile/server/refusals_impl.h"
#include "ductile/server/request_server_impl.h"

namespace ductile::server {
namespace {

using namespace control;
using link::JobEnd;
using nlohmann::json;

// Listening that took longer was interrupted. Well below the shortest deadline for a heartbeat.
constexpr std::chrono::milliseconds kListening{100};

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

}  // namespace

// The world of the job: processes that a launcher starts, and connections to them.
struct JobController::Impl : link::JobWorld {
  Impl(JobControllerOptions o, std::unique_ptr<Launcher> l);

  void launch(const LaunchWorker& command) override;
  void kill(const KillWorker& command) override { launcher->kill(command.worker); }
  void send(const Instruction& instruction) override { connections->send(instruction); }
  void adopt(const std::vector<WorkerStatus>& workers) override;

  void begin(int64_t workers);
  JobEnd loop();
  void wait();
  void listen();
  void hear(Event event);
  void take_from_launcher();
  void note_strangers();

  json answer(const json& request);
  json status() const;

  JobControllerOptions options;
  std::unique_ptr<Launcher> launcher;
  net::Secret secret;
  std::string job;
  std::unique_ptr<Connections> connections;
  std::unique_ptr<net::StoreServer> store;
  std::mutex refusals_mutex;  // of the store's thread, too
  std::vector<net::Refusal> refusals;
  Refusals refused_notes;
  link::Addresses addresses;
  std::unique_ptr<RequestServer> requests;
  link::JobDriver driver;
  bool killed = false;
};

JobController::Impl::Impl(JobControllerOptions o, std::unique_ptr<Launcher> l)
    : options(std::move(o)),
      launcher(std::move(l)),
      secret(secret_of(options.run)),
      job(link::job_name(options.run)),
      driver({options.run, options.membership, options.keep_checkpoints, options.on_note}, *this) {
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

// ---- The world.

void JobController::Impl::begin(int64_t workers) {
  driver.restore();
  // A controller that is started again mostly has the ports of the one before; then nothing is
  // written, so that it takes over on a full disk, too, and waits there as any other.
  if (addresses_before(options.run) != addresses) link::write_addresses(options.run, addresses);
  requests = std::make_unique<RequestServer>(options.run);
  driver.start(workers);
}

void JobController::Impl::launch(const LaunchWorker& command) {
  try {
    launcher->start(
        {command.worker,
         {"--run", options.run.string(), "--worker", std::to_string(command.worker), "--controller",
          addresses.controller.to_string(), "--store", addresses.store.to_string()},
         {{"DUCTILE_SECRET_FILE", (options.run / "secret").string()}},
         driver.membership().wanted_workers(),
         command.avoid});
    driver.log("launch", fmt::format("worker {}: {}", command.worker, command.reason));
  } catch (const Error& e) {
    driver.add(LaunchFailed{command.worker, e.what(), !launcher->reachable()});
  }
}

void JobController::Impl::adopt(const std::vector<WorkerStatus>& workers) {
  std::vector<WorkerId> known;
  for (const WorkerStatus& report : workers) known.push_back(report.worker);
  launcher->adopt(known);
}

void JobController::Impl::note_strangers() {
  std::vector<net::Refusal> strangers;
  {
    const std::lock_guard guard(refusals_mutex);
    strangers.swap(refusals);
  }
  for (const std::string& line : refused_notes.take(strangers, net::Clock::now()))
    driver.log("connection", line);
}

JobEnd JobController::Impl::loop() {
  while (true) {
    driver.drain();
    if (killed || (driver.at_rest() && launcher->running() == 0)) break;
    wait();
    listen();
    driver.drain();
    requests->serve([this](const json& request) { return answer(request); });
    note_strangers();
    driver.look_at_clock();
    if (driver.gives_up()) {
      launcher.reset();  // ends and reaps them
      return driver.end_unsaved();
    }
  }
  if (killed) launcher.reset();
  for (const std::string& line : refused_notes.rest()) driver.log("connection", line);
  return driver.end(killed);
}

// Everything that has come is heard before time is said to have passed: a controller that was
// stopped for a while must not take its workers for silent. Where it was stopped, or had to wait
// for a processor, while it listened, more has come: it listens again.
void JobController::Impl::listen() {
  for (int round = 0; round < 10; ++round) {
    const Time begin = driver.now();
    driver.listening();
    connections->serve();
    take_from_launcher();
    driver.take_published();
    if (driver.now() - begin < kListening) return;
  }
}

void JobController::Impl::hear(Event event) {
  // Now, while the launcher still knows: a report may be a worker's last one.
  if (auto* reported = std::get_if<WorkerReported>(&event))
    reported->host = launcher->place_of(reported->report.worker).host;
  driver.add(std::move(event));
}

void JobController::Impl::wait() {
  std::vector<pollfd> watched = {{launcher->fd(), POLLIN, 0},
                                 {driver.publisher_fd(), POLLIN, 0},
                                 {requests->fd(), POLLIN, 0},
                                 {options.watch_fd, POLLIN, 0}};
  connections->add_to(watched);
  int64_t wait = driver.patience().count();
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
      driver.add(std::move(*failed));
    } else {
      driver.add(std::get<WorkerExited>(event));
    }
  }
}

// ---- Requests.

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
    driver.request(ResizeJob{workers(-1)});
  } else if (what == "resume") {
    driver.request(ResumeJob{workers(0)});
  } else if (what == "preempt") {
    driver.request(PreemptJob{});
  } else if (what == "stop") {
    driver.request(StopJob{});
  } else if (what == "save") {
    driver.request(SaveJob{});
  } else {
    fail(ErrorCode::invalid_argument,
         "unknown request; there are status, resize, preempt, resume, save and stop");
  }
  if (!driver.refused().empty()) fail(ErrorCode::conflict, "{}", driver.refused());
  return {{"phase", to_string(driver.membership().phase())}};
}

json JobController::Impl::status() const {
  const Membership& membership = driver.membership();
  const GenerationPlan& plan = membership.generation();
  json workers = json::array();
  for (const auto& [id, report] : driver.reports()) {
    json worker = {{"id", id},
                   {"phase", to_string(report.phase)},
                   {"step", report.step},
                   {"generation", report.generation},
                   {"connected", connections->has(id)}};
    if (const Member* member = plan.find(id))
      worker["ranks"] = {member->ranks.begin, member->ranks.end};
    const WorkerPlace place = launcher->place_of(id);
    if (!place.host.empty()) worker["host"] = place.host;
    if (place.process > 0) worker["process"] = place.process;
    if (!report.note.empty()) worker["note"] = report.note;
    workers.push_back(std::move(worker));
  }
  return {{"run", options.run.string()},
          {"pid", getpid()},
          {"phase", to_string(membership.phase())},
          {"reason", membership.reason()},
          {"why", driver.why()},
          {"wanted", membership.wanted_workers()},
          {"step", membership.step()},
          {"checkpoint", membership.checkpoint()},
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
  impl_->driver.write_end(end);
  return end;
}

std::string JobController::request(const Event& event) { return impl_->driver.request(event); }

int64_t JobController::wanted_workers() const {
  return impl_->driver.membership().wanted_workers();
}

void JobController::give_up(const std::string& reason, ErrorCode code) {
  impl_->driver.give_up(reason, code);
}

void JobController::note_signal(int number) { impl_->driver.signal(number); }

void JobController::kill() { impl_->killed = true; }

nlohmann::json JobController::status() const { return impl_->status(); }

}  // namespace ductile::server
