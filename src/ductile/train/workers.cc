#include "ductile/train/workers.h"

#include <algorithm>
#include <mutex>

#include "ductile/base/log.h"
#include "ductile/link/local_control.h"
#include "ductile/link/membership_options.h"
#include "ductile/link/worker_link.h"
#include "ductile/net/secret.h"
#include "ductile/run/progress.h"
#include "ductile/train/interrupt.h"
#include "ductile/train/worker_loop.h"

namespace ductile::train {
namespace {

// While a controller's link calls back into the loop that takes its commands.
link::WorkerLinkOptions link_options(const WorkerLaunch& launch, const std::string& address) {
  link::WorkerLinkOptions options;
  options.worker = {.worker = launch.worker,
                    .address = link::PeerAddress::here(address).to_string()};
  const control::Time deadline = link::membership_options(launch.job).heartbeat_deadline;
  options.worker.heartbeat = std::min(options.worker.heartbeat, deadline / 6);
  options.job = link::job_name(launch.folder.path());
  options.controller = launch.controller;
  options.store = launch.store;
  options.run = launch.folder.path();
  options.alone = launch.alone;
  options.log = log_line;
  return options;
}

}  // namespace

void work(const WorkerLaunch& launch) {
  const net::Secret secret = net::Secret::load();
  const std::string address =
      launch.address.empty() ? net::local_address_towards(launch.controller) : launch.address;
  const WorkerInput input{.folder = launch.folder,
                          .job = launch.job,
                          .recipe = launch.recipe,
                          .secret = &secret,
                          .address = address,
                          .progress_fd = launch.progress_fd,
                          .interrupted = pending_interrupt};
  WorkerLoop* loop = nullptr;  // the link calls it back from its own thread
  std::mutex mutex;
  link::WorkerLinkOptions options = link_options(launch, address);
  options.on_abandon = [&](control::Generation generation) {
    const std::lock_guard lock(mutex);
    if (loop != nullptr) loop->give_up(generation);
  };
  link::WorkerLink source(std::move(options), secret);
  WorkerLoop own(input, source);
  {
    const std::lock_guard lock(mutex);
    loop = &own;
  }
  own.run();
  const std::lock_guard lock(mutex);
  loop = nullptr;
}

link::JobEnd train_here(const run::RunLock& lock, const LocalRun& run) {
  link::LocalControl control(lock, {.run = run.folder.path(),
                                    .membership = link::membership_options(run.job),
                                    .keep_checkpoints = run.job.checkpoint.keep,
                                    .worker_program = fs::read_symlink("/proc/self/exe")});
  const WorkerInput input{.folder = run.folder,
                          .job = run.job,
                          .recipe = run.recipe,
                          .progress_fd = run.progress_fd,
                          .interrupted = run.interrupted};
  WorkerLoop(input, control).run();
  return control.end();
}

}  // namespace ductile::train
