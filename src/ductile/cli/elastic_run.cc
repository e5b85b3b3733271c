#include "ductile/cli/elastic_run.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/cli/held_signals.h"
#include "ductile/link/membership_options.h"
#include "ductile/process/worker.h"

namespace ductile::cli {

void check_workers(const spec::JobOptions& job, const server::HostSetup& setup, int64_t workers) {
  if (workers > setup.most())
    fail(ErrorCode::invalid_argument, "--workers {}: {} at most, since one host has room for {}{}",
         workers, setup.most(), server::kMostOnOneHost,
         setup.hosts.empty() ? "; --hosts adds more hosts" : "");
  if (workers <= job.train.virtual_ranks) return;
  if (!job.train.pipelined.stages.empty())
    fail(ErrorCode::invalid_argument,
         "--workers {}: each worker hosts at least one stage, and the plan has {}, with all "
         "replicas; use --workers {}, or a plan of more stages: where `ductile plan` finds none "
         "that is faster, one is written by hand (docs/guides/planner.md)",
         workers, job.train.virtual_ranks, job.train.virtual_ranks);
  fail(
      ErrorCode::invalid_argument,
      "--workers {0}: each worker hosts at least one virtual rank, and train.virtual_ranks is {1}; "
      "set it to {0} or more (results depend on it, not on the number of workers)",
      workers, job.train.virtual_ranks);
}

server::HostSetup host_setup_of(const HostsRequest& request, const server::HostSetup& before) {
  server::HostSetup setup = before;
  if (request.hosts) {
    std::error_code ignored;
    setup.hosts = fs::is_regular_file(*request.hosts, ignored)
                      ? server::read_hosts(*request.hosts)
                      : server::parse_hosts(*request.hosts);
  } else if (before.hosts.empty() && (request.launcher || request.listen)) {
    fail(ErrorCode::invalid_argument, "{} says how hosts are reached, and --hosts names none",
         request.launcher ? "--launcher" : "--listen");
  }
  if (request.launcher) setup.launcher = *request.launcher;
  if (request.listen) setup.listen = *request.listen;
  for (const server::Host& host : setup.hosts) {
    if (server::is_this_machine(host)) continue;
    if (server::launch_words(setup.launcher, "") == server::launch_words(setup.launcher, "x"))
      fail(ErrorCode::invalid_argument,
           "--launcher '{}': {{host}} stands for the host, as in 'ssh {{host}}'", setup.launcher);
  }
  return setup;
}

namespace {

std::unique_ptr<server::Launcher> make_launcher(net::Loop& loop, const run::RunFolder& folder,
                                                const spec::JobOptions& job, const ElasticRun& run,
                                                std::shared_ptr<process::Zygote> loaded) {
  const bool python = !job.python.object.empty();
  if (run.setup.hosts.empty())
    return server::make_local_launcher(loop,
                                       {python ? process::python_worker(run.program) : run.program,
                                        folder.log_file(), job.train.threads},
                                       folder.path(), std::move(loaded));
  server::HostsLauncherOptions options;
  options.setup = run.setup;
  options.program = fs::read_symlink("/proc/self/exe");
  options.worker = run.program;
  options.python = python;
  options.log = folder.log_file();
  options.threads = job.train.threads;
  options.all = run.every_host;
  options.elsewhere = kind_of(folder.path() / "membership.json") != FileKind::none &&
                      server::load_host_setup(folder.path()) != run.setup;
  return server::make_hosts_launcher(loop, std::move(options), folder.path());
}

// What the user tells this process while the job runs.
class Signals {
 public:
  Signals(net::Loop& loop, server::JobHost& host, const ElasticRun& run, int fd)
      : host_(host), run_(run), fd_(fd) {
    watch_ = loop.watch(fd_, net::Interest::read, [this](net::Ready) { take(); });
  }

 private:
  void take() {
    signalfd_siginfo info;
    while (read(fd_, &info, sizeof info) == sizeof info) {
      switch (info.ssi_signo) {
        case SIGINT:
        case SIGTERM:
        case SIGHUP:
          end(static_cast<int>(info.ssi_signo));
          break;
        case SIGTSTP:
          raise(SIGSTOP);  // returns when we are continued; the workers halt when their lease ends
          break;
        default:
          break;
      }
    }
  }

  void end(int signal) {
    host_.note_signal(signal);
    if (run_.on_interrupt) run_.on_interrupt();
    const bool is_first = !requests_.any();
    if (requests_.repeats()) return host_.kill();
    if (!is_first) return;
    host_.request(control::PreemptJob{}, [this](const link::RequestAnswer& answer) {
      const std::string why = answer.refused + answer.waits;
      if (!why.empty())
        run_.on_note({"signal", fmt::format("not stopped yet: {}; once more ends the workers "
                                            "without saving",
                                            why)});
    });
  }

  server::JobHost& host_;
  const ElasticRun& run_;
  const int fd_;
  EndRequests requests_;
  net::Loop::Watch watch_;
};

// Whether a run that has begun waits for workers that do not come.
class Shortage {
 public:
  Shortage(net::Loop& loop, server::JobHost& host, const ElasticRun& run) : host_(host), run_(run) {
    if (run.patience <= 0 || !run.on_short || run.fewest <= 1) return;
    const auto interval = std::chrono::duration<double>(std::min(1.0, run.patience / 4));
    timer_ =
        loop.every(std::chrono::duration_cast<net::Clock::duration>(interval), [this] { look(); });
  }

 private:
  void look() {
    const nlohmann::json status = host_.status();
    const std::string phase = status.value("phase", "");
    const bool waits = phase == "starting" || phase == "running" || phase == "resizing";
    WorkersLeft there;
    if (waits && status.contains("workers")) {
      for (const nlohmann::json& worker : status.at("workers")) {
        if (!worker.value("connected", false)) continue;
        ++there.count;
        if (worker.contains("host")) there.hosts.push_back(worker.at("host").get<std::string>());
      }
    }
    if (std::ssize(there.hosts) != there.count) there.hosts.clear();
    std::ranges::sort(there.hosts);
    const bool has_run =
        waits && status.contains("generation") && status.at("generation").value("number", 0) > 0;
    if (!has_run || there.count == 0 || there.count >= run_.fewest) return since_.reset();
    const net::Clock::time_point now = net::Clock::now();
    if (!since_) since_ = now;
    if (std::chrono::duration<double>(now - *since_).count() < run_.patience) return;
    if (run_.on_short(there)) host_.kill();
  }

  server::JobHost& host_;
  const ElasticRun& run_;
  std::optional<net::Clock::time_point> since_;
  net::Loop::Timer timer_;
};

}  // namespace

link::JobEnd run_elastic(const run::RunLock& lock, const run::RunFolder& folder,
                         const spec::JobOptions& job, const ElasticRun& run,
                         std::shared_ptr<process::Zygote> loaded) {
  net::Loop loop;
  server::JobHostOptions options;
  options.membership = link::membership_options(job);
  // Before signals are held: hosts that do not answer are waited for, and Ctrl-C ends that.
  std::unique_ptr<server::Launcher> launcher =
      make_launcher(loop, folder, job, run, std::move(loaded));
  if (!run.setup.hosts.empty()) options.listen = server::listen_address(run.setup);
  if (run.setup != server::load_host_setup(folder.path()))
    server::save_host_setup(folder.path(), run.setup);
  options.membership.num_hosts = std::max<int64_t>(1, static_cast<int64_t>(run.setup.hosts.size()));
  options.membership.rank_hosts = run.rank_hosts;
  options.membership.max_workers = std::min(run.setup.most(), job.train.virtual_ranks);
  options.membership.min_workers = std::min(run.fewest, options.membership.max_workers);
  HeldSignals held;
  options.run = folder.path();
  options.keep_checkpoints = job.checkpoint.keep;

  server::JobHost* host = nullptr;
  options.on_line = [&](control::WorkerId, std::string_view line) { run.on_line(line); };
  bool first = true;
  options.on_note = [&](const control::Note& note) {
    const bool begins = note.event == "generation" && std::exchange(first, false);
    if (!begins || host->wanted_workers() > 1) run.on_note(note);
  };
  server::JobHost job_host(loop, lock, std::move(options), std::move(launcher));
  host = &job_host;
  const Signals signals(loop, job_host, run, held.fd());
  const Shortage shortage(loop, job_host, run);
  return server::run_job(loop, job_host, run.workers);
}

}  // namespace ductile::cli
