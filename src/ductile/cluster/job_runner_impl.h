#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/cluster/command_impl.h"
#include "ductile/cluster/engine_impl.h"
#include "ductile/cluster/records.h"
#include "ductile/cluster/runs_folder_impl.h"
#include "ductile/net/loop.h"
#include "ductile/spec/job.h"

namespace ductile::cluster {

// What the processes of a job have done.
struct JobProgress {
  int64_t generation = -1;            // rises whenever other processes do the steps
  int64_t step = 0, total_steps = 0;  // total 0: unknown
  // For how many seconds it stood still at its last start or change of devices, and how many of
  // these were measured.
  double pause = 0;
  bool pause_of_start = true;
  int64_t pauses = 0;
  double save = 0;  // seconds of its longest save so far; 0: none was seen yet
  // What the present processes have told of their steps, first and last. Absent: nothing yet.
  struct Told {
    int64_t step = 0;
    net::Deadline time{};
  };
  std::optional<Told> first{}, last{};
  // The last worker that was lost, or could not begin, since the present ones do the steps: its
  // host and its error. Empty: none.
  std::string trouble{};
};

// How a job ended here.
struct RunnerEnd {
  Phase phase = Phase::queued;  // queued: it was preempted, or it cannot run now
  std::string reason;           // empty: it was preempted
  bool rests = false;           // queued: what hinders it passes by itself; to be tried again
  bool redoes = false;          // rests: steps are done again, so it rests twice as long each time
  std::optional<int64_t> exit_code{};  // of a command that ended by itself, as a shell counts it
  bool moves = false;                  // queued: it begins again on other devices that it was given
};

// The processes of one job, from its start on some devices to its end or its preemption. This
// interface is the seam between the service and the kinds of jobs. All methods and callbacks belong
// to the loop's thread, and none waits for anybody.
class JobRunner {
 public:
  using OnEnd = std::function<void(RunnerEnd)>;

  virtual ~JobRunner() = default;  // before the end: kills its processes

  // Starts the job, or goes on with it, also with processes that an earlier service left. `on_end`
  // is called when no process is left, and may destroy this object. Without devices only what is
  // left of it is taken over.
  virtual void start(const std::vector<Holding>& devices, OnEnd on_end) = 0;
  // From now on it has these. `taken` is told whether it was taken up; a job that is just ending
  // takes up nothing.
  virtual void resize(const std::vector<Holding>& devices, std::function<void(bool)> taken) = 0;
  virtual void preempt() = 0;  // it saves what it can and ends

  // Devices that somebody wants it to have, and those that its processes use, also those which were
  // told to go and have not gone: by node, where the service's own machine may have no name.
  virtual int64_t wanted() const = 0;
  // With fewer devices it does nothing; to have fewer it is to begin anew.
  virtual int64_t least() const { return 1; }
  virtual std::map<std::string, int64_t> used() const = 0;
  virtual JobProgress progress() const = 0;
};

// Training: a server::JobHost on the run directory `run`, which is made if it is missing. Throws
// conflict if somebody else runs it, and as run::RunFolder does.
// `alone`: server::JobHostOptions::alone. `plan`: as made_run() has it. `least`: workers without
// which it does no step, since fewer have no memory for it.
std::unique_ptr<JobRunner> make_train_runner(net::Loop& loop, Engine& engine, const fs::path& run,
                                             spec::JobOptions& job, std::chrono::seconds alone,
                                             const std::string& plan, int64_t least);

// Any program (command_impl.h), on devices of one node: one keeper for each attempt, on the run
// directory `run` in `runs`. `lease`: of a keeper on a node that may not be reached at times, in
// seconds; 0: it is on this machine. An unreadable directory is waited for.
std::unique_ptr<JobRunner> make_command_runner(net::Loop& loop, Engine& engine,
                                               const RunsFolder& runs, const fs::path& run,
                                               const CommandSpec& command, double lease);

class Front;

// Replicas that answer inference requests behind `front`, which outlives the runner (front_impl.h):
// one worker on each device. Throws not_found if the run that is to be served is not there,
// unavailable if its disk is not, and conflict if somebody else runs the job.
std::unique_ptr<JobRunner> make_serve_runner(net::Loop& loop, Engine& engine, const fs::path& run,
                                             Front& front, std::chrono::seconds alone);

// Sends a signal to the processes of this machine that work for a run whose directory somebody has
// deleted: they would go on beside those that begin anew there. Whether there were any.
bool end_strays(const fs::path& run, int signal);

// The end of a job whose processes cannot be started or controlled.
RunnerEnd end_by(const std::exception_ptr& error);
// The same end; but a job that failed is tried again where the folder of the runs cannot be seen
// now (absence_of_runs()): what was looked for in it may be there.
RunnerEnd unless_away(RunnerEnd end, const RunsFolder& runs, const fs::path& run);

}  // namespace ductile::cluster
