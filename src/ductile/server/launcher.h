#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/control/membership.h"

namespace ductile::server {

struct WorkerStart {
  control::WorkerId worker = 0;
  std::vector<std::string> arguments;  // of ductile-worker, --progress-fd left out
  std::vector<std::pair<std::string, std::string>> environment;
  int64_t workers = 1;             // how many share the machine
  std::vector<std::string> avoid;  // hosts to take only where no other one is left
};

struct WorkerLine {  // of its progress pipe
  control::WorkerId worker = 0;
  std::string text;
};
using LauncherEvent = std::variant<control::WorkerExited, control::LaunchFailed, WorkerLine>;

// Starts workers and ends them: the seam between the controller and where processes run. One
// thread.
class Launcher {
 public:
  virtual ~Launcher() = default;

  // Throws Error where the worker cannot be started; where that turns out later take() gives
  // LaunchFailed.
  virtual void start(const WorkerStart& start) = 0;
  // Ends the process for certain. Its WorkerExited comes through take(), also for one that is gone;
  // of a host that cannot be reached, when it can be again.
  virtual void kill(control::WorkerId worker) = 0;
  // After the controller was started again: finds the processes that an earlier one started. For
  // those that are gone take() gives WorkerExited; nothing for those that may run where nobody can
  // look.
  virtual void adopt(std::span<const control::WorkerId> workers) = 0;

  virtual int fd() const = 0;  // readable while take() has something
  virtual std::vector<LauncherEvent> take() = 0;
  virtual size_t running() const = 0;  // processes that are known to run

  // Whether there is any host that can be reached now; where not, start() tried nothing.
  virtual bool reachable() const { return true; }
  // Which host a worker is on; empty: this one, or unknown.
  virtual std::string host_of(control::WorkerId) const { return ""; }
};

struct LocalLauncherOptions {
  fs::path program;     // ductile-worker
  fs::path log;         // takes what all workers print
  int64_t threads = 0;  // a worker; 0: its share of the cores
  // Only workers that were started with `--host HOST` are its own; empty: all of the run.
  std::string host;
  bool kills_at_end = true;
};

// Workers as processes of this machine, each on its share of the cores. They outlive a launcher
// that is killed, and are found again by their owner, program and command line; its destructor
// kills and reaps those that are left, unless it is told not to.
std::unique_ptr<Launcher> make_local_launcher(LocalLauncherOptions options, const fs::path& run);

}  // namespace ductile::server
