#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/control/membership.h"
#include "ductile/link/job_driver.h"
#include "ductile/link/job_end.h"
#include "ductile/net/loop.h"
#include "ductile/run/lock.h"
#include "ductile/server/launcher.h"

// The process side of the controller of one job: it carries out what control::Membership decides.
namespace ductile::server {

struct JobHostOptions {
  fs::path run;  // the run directory; its checkpoints lie in checkpoints/
  control::MembershipOptions membership;
  int64_t keep_checkpoints = 2;
  std::string listen = "127.0.0.1";  // for workers; of other hosts: an address they can reach
  // For so long its workers go on without it, as far as its saved state lets them; 0: until their
  // lease ends.
  std::chrono::seconds alone{0};
  // Gets each line that a worker writes to its progress pipe. May be empty. The host itself hears a
  // worker that says there why it cannot begin at all (run::Failed, invalid_argument): it counts as
  // an error before the worker took part.
  std::function<void(control::WorkerId, std::string_view line)> on_line;
  // What happened, as it is written to events.jsonl. May be empty.
  std::function<void(const control::Note&)> on_note;
};

// How a job ended here. With an error: its run directory cannot be used (data_loss, unavailable),
// or the options fit no job (invalid_argument).
struct JobOutcome {
  link::JobEnd end;
  std::exception_ptr error;
};

// Takes one job from its run directory to its end, in a loop that may have others. It keeps there
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
//
// It never keeps the loop waiting: a thread of its own reads and writes the files above, another
// one publishes checkpoints. All methods and callbacks belong to the loop's thread.
class JobHost {
 public:
  using OnEnd = std::function<void(JobOutcome)>;

  // The caller holds the run's lock, since before `launcher` was made and for the life of this
  // object. `launcher` was made with the same loop.
  JobHost(net::Loop& loop, const run::RunLock& lock, JobHostOptions options,
          std::unique_ptr<Launcher> launcher);
  JobHost(const JobHost&) = delete;
  JobHost& operator=(const JobHost&) = delete;
  // Before the end it kills the workers, without saving, and waits for the disk.
  ~JobHost();

  // Starts the job, or goes on with it, until no process is left; then calls `on_end`, which may
  // destroy this object. `workers` 0: as many as before, or 1. The outcome is the error
  // invalid_argument if that many workers cannot share the job.
  void start(int64_t workers, OnEnd on_end);

  // Until the job runs, these are kept until then. `on_answer` is called as soon as it is certain
  // what becomes of the request.
  void request(const control::Event& event, link::OnAnswer on_answer);
  void note_signal(int number);  // that came to this process
  void kill();                   // all workers at once, without saving; the job then ends

  int64_t wanted_workers() const;  // 0 before the job runs

  // What `status` answers: {"phase", "reason", "why", "wanted", "step", "checkpoint",
  // "save_seconds" (the longest, from asking for it on; 0: none was seen yet), "generation":
  // {"number", "start"}, "workers": [{"id", "phase", "step", "ranks", ...}]}.
  nlohmann::json status() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs `loop` until this one job has ended. Throws the outcome's error.
link::JobEnd run_job(net::Loop& loop, JobHost& host, int64_t workers);

}  // namespace ductile::server
