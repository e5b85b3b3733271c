#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ductile/link/command_queue.h"
#include "ductile/link/command_source.h"
#include "ductile/link/job_driver.h"
#include "ductile/net/secret.h"
#include "ductile/run/folder.h"
#include "ductile/spec/job.h"
#include "ductile/train/ingredients.h"

namespace ductile::train::testing {

// A job whose workers are threads of the test: real WorkerLoops and the real Membership over a real
// run directory, without sockets and processes. So a test can hand in ingredients of its own, and
// end a worker at any command.
//
// Custom models that draw from libtorch's generator fit only in stages, which lock it while an
// operator draws: the threads share it, and a virtual rank draws in all of its pass. The built-in
// models draw from a generator of the thread.
class LocalCluster final : public link::JobWorld {
 public:
  LocalCluster(const run::RunFolder& folder, const spec::JobOptions& job, Recipe recipe);
  ~LocalCluster() override;

  // Starts the job, or goes on with it.
  void start(int64_t workers);
  // Goes on until the newest state is that of `step`, or the job is over.
  void run_to(int64_t step);
  // Ends one of the workers that run, as a signal would: at its next word.
  void kill_some(uint64_t which);
  // Ends the worker whose loop's thread calls this, as a signal would: now. For ingredients.
  [[noreturn]] static void die();
  void resize(int64_t workers);
  // Saves and ends the job, which another cluster may go on with.
  void preempt();
  // Goes on until no worker is left, and writes the end of the run.
  link::JobEnd finish();

  int64_t step() const { return driver_.membership().step(); }
  bool over() const { return driver_.over(); }

  // ---- the world of the job
  void launch(const control::LaunchWorker& command) override;
  void kill(const control::KillWorker& command) override;
  void send(const control::Instruction& instruction) override;
  void adopt(const std::vector<control::WorkerStatus>& workers) override;

 private:
  class Source;
  struct Worker;
  void pump();
  void hear(control::Event event);
  void say_why_if_nothing_moves();

  const run::RunFolder folder_;
  const spec::JobOptions job_;
  const Recipe recipe_;
  const net::Secret secret_;
  std::map<control::WorkerId, std::unique_ptr<Worker>> workers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<control::Event> heard_;  // from the workers' threads

  std::pair<int64_t, control::Generation> moved_to_{-1, 0};
  std::chrono::steady_clock::time_point moved_at_;

  link::JobDriver driver_;
};

}  // namespace ductile::train::testing
