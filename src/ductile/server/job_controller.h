#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/control/membership.h"
#include "ductile/link/job_end.h"
#include "ductile/net/socket.h"
#include "ductile/run/lock.h"
#include "ductile/server/launcher.h"

// The process side of the controller of one job: it carries out what control::Membership decides.
namespace ductile::server {

struct JobControllerOptions {
  fs::path run;  // the run directory; its checkpoints lie in checkpoints/
  control::MembershipOptions membership;
  int64_t keep_checkpoints = 2;
  std::string listen = "127.0.0.1";  // for workers; of other hosts: an address they can reach
  // Gets each line that a worker writes to its progress pipe. May be empty.
  std::function<void(control::WorkerId, std::string_view line)> on_line;
  // What happened, as it is written to events.jsonl. May be empty.
  std::function<void(const control::Note&)> on_note;
  // Called on the controller's thread when `watch_fd` is readable, until it no longer is: for a
  // signalfd. -1: nothing is watched.
  int watch_fd = -1;
  std::function<void()> on_watch;
};

// Runs one job from its run directory to its end, on the thread that calls run(). It keeps there
//
//   secret           what the job's processes prove themselves with (mode 0600)
//   membership.json  the saved state of control::Membership, on disk before anything is done
//   controller.json  where the workers find controller and store (link/addresses.h)
//   control.sock     takes requests (client.h)
//
// and starts workers through `launcher` as
//
//   ductile-worker --run RUN --worker ID --controller HOST:PORT --store HOST:PORT
//
// with DUCTILE_SECRET_FILE in their environment. A controller that was killed is replaced by a new
// one on the same directory: it restores the saved state, finds the workers that still run, and is
// found by them. Only time is lost.
class JobController {
 public:
  // The caller holds the run's lock, since before `launcher` was made and for the controller's
  // life. Throws data_loss if the saved state is damaged, and invalid_argument for options that fit
  // no job.
  JobController(const run::RunLock& lock, JobControllerOptions options,
                std::unique_ptr<Launcher> launcher);
  JobController(const JobController&) = delete;
  JobController& operator=(const JobController&) = delete;
  ~JobController();

  // Starts the job, or goes on with it, until no process is left. `workers` 0: as many as before,
  // or 1. Throws invalid_argument if that many workers cannot share the job.
  link::JobEnd run(int64_t workers);

  // These are for callbacks on the thread of run(). Returns why the request is not followed, or not
  // yet; empty if it is followed.
  std::string request(const control::Event& event);
  int64_t wanted_workers() const;
  // Ends the job as failed with this error, after everything that has arrived was processed.
  void give_up(const std::string& reason, ErrorCode code);
  void note_signal(int number);  // that came to this process
  void kill();                   // all workers at once, without saving; run() then ends

  // What `status` answers: {"phase", "reason", "why", "wanted", "step", "checkpoint",
  // "generation": {"number", "start"}, "workers": [{"id", "phase", "step", "ranks", ...}]}.
  nlohmann::json status() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::server
