#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ductile/control/protocol.h"
#include "ductile/link/command_source.h"
#include "ductile/net/secret.h"
#include "ductile/run/folder.h"
#include "ductile/spec/job.h"
#include "ductile/train/ingredients.h"

namespace ductile::train {

// What a worker of a job needs to know; all of it outlives the loop.
struct WorkerInput {
  run::RunFolder folder;  // holds job.toml
  spec::JobOptions job;   // resolved and checked
  // Makes the job's ingredients; if it is empty they are made from the job file. It is the same for
  // all workers.
  Recipe recipe = {};
  // How the worker meets others; both are empty if there never is another worker (LocalControl).
  const net::Secret* secret = nullptr;
  std::string address = {};  // where workers of other hosts reach it
  int progress_fd = -1;      // lines of run/progress.h go here while this worker leads; -1: nowhere
  // The signal that asks the worker to leave, or 0; empty: nobody asks.
  std::function<int()> interrupted = {};
};

// The step loop of one worker of a job. It hosts the virtual ranks that the commands give it, in
// one generation after the other, until it is told to exit. All training runs through this loop,
// whether the commands come from a controller in another process or from one in this thread, and
// whether the worker is alone or one of many.
//
// The member with rank 0 leads: it evaluates, logs, reports progress, and writes the results when
// the job is done. The weights after step t depend on the job, the data and t alone, whichever
// workers came, left or died before.
//
// The worker reports faults of the job (bad data, divergence) to the controller, which ends the job
// with their text.
class WorkerLoop {
 public:
  WorkerLoop(const WorkerInput& input, link::CommandSource& source);
  ~WorkerLoop();
  WorkerLoop(const WorkerLoop&) = delete;
  WorkerLoop& operator=(const WorkerLoop&) = delete;

  // Returns once the worker was told to exit and has written everything it had to write. Call it
  // once.
  void run();

  // Tells the loop that the generations up to this one are over: anything that it waits for in one
  // of them fails at once (link::WorkerLinkOptions::on_abandon). Any thread may call it.
  void give_up(control::Generation generation);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::train
