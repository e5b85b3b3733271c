#pragma once

#include <chrono>
#include <string>

#include "ductile/control/protocol.h"
#include "ductile/link/job_end.h"
#include "ductile/net/socket.h"
#include "ductile/run/folder.h"
#include "ductile/run/lock.h"
#include "ductile/spec/job.h"
#include "ductile/train/ingredients.h"

// The two ways to run a WorkerLoop.
namespace ductile::train {

// The command line of ductile-worker when a controller starts it.
struct WorkerLaunch {
  run::RunFolder folder;  // holds job.toml
  spec::JobOptions job;   // resolved and checked
  control::WorkerId worker = 0;
  net::Address controller, store;
  std::string
      address;  // where workers of other hosts reach it; empty: as it reaches the controller
  int progress_fd = -1;           // run/progress.h
  Recipe recipe = {};             // empty: from the job file
  std::chrono::seconds alone{0};  // link::WorkerLinkOptions::alone
};

// Runs one worker under a controller until the controller tells it to exit. The job's secret comes
// from the environment (net::Secret::load). Throws only errors that it has no connection to report
// by.
void work(const WorkerLaunch& launch);

struct LocalRun {
  run::RunFolder folder;  // holds job.toml
  spec::JobOptions job;   // resolved and checked
  Recipe recipe = {};     // empty: from the job file
  int progress_fd = -1;
  // The signal that asks the run to save and end, or 0; empty: nobody asks.
  std::function<int()> interrupted = {};
};

// Trains the job of a run folder in this thread, without a controller in another process; tests use
// it. It begins the job, or resumes it from the newest checkpoint, and fills the folder as any run
// does. The caller holds the lock of the run.
link::JobEnd train_here(const run::RunLock& lock, const LocalRun& run);

}  // namespace ductile::train
