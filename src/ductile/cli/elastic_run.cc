#include "ductile/cli/elastic_run.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/cli/held_signals.h"

namespace ductile::cli {

void check_workers(const spec::JobOptions& job, int64_t workers) {
  if (workers <= job.train.virtual_ranks) return;
  fail(
      ErrorCode::invalid_argument,
      "--workers {0}: each worker hosts at least one virtual rank, and train.virtual_ranks is {1}; "
      "set it to {0} or more (results depend on it, not on the number of workers)",
      workers, job.train.virtual_ranks);
}

server::JobEnd run_elastic(const run::RunFolder& folder, const spec::JobOptions& job,
                           const ElasticRun& run) {
  HeldSignals signals;
  server::JobControllerOptions options;
  options.run = folder.path();
  options.membership.virtual_ranks = job.train.virtual_ranks;
  options.membership.checkpoint_every = std::chrono::duration_cast<control::Time>(
      std::chrono::duration<double>(job.checkpoint.every_seconds));
  options.membership.checkpoint_steps = job.checkpoint.every_steps;
  options.keep_checkpoints = job.checkpoint.keep;
  options.on_line = [&](control::WorkerId, std::string_view line) { run.on_line(line); };
  options.on_note = run.on_note;
  options.watch_fd = signals.fd();

  server::JobController* controller = nullptr;
  bool interrupted = false;
  options.on_watch = [&] {
    signalfd_siginfo info;
    while (read(signals.fd(), &info, sizeof info) == sizeof info) {
      switch (info.ssi_signo) {
        case SIGINT:
        case SIGTERM:
        case SIGHUP:
          if (interrupted) {
            controller->kill();
          } else {
            controller->request(control::PreemptJob{});
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
  server::JobController job_controller(
      std::move(options), server::make_local_launcher(
                              {run.program, folder.log_file(), job.train.threads}, folder.path()));
  controller = &job_controller;
  return job_controller.run(run.workers);
}

}  // namespace ductile::cli
