#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/net/loop.h"
#include "ductile/serving/router.h"

namespace ductile::serving {

// How a replica is started: a program that serves on a free port of this machine, writes the row
// {"address": "HOST:PORT"} to its progress pipe (run/progress.h) when it can be asked, and at
// SIGTERM finishes what it has.
struct ReplicaCommand {
  fs::path program;
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> environment;
  fs::path log;  // takes stdout and stderr
};

// The processes behind a Router: keeps as many alive as are wanted. One that is to go gets no more
// requests, answers those that it has, and ends; one that is lost is replaced, after a pause that
// grows while it keeps happening. All methods and callbacks belong to the loop's thread, which is
// also the one whose end ends the processes.
class Replicas {
 public:
  struct Callbacks {
    std::function<void(const std::string&)> tell;  // lines for people
    // The first replica cannot start, as it says itself; the owner then destroys this.
    std::function<void(const Error&)> on_failed;
    std::function<void()> on_ready;  // once: the first one can be asked
  };

  Replicas(net::Loop& loop, Router& router, ReplicaCommand command, Callbacks callbacks);
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;
  ~Replicas();  // kills what is left

  void resize(int64_t count);
  int64_t wanted() const;
  int64_t used() const;   // processes, also those that are ending
  int64_t ready() const;  // that take requests
  // Ends all, after what they have; `on_ended` when no process is left.
  void end(std::function<void()> on_ended);
  std::vector<int> pids() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::serving
