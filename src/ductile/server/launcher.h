#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <sys/types.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/control/membership.h"
#include "ductile/net/loop.h"
#include "ductile/server/core_pool.h"
#include "ductile/server/gpu_pool.h"

namespace ductile::process {
class Zygote;
}

namespace ductile::server {

class Zygotes;

struct WorkerStart {
  control::WorkerId worker = 0;
  std::vector<std::string> arguments;  // of ductile-worker, --progress-fd left out
  std::vector<std::pair<std::string, std::string>> environment;
  int64_t workers = 1;             // how many share the machine
  std::vector<std::string> avoid;  // hosts to take only where no other one is left
  int64_t devices = 1;             // whose cores it has, where devices are shares of cores
  int64_t gpus = 0;                // that it has for itself, where they are shared out
};

struct EarlierWorker {  // that an earlier controller started
  control::WorkerId worker = 0;
  std::string place{};  // of its address (link/addresses.h); empty: it never said
};

struct WorkerLine {  // of its progress pipe
  control::WorkerId worker = 0;
  std::string text;
  std::string host{};  // where it runs; empty: this one
};
using LauncherEvent = std::variant<control::WorkerExited, control::LaunchFailed, WorkerLine>;

// So many workers on one host.
struct HostShare {
  std::string host;
  int64_t workers = 0;
};

struct WorkerPlace {
  std::string host;   // empty: this one, or unknown
  pid_t process = 0;  // 0: unknown, or of another host
};

// What Launcher::start() throws where no host that can be reached has room now: nothing was tried,
// and nothing is said of the job. `held`: all hosts can be reached, so workers of this job have the
// places.
struct NoPlace : Error {
  NoPlace(std::string message, bool places_are_held)
      : Error(ErrorCode::unavailable, std::move(message)), held(places_are_held) {}
  bool held;
};

// Starts and ends workers. This interface is the seam between the controller and the machines on
// which processes run. It belongs to the thread of the loop that it was made with, and none of its
// methods waits for anybody.
class Launcher {
 public:
  virtual ~Launcher() = default;

  // Throws NoPlace, or another Error if the worker cannot be started; if that turns out later,
  // take() gives LaunchFailed.
  virtual void start(const WorkerStart& start) = 0;
  // Ends the process for certain. take() then gives its WorkerExited, also if the process is gone
  // already; for a host that cannot be reached it does so when the host can be reached again.
  virtual void kill(control::WorkerId worker) = 0;
  // Tells a keeper, where it can be reached now, to end its command in good order, then itself. May
  // be repeated.
  virtual void ask_to_end(control::WorkerId) {}
  // Finds the processes that an earlier controller started. For those that are gone, take() gives
  // WorkerExited; for those on hosts that cannot be reached, or in places that are none of this
  // launcher's, which may still run, it gives nothing, also when they are killed.
  virtual void adopt(std::span<const EarlierWorker> workers) = 0;

  // `on_ready` is called when take() may have something; it must only note this. take() is also to
  // be called now and then, for what it does after some time.
  virtual void call_when_ready(std::function<void()> on_ready) = 0;
  virtual std::vector<LauncherEvent> take() = 0;
  virtual size_t running() const = 0;  // processes that are known to run

  // Begins to end all that it has started, as its destructor does, which would wait for it. take()
  // goes on with this; once finished() holds, the destructor waits for nothing.
  virtual void finish() = 0;
  virtual bool finished() const = 0;

  // From now on workers are started on these hosts alone, with so many on each at most, in this
  // order; on all that there are where this was never called. Returns those that run and are too
  // many for it; they go on until somebody ends them.
  virtual std::vector<control::WorkerId> place(std::span<const HostShare>) { return {}; }
  // How many run, or may run, on each host; this one alone has no name.
  virtual std::map<std::string, int64_t> by_host() const = 0;

  virtual WorkerPlace place_of(control::WorkerId) const { return {}; }
};

struct LocalLauncherOptions {
  fs::path program;     // ductile-worker
  fs::path log;         // takes what all workers print
  int64_t threads = 0;  // a worker; 0: its share of the cores
  // Only workers that were started with `--host HOST` belong to this launcher; empty: all workers
  // of the run do.
  std::string host;
  bool kills_at_end = true;
  // The program is not a worker but a keeper, which stays with a command: it has neither a progress
  // pipe nor the environment of libtorch, and what kills it is SIGQUIT, upon which it kills all
  // that came of its command.
  bool keepers = false;
  // Whose shares the workers run on, one each; null: they share all cores with each other.
  std::shared_ptr<CorePool> cores;
  // Whose GPUs they see, as many as each asks for; null: all.
  std::shared_ptr<GpuPool> gpus;
  // Which fork the workers, for all launchers of the machine; null: a Python job has its own, and
  // other workers are started.
  std::shared_ptr<Zygotes> zygotes{};
};

// Begins to load the program for workers of any job that launchers with these options start, of
// which they name the program, the threads, the cores, the zygotes, and whether it kills at its
// end.
void warm_up(const LocalLauncherOptions& options);

// Workers as processes of this machine, each on its share of the cores. They outlive a launcher
// that is killed, and are found again by their owner, program and command line; its destructor
// kills and reaps those that are left, unless it is told not to. `loaded`: a zygote of the program
// that there is already, for a launcher that would else begin one of its own.
std::unique_ptr<Launcher> make_local_launcher(net::Loop& loop, LocalLauncherOptions options,
                                              const fs::path& run,
                                              std::shared_ptr<process::Zygote> loaded = nullptr);

}  // namespace ductile::server
