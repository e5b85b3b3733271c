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
  // Makes the job's ingredients; empty: from the job file. The same for all workers.
  Recipe recipe = {};
  // How it meets other workers; both empty where it never has one beside it (LocalControl).
  const net::Secret* secret = nullptr;
  std::string address = {};  // where workers of other hosts reach it
  int progress_fd = -1;      // lines of run/progress.h go here while this worker leads; -1: nowhere
  // The signal that asks the worker to leave, or 0; empty: nobody asks.
  std::function<int()> interrupted = {};
};

// The step loop: one worker of a job, which hosts the virtual ranks that the commands give it, in
// one generation after the other, until it is told to exit. It is the only way in which Ductile
// trains: whether the commands come from a controller far away or from one in this thread, and
// whether it is alone or one of many, is the same to it.
//
// The member of rank 0 leads: it evaluates, logs, draws progress, and writes what is left when the
// job is done. Weights after step t depend on the job, the data and t alone, whatever workers came,
// went or died on the way.
//
// Faults of the job (bad data, divergence) are told to the controller, which ends the job with
// their text.
class WorkerLoop {
 public:
  WorkerLoop(const WorkerInput& input, link::CommandSource& source);
  ~WorkerLoop();
  WorkerLoop(const WorkerLoop&) = delete;
  WorkerLoop& operator=(const WorkerLoop&) = delete;

  // Returns once it was told to exit and everything it had to write is written. Call once.
  void run();

  // From any thread: the generations up to this one are over; what the loop waits for in one of
  // them fails at once (link::WorkerLinkOptions::on_abandon).
  void give_up(control::Generation generation);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::train
