#include "ductile/cli/elastic_run.h"

#include <algorithm>
#include <utility>

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/cli/held_signals.h"
#include "ductile/link/membership_options.h"

namespace ductile::cli {

void check_workers(const spec::JobOptions& job, const server::HostSetup& setup, int64_t workers) {
  if (workers > setup.most())
    fail(ErrorCode::invalid_argument, "--workers {}: {} at most, since one host has room for {}{}",
         workers, setup.most(), server::kMostOnOneHost,
         setup.hosts.empty() ? "; --hosts adds more hosts" : "");
  if (workers <= job.train.virtual_ranks) return;
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

std::unique_ptr<server::Launcher> make_launcher(const run::RunFolder& folder,
                                                const spec::JobOptions& job,
                                                const ElasticRun& run) {
  if (run.setup.hosts.empty())
    return server::make_local_launcher({run.program, folder.log_file(), job.train.threads},
                                       folder.path());
  server::HostsLauncherOptions options;
  options.setup = run.setup;
  options.program = fs::read_symlink("/proc/self/exe");
  options.worker = run.program;
  options.log = folder.log_file();
  options.threads = job.train.threads;
  options.all = run.every_host;
  options.elsewhere = kind_of(folder.path() / "membership.json") != FileKind::none &&
                      server::load_host_setup(folder.path()) != run.setup;
  return server::make_hosts_launcher(std::move(options), folder.path());
}

}  // namespace

link::JobEnd run_elastic(const run::RunLock& lock, const run::RunFolder& folder,
                         const spec::JobOptions& job, const ElasticRun& run) {
  server::JobControllerOptions options;
  options.membership = link::membership_options(job);
  // Before signals are held: hosts that do not answer are waited for, and Ctrl-C ends that.
  std::unique_ptr<server::Launcher> launcher = make_launcher(folder, job, run);
  if (!run.setup.hosts.empty()) options.listen = server::listen_address(run.setup);
  if (run.setup != server::load_host_setup(folder.path()))
    server::save_host_setup(folder.path(), run.setup);
  options.membership.num_hosts = std::max<int64_t>(1, static_cast<int64_t>(run.setup.hosts.size()));
  options.membership.max_workers = std::min(run.setup.most(), job.train.virtual_ranks);
  HeldSignals signals;
  options.run = folder.path();
  options.keep_checkpoints = job.checkpoint.keep;
  options.watch_fd = signals.fd();

  server::JobController* controller = nullptr;
  options.on_line = [&](control::WorkerId, std::string_view line) {
    run.on_line(line);
    // What a worker says that cannot even reach its controller: another one would say the same.
    const auto known = run::decode(line);
    const auto* failed = known ? std::get_if<run::Failed>(&*known) : nullptr;
    if (failed != nullptr && failed->code == ErrorCode::invalid_argument)
      controller->give_up(failed->text, failed->code);
  };
  bool first = true;
  options.on_note = [&](const control::Note& note) {
    const bool begins = note.event == "generation" && std::exchange(first, false);
    if (!begins || controller->wanted_workers() > 1) run.on_note(note);
  };
  bool interrupted = false;
  options.on_watch = [&] {
    signalfd_siginfo info;
    while (read(signals.fd(), &info, sizeof info) == sizeof info) {
      switch (info.ssi_signo) {
        case SIGINT:
        case SIGTERM:
        case SIGHUP:
          controller->note_signal(static_cast<int>(info.ssi_signo));
          if (interrupted) {
            controller->kill();
          } else {
            const std::string why = controller->request(control::PreemptJob{});
            if (!why.empty())
              run.on_note({"signal", fmt::format("not stopped yet: {}; once more ends the workers "
                                                 "without saving",
                                                 why)});
          }
          interrupted = true;
          break;
        case SIGTSTP:
          raise(SIGSTOP);  // returns when we are continued; the workers halt when their lease ends
          break;
        default:
          break;
      }
    }
  };
  server::JobController job_controller(lock, std::move(options), std::move(launcher));
  controller = &job_controller;
  return job_controller.run(run.workers);
}

}  // namespace ductile::cli
