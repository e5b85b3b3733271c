#include "ductile/server/job_host.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/link/addresses.h"
#include "ductile/link/disk.h"
#include "ductile/net/store_server.h"
#include "ductile/run/progress.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/connections_impl.h"
#include "ductile/server/refusals_impl.h"
#include "ductile/server/request_server_impl.h"
#include "ductile/server/unix_socket_impl.h"

namespace ductile::server {
namespace {

using namespace control;
using link::JobEnd;
using link::OnAnswer;
using link::RequestAnswer;
using nlohmann::json;

// Listening that took longer was interrupted. Well below the shortest deadline for a heartbeat.
constexpr std::chrono::milliseconds kListening{100};
constexpr int kMostRounds = 10;
constexpr std::chrono::milliseconds kTryAgain{500};
constexpr std::chrono::seconds kLookAtRun{5};

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

int64_t workers_of(const json& request, int64_t otherwise) {
  const auto found = request.find("workers");
  if (found == request.end() && otherwise >= 0) return otherwise;
  if (found == request.end() || !found->is_number_integer() || *found < 0 || *found > 1'000'000)
    fail(ErrorCode::invalid_argument, "\"workers\" is a number of workers");
  return found->get<int64_t>();
}

Event event_of_request(const json& request) {
  const std::string what = request.value("request", json()).is_string() ? request["request"] : "";
  if (what == "resize") return ResizeJob{workers_of(request, -1)};
  if (what == "resume") return ResumeJob{workers_of(request, 0)};
  if (what == "preempt") return PreemptJob{};
  if (what == "stop") return StopJob{};
  if (what == "save") return SaveJob{};
  fail(ErrorCode::invalid_argument,
       "unknown request; there are status, resize, preempt, resume, save and stop");
}

}  // namespace

// The world of the job: processes that a launcher starts, and connections to them. It is also the
// disk of its driver: what is done there leads to another step.
struct JobHost::Impl : link::JobWorld, link::Disk {
  enum class State { fresh, starting, running, ending, writing, over };
  // What the run directory held at the start.
  struct Found {
    std::optional<net::Secret> secret;
    link::Addresses addresses;
    link::JobDriver::Found job;
    Descriptor listener;
    RunMark mark;
  };
  struct Asked {
    json request;
    RequestServer::Reply reply;
  };

  Impl(net::Loop& l, JobHostOptions o, std::unique_ptr<Launcher> la)
      : loop(l),
        options(std::move(o)),
        launcher(std::move(la)),
        job(link::job_name(options.run)),
        disk(loop) {
    launcher->call_when_ready([this] { wake(); });
  }
  ~Impl() override {
    *alive = false;
    launcher->call_when_ready({});
  }

  void launch(const LaunchWorker& command) override;
  void kill(const KillWorker& command) override { launcher->kill(command.worker); }
  void send(const Instruction& instruction) override { connections->send(instruction); }
  void adopt(const std::vector<WorkerStatus>& workers) override;
  void run(Work work, Done done) override;

  void start(int64_t workers, OnEnd on_end);
  void open(const std::shared_ptr<Found>& found, int64_t workers);
  void make_known(const std::shared_ptr<Found>& found, int64_t workers);
  void listen_for_workers(const Found& found);
  void go(const std::shared_ptr<Found>& found, int64_t workers);
  void when_running(std::function<void()> what);
  void wake();
  template <class Body>
  void guarded(const Body& body);
  void step();
  bool listen();
  void hear(Event event);
  void take_from_launcher();
  void hear_refusal(const WorkerLine& line);
  void note_strangers();
  void find_run(std::function<void()> then);
  void watch_run();
  void serve_requests();
  void give_answer(const json& request, const RequestServer::Reply& reply);
  json status() const;

  void end_with(JobEnd end);
  void end_with(std::exception_ptr error);
  void look_at_end();
  void deliver();

  net::Loop& loop;
  JobHostOptions options;
  std::unique_ptr<Launcher> launcher;
  const std::string job;
  State state = State::fresh;
  OnEnd on_end;
  JobOutcome outcome;
  std::vector<std::function<void()>> later;  // until it runs
  bool killed = false;
  bool waits_for_machine = false;  // to take over
  bool is_restored = false;        // so the driver knows the job
  bool awake = false;              // a step is on its way
  int rounds = 0;                  // of listening that were interrupted
  net::Loop::Timer next_step, next_look;
  RunMark mark;         // of the run
  bool missed = false;  // the run was not there at the last look
  std::vector<net::Refusal> refusals;
  Refusals refused_notes;
  std::vector<Asked> asked;
  const std::shared_ptr<bool> alive = std::make_shared<bool>(true);

  std::optional<link::JobDriver> driver;
  link::Addresses addresses;
  net::Loop::Watch published;
  std::unique_ptr<Connections> connections;
  std::unique_ptr<net::StoreService> store;
  std::unique_ptr<RequestServer> requests;
  link::DiskThread disk;
};

// ---- The world.

void JobHost::Impl::launch(const LaunchWorker& command) {
  try {
    std::vector<std::string> arguments = {"--run",        options.run.string(),
                                          "--worker",     std::to_string(command.worker),
                                          "--controller", addresses.controller.to_string(),
                                          "--store",      addresses.store.to_string()};
    if (options.alone.count() > 0)
      arguments.insert(arguments.end(), {"--alone", std::to_string(options.alone.count())});
    launcher->start({command.worker,
                     std::move(arguments),
                     {{"DUCTILE_SECRET_FILE", (options.run / "secret").string()}},
                     driver->membership().wanted_workers(),
                     command.avoid});
    driver->log("launch", fmt::format("worker {}: {}", command.worker, command.reason));
  } catch (const NoPlace& e) {
    driver->add(LaunchFailed{command.worker, e.what(), /*no_host=*/true, /*no_room=*/e.held});
  } catch (const Error& e) {
    driver->add(LaunchFailed{command.worker, e.what()});
  }
}

void JobHost::Impl::adopt(const std::vector<WorkerStatus>& workers) {
  std::vector<EarlierWorker> known;
  for (const WorkerStatus& report : workers) {
    const bool ended = report.address == link::kInItsControl;  // this process has the run's lock
    known.push_back({report.worker, ended ? "" : link::PeerAddress::parse(report.address).place});
  }
  launcher->adopt(known);
}

void JobHost::Impl::run(Work work, Done done) {
  if (!done) return disk.run(std::move(work));
  disk.run(std::move(work), [this, done = std::move(done)](const std::exception_ptr& error) {
    if (!outcome.error) guarded([&] { done(error); });
    wake();
  });
}

// ---- The beginning.

void JobHost::Impl::start(int64_t workers, OnEnd ends) {
  on_end = std::move(ends);
  state = State::starting;
  const auto found = std::make_shared<Found>();
  run(
      [run = options.run, found] {
        found->secret = secret_of(run);
        found->addresses = addresses_before(run);
        found->job = link::JobDriver::look(run);
        found->mark = mark_of(run);
      },
      [this, found, workers](const std::exception_ptr& error) {
        if (error) std::rethrow_exception(error);
        open(found, workers);
      });
}

void JobHost::Impl::open(const std::shared_ptr<Found>& found, int64_t workers) {
  mark = found->mark;
  driver.emplace(link::JobDriverOptions{options.run, options.membership, options.keep_checkpoints,
                                        options.on_note},
                 *this, this);
  listen_for_workers(*found);
  make_known(found, workers);
}

// Where workers may be at work already, what the machine refuses now is tried again: to give up
// would end them, and their steps since the last checkpoint would be lost.
void JobHost::Impl::make_known(const std::shared_ptr<Found>& found, int64_t workers) {
  run(
      [run = options.run, addresses = addresses, found] {
        // A controller that is started again mostly has the ports of the one before; then nothing
        // is written, so that it takes over on a full disk, too, and waits there as any other.
        if (found->addresses != addresses) link::write_addresses(run, addresses);
        found->listener = listen_unix(run);
      },
      [this, found, workers](const std::exception_ptr& error) {
        if (!error) return go(found, workers);
        try {
          std::rethrow_exception(error);
        } catch (const Error& refused) {
          if (killed || !found->job.state || refused.code() != ErrorCode::unavailable) throw;
          if (!std::exchange(waits_for_machine, true) && options.on_note)
            options.on_note(Note{"disk", fmt::format("the job waits: {}", refused.message())});
        }
        next_step = loop.after(
            kTryAgain, [this, found, workers] { guarded([&] { make_known(found, workers); }); });
      });
}

void JobHost::Impl::listen_for_workers(const Found& found) {
  const auto refuse = [this](const net::Refusal& refusal) {
    refusals.push_back(refusal);
    wake();
  };
  connections = listen_again(found.addresses.controller.port, [&](uint16_t port) {
    return std::make_unique<Connections>(
        loop, net::Address{options.listen, port}, *found.secret, job, refuse,
        [this](const Event& e) { hear(e); }, [this] { wake(); });
  });
  store = listen_again(found.addresses.store.port, [&](uint16_t port) {
    return std::make_unique<net::StoreService>(loop, net::Address{options.listen, port},
                                               *found.secret, job, net::StoreServerOptions{},
                                               refuse);
  });
  addresses = {{options.listen, connections->address().port},
               {options.listen, store->address().port}};
}

void JobHost::Impl::go(const std::shared_ptr<Found>& found, int64_t workers) {
  requests =
      std::make_unique<RequestServer>(loop, *this, options.run, std::move(found->listener),
                                      [this](const json& request, RequestServer::Reply reply) {
                                        asked.push_back({request, std::move(reply)});
                                        wake();
                                      });
  driver->restore(found->job);
  is_restored = true;
  published =
      loop.watch(driver->publisher_fd(), net::Interest::read, [this](net::Ready) { wake(); });
  state = State::running;
  watch_run();
  driver->start(workers, [this](const RequestAnswer& answer) {
    if (!answer.refused.empty())
      end_with(std::make_exception_ptr(Error(ErrorCode::invalid_argument, answer.refused)));
  });
  for (const auto& what : std::exchange(later, {}))
    if (state == State::running) what();
}

void JobHost::Impl::when_running(std::function<void()> what) {
  if (state == State::fresh || state == State::starting) {
    later.push_back(std::move(what));
  } else if (state == State::running) {
    guarded(what);
    wake();
  }
}

// ---- The course.

// After all that is ready in this turn was noted: what comes together is told together.
void JobHost::Impl::wake() {
  if (std::exchange(awake, true)) return;
  loop.post([this, alive = alive] {
    if (!*alive) return;
    awake = false;
    step();
  });
}

// An error of one job ends that job alone.
template <class Body>
void JobHost::Impl::guarded(const Body& body) {
  try {
    body();
  } catch (...) {
    end_with(std::current_exception());
  }
}

void JobHost::Impl::step() {
  if (state == State::ending) return look_at_end();
  if (state != State::running) {
    serve_requests();
    // Workers of an earlier controller may be there already.
    if (state == State::starting && connections) guarded([&] { listen(); });
    return;
  }
  guarded([&] {
    driver->drain();
    if (!listen()) return wake();
    driver->drain();
    serve_requests();
    note_strangers();
    driver->look_at_clock();
    if (driver->gives_up()) return end_with(driver->end_unsaved());
    driver->drain();
    if (killed || (driver->at_rest() && launcher->running() == 0))
      return end_with(driver->end(killed));
    next_step = loop.after(driver->patience(), [this] { wake(); });
  });
}

// Everything that has come is heard before time is said to have passed: a controller that was
// stopped for a while must not take its workers for silent. Where it was stopped, or had to wait
// for a processor, while it listened, more has come: false, it is to listen again.
bool JobHost::Impl::listen() {
  const Time begin = driver->now();
  driver->listening();
  connections->serve();
  take_from_launcher();
  driver->take_published();
  const bool undisturbed = driver->now() - begin < kListening || ++rounds >= kMostRounds;
  if (undisturbed) rounds = 0;
  return undisturbed;
}

void JobHost::Impl::hear(Event event) {
  // Now, while the launcher still knows: a report may be a worker's last one.
  if (auto* reported = std::get_if<WorkerReported>(&event))
    reported->host = launcher->place_of(reported->report.worker).host;
  driver->add(std::move(event));
}

void JobHost::Impl::take_from_launcher() {
  for (LauncherEvent& event : launcher->take()) {
    if (auto* line = std::get_if<WorkerLine>(&event)) {
      if (options.on_line) options.on_line(line->worker, line->text);
      hear_refusal(*line);
    } else if (auto* failed = std::get_if<LaunchFailed>(&event)) {
      driver->add(std::move(*failed));
    } else {
      driver->add(std::get<WorkerExited>(event));
    }
  }
}

// What a worker says that cannot even reach its controller: as if it had reported an error before
// it took part. The others go on, and where there is none the job fails.
void JobHost::Impl::hear_refusal(const WorkerLine& line) {
  if (line.text.find("\"error\"") == std::string::npos) return;  // most tell of steps
  const auto known = run::decode(line.text);
  const auto* failed = known ? std::get_if<run::Failed>(&*known) : nullptr;
  if (failed == nullptr || failed->code != ErrorCode::invalid_argument) return;
  when_running([this, worker = line.worker, host = line.host, error = *failed] {
    WorkerStatus report{worker};
    report.sequence = 1;  // one that has reported is believed by what it reports
    report.phase = WorkerPhase::halted;
    report.error = error.text;
    report.error_code = error.code;
    driver->add(WorkerReported{report, host});
  });
}

void JobHost::Impl::note_strangers() {
  for (const std::string& line : refused_notes.take(std::exchange(refusals, {}), net::Clock::now()))
    driver->log("connection", line);
}

// It has to be missed twice: a file system that is just mounted again is empty for a moment.
void JobHost::Impl::find_run(std::function<void()> then) {
  run([run = options.run, mark = mark] { require_run(run, mark); },
      [this, then = std::move(then)](const std::exception_ptr& error) {
        if (!std::exchange(missed, error != nullptr) && error) {
          next_look = loop.after(kLookAtRun, [this, then] { find_run(then); });
          return;
        }
        if (error) std::rethrow_exception(error);
        then();
      });
}

// Who deletes the folder of a run that goes on is told soon, and not when it is done for nothing.
void JobHost::Impl::watch_run() {
  next_look = loop.after(kLookAtRun, [this] {
    if (state != State::running) return;
    find_run([this] {
      if (state == State::running) watch_run();
    });
  });
}

// ---- Requests.

void JobHost::Impl::serve_requests() {
  for (const Asked& one : std::exchange(asked, {})) {
    try {
      give_answer(one.request, one.reply);
    } catch (const Error& e) {
      one.reply(RequestServer::error_fields(e));
    }
  }
}

void JobHost::Impl::give_answer(const json& request, const RequestServer::Reply& reply) {
  if (request.value("request", json()) == "status") return reply(status());
  const Event event = event_of_request(request);
  if (state != State::running)
    fail(ErrorCode::unavailable, "{}: the job is just ending", options.run.string());
  driver->request(event, [this, reply](const RequestAnswer& answer) {
    if (answer.refused.empty()) return reply({{"phase", to_string(driver->membership().phase())}});
    reply(RequestServer::error_fields(Error(ErrorCode::conflict, answer.refused)));
  });
}

json JobHost::Impl::status() const {
  if (!is_restored || state == State::starting)
    return {{"run", options.run.string()}, {"pid", getpid()}, {"phase", "starting"}};
  const Membership& membership = driver->membership();
  const GenerationPlan& plan = membership.generation();
  json workers = json::array();
  for (const auto& [id, report] : driver->reports()) {
    json worker = {{"id", id},
                   {"phase", to_string(report.phase)},
                   {"step", report.step},
                   {"generation", report.generation},
                   {"connected", connections && connections->has(id)}};
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
          {"why", driver->why()},
          {"wanted", membership.wanted_workers()},
          {"step", membership.step()},
          {"checkpoint", membership.checkpoint()},
          {"save_seconds", std::chrono::duration<double>(membership.longest_save()).count()},
          {"generation", {{"number", plan.number}, {"start", plan.start}}},
          {"processes", launcher->running()},
          {"workers", std::move(workers)}};
}

// ---- The end: no process is left, then it is written down, then it is told.

void JobHost::Impl::end_with(JobEnd end) {
  outcome.end = std::move(end);
  state = State::ending;
  next_step.cancel();
  launcher->finish();
  wake();
}

void JobHost::Impl::end_with(std::exception_ptr error) {
  if (outcome.error || state == State::over) return;
  outcome.error = std::move(error);
  state = State::ending;
  next_step.cancel();
  launcher->finish();
  wake();
}

void JobHost::Impl::look_at_end() {
  published.end();  // from here on nobody takes what they tell
  connections.reset();
  store.reset();
  launcher->take();
  serve_requests();
  if (!launcher->finished()) return;
  if (outcome.error) return deliver();
  state = State::writing;
  guarded([&] {
    for (const std::string& line : refused_notes.rest()) driver->log("connection", line);
    find_run([this] { driver->write_end(outcome.end, [this] { deliver(); }); });
  });
}

void JobHost::Impl::deliver() {
  state = State::over;
  loop.post([on_end = std::move(on_end), outcome = outcome, alive = alive] {
    if (*alive) on_end(outcome);
  });
}

// ---- The object.

JobHost::JobHost(net::Loop& loop, const run::RunLock&, JobHostOptions options,
                 std::unique_ptr<Launcher> launcher)
    : impl_(std::make_unique<Impl>(loop, std::move(options), std::move(launcher))) {}

JobHost::~JobHost() = default;

void JobHost::start(int64_t workers, OnEnd on_end) { impl_->start(workers, std::move(on_end)); }

void JobHost::request(const Event& event, OnAnswer on_answer) {
  impl_->when_running([impl = impl_.get(), event, on_answer = std::move(on_answer)] {
    impl->driver->request(event, on_answer);
  });
}

int64_t JobHost::wanted_workers() const {
  return impl_->state == Impl::State::running ? impl_->driver->membership().wanted_workers() : 0;
}

void JobHost::note_signal(int number) {
  impl_->when_running([impl = impl_.get(), number] { impl->driver->signal(number); });
}

void JobHost::kill() {
  impl_->killed = true;
  impl_->wake();
}

nlohmann::json JobHost::status() const { return impl_->status(); }

JobEnd run_job(net::Loop& loop, JobHost& host, int64_t workers) {
  std::optional<JobOutcome> outcome;
  host.start(workers, [&](JobOutcome ended) {
    outcome = std::move(ended);
    loop.stop();
  });
  while (!outcome) loop.run();
  if (outcome->error) std::rethrow_exception(outcome->error);
  return outcome->end;
}

}  // namespace ductile::server
