#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/control/protocol.h"

// The life of one elastic job: its workers, its generations and its checkpoints. It is a pure state
// machine, which takes events and the time, and returns commands with reasons.
namespace ductile::control {

enum class Phase {
  queued,      // not started yet
  starting,    // no generation has run since start or resume
  running,     // a generation runs, or is formed again after a loss
  resizing,    // like running, while the number of workers is not yet the requested one
  preempting,  // the step is finished, the state saved, and the workers are stopped
  preempted,   // the job holds no resources; ResumeJob continues it
  finishing,   // all steps are done; the result is saved, and the workers are stopped
  finished,
  failed,
};
std::string_view to_string(Phase phase);

// ---- Events: what happened. JSON: {"event": "resize", "workers": 4}.

// Requests of a user or scheduler. A request that does not fit the phase is refused; a Note says
// why.
struct StartJob {
  int64_t workers = 1;
};
struct ResizeJob {
  int64_t workers = 1;
  // These go, whoever stays: their devices are given to somebody else. Each is replaced where more
  // than the others are wanted, and takes part until then. Those that an earlier resize named, and
  // this one does not, stay after all.
  std::vector<WorkerId> leave{};
};
struct PreemptJob {};
struct ResumeJob {
  int64_t workers = 0;  // 0: as many as before
};
struct StopJob {  // gives the job up: its phase becomes failed, with this reason
  std::string reason = "stopped by request";
};
struct SaveJob {};  // saves a checkpoint soon
// From the launcher that carries out LaunchWorker and KillWorker.
struct LaunchFailed {
  WorkerId worker = 0;
  std::string text;
  bool no_host = false;  // no host can be reached that has room, so nothing was tried
  bool no_room = false;  // and all can be reached: this job's workers have the places
};
struct WorkerExited {  // this is certain: the process was reaped, or its host has rebooted
  WorkerId worker = 0;
  int64_t code = 0;    // -1: it is not known how it ended
  int64_t signal = 0;  // 0: it exited by itself
};
// From the connections to workers. A worker that connects (again) sends a WorkerStatus.
struct ConnectionClosed {
  WorkerId worker = 0;
};
struct WorkerReported {
  WorkerStatus report;
  std::string host{};  // where it runs, by its launcher's name; empty: not known, or the only one
};
// From the store that carries out PublishCheckpoint.
struct CheckpointPublished {
  int64_t step = 0;
};
struct PublishFailed {  // this is certain: the checkpoint does not count, and never will
  int64_t step = 0;
  std::string text;
};
// Nothing happened, but next_deadline() has come.
struct Tick {};

using Event = std::variant<StartJob, ResizeJob, PreemptJob, ResumeJob, StopJob, SaveJob,
                           LaunchFailed, WorkerExited, ConnectionClosed, WorkerReported,
                           CheckpointPublished, PublishFailed, Tick>;

// ---- Commands: what to do, in order. JSON: {"command": "launch_worker", ...}.

struct LaunchWorker {  // start a process and tell it its id
  WorkerId worker = 0;
  std::string reason;
  std::vector<std::string> avoid{};  // hosts where a worker could not begin; prefer other hosts
};
struct KillWorker {  // the launcher sends SIGKILL, or does what certainly ends the process
  WorkerId worker = 0;
  std::string reason;
};
struct SendInstruction {  // to the worker, if it is connected; drop it otherwise
  Instruction instruction;
};
// Make the checkpoint that `worker` wrote count, so that it is the newest one. Only the
// controller's host does this, so a worker that was replaced cannot. Doing it twice is harmless.
// The answer is CheckpointPublished or PublishFailed.
struct PublishCheckpoint {
  WorkerId worker = 0;
  Generation generation = 0;
  int64_t step = 0;
  SaveFigures figures{};
};
struct Release {  // no process of the job is left: free its resources (perhaps a second time)
  std::string reason;
};
struct Note {         // for the job's event log and its user
  std::string event;  // "phase", "generation", "lost", "refused", "checkpoint", "launch_failed" ...
  std::string text;
};

using Command =
    std::variant<LaunchWorker, KillWorker, SendInstruction, PublishCheckpoint, Release, Note>;

nlohmann::json to_json(const Event& event);
nlohmann::json to_json(const Command& command);
Event event_from_json(const nlohmann::json& value);
Command command_from_json(const nlohmann::json& value);

// ---- The machine.

struct MembershipOptions {
  int64_t virtual_ranks = 1;
  int64_t min_workers = 1;  // with fewer, the job does not run; survivors wait with their state
  int64_t max_workers = 0;  // 0: one per virtual rank
  // A worker that is silent for longer counts as unreachable.
  Time heartbeat_deadline = std::chrono::milliseconds(1500);
  // A worker that for this long neither got an Ack nor found that the saved state lets it go on
  // stops computing (WorkerProtocol has the same figure). The controller considers it stopped after
  // this time and `clock_drift`, from the last Ack or from when it had saved that the worker is to
  // go on no more, whichever came later.
  Time lease = std::chrono::seconds(10);
  Time clock_drift = std::chrono::milliseconds(500);
  Time reattach = std::chrono::seconds(5);  // for workers to report to a restarted controller
  Time start_deadline = std::chrono::seconds(120);   // from launch to ready
  Time join_window = std::chrono::seconds(2);        // how long a ready joiner waits for the others
  Time pause_deadline = std::chrono::seconds(60);    // to finish a step before it is given up
  Time stop_deadline = std::chrono::seconds(5);      // to exit before the worker is killed
  Time preempt_deadline = std::chrono::seconds(60);  // to save; then the job is preempted without
  // Once an attempt to save the result has failed, the job fails after this long in finishing.
  Time finish_deadline = std::chrono::seconds(60);
  Time backoff_base = std::chrono::milliseconds(100);  // doubles with every failure
  Time backoff_max = std::chrono::seconds(30);
  // Without a new committed step in between; one more fails the job. With the backoff they take
  // longer than `finish_deadline`: for so long a host may refuse what it is asked for.
  int64_t max_failures = 10;
  // How many of these may be crashes (a worker ended, or fell silent, without a word) while one
  // worker on one host is wanted. No other worker makes up for its loss, and a crash that comes
  // back is most likely a fault of the job, so its user learns of it soon.
  int64_t max_crashes_alone = 2;
  int64_t num_hosts = 1;  // on which workers may be launched
  // How often workers may begin with an error on the only host. An error which says that the job or
  // its stored state is wrong ends the job at once.
  int64_t max_begin_tries = 3;
  Time checkpoint_every{0};  // 0: checkpoints are not taken by time
  // Above 0: where checkpoints are quick, they are taken more often than every `checkpoint_every`,
  // up to so often; each then takes at most a tenth of the time from the one before.
  Time checkpoint_soonest{0};
  int64_t checkpoint_steps = 0;  // at multiples of this step; 0: not by step
  bool save_result = true;       // whether to save the state after the last step
  // The host on which each virtual rank is wanted, by its launcher's name ("": any); empty: no rank
  // is wanted anywhere. Each generation has as many of them there as it can (seat_workers()); the
  // job waits for none.
  std::vector<std::string> rank_hosts{};
  // Each member of a generation reads its parts of a checkpoint by itself; otherwise one reads all
  // of it, and gives the others theirs.
  bool all_read = false;
  Time checkpoint_retry = std::chrono::seconds(1);
  // The steps of the checkpoints that the store holds when the object is created, ascending. A job
  // without a saved controller state begins with the last one.
  std::vector<int64_t> checkpoints;
  Generation last_generation = 0;  // this number and all below it were given before
  // Whether a saved state may be of another number of virtual ranks: the job has got another plan
  // since. It then begins as one without a saved state, but for numbers, which go on, and costs.
  bool may_change_ranks = false;
  // What a job without a saved controller state has cost before; without energy: not known.
  run::Cost spent{.energy_joules = 0};
  Time resend = std::chrono::milliseconds(100);  // before an instruction is repeated
};

struct Outcome {
  std::vector<Command> commands;
  // Whether save() must be on stable storage before the first command is carried out, because a
  // generation, a worker's id or a phase was decided. If false, losing the save costs nothing.
  bool must_save = false;
};

// Whether a saved state (Membership::save()) lets a worker go on in this generation without a word
// from the controller: no newer one was granted, and the worker was not told to go. False for what
// is no saved state.
bool may_go_on(const nlohmann::json& saved, WorkerId worker, Generation generation);

// The controller of one job. It is a value: a copy forks the history of the job (simulators do so).
//
// `now` never decreases during the life of one object; a restored object may have another epoch.
// One thread at a time may use it. There is no I/O, no clock and no randomness, so the same events
// at the same times give the same commands.
class Membership {
 public:
  // Throws invalid_argument if the options fit no job.
  explicit Membership(MembershipOptions options);

  // A controller that starts again from the result of save(). If more workers were wanted than the
  // options allow, the number becomes the allowed one. `first` receives what to do at once. Throws
  // data_loss if `saved` is not a saved state, not_found if it had checkpoints but
  // options.checkpoints is empty, and invalid_argument if it belongs to another number of virtual
  // ranks; where options.may_change_ranks allows that, conflict if it still lists workers.
  static Membership restore(MembershipOptions options, const nlohmann::json& saved, Time now,
                            Outcome& first);
  nlohmann::json save() const;

  // Any event is accepted at any time: an event that is late, duplicated or about an unknown worker
  // does no harm. No event causes an exception.
  Outcome apply(const Event& event, Time now);
  // Applies the events that had come by `now`. All are processed before anything is decided, so
  // that a controller that could not listen for a while considers no worker silent whose report is
  // among them.
  Outcome apply(std::span<const Event> events, Time now);

  // What the last outcome had to save is on stable storage. Without a call the next apply() says
  // so, as of its time.
  void saved(Time now);

  // When apply(Tick) is due at the latest; calling it earlier or later is allowed.
  Time next_deadline() const;

  // What the job does, or for what it waits, and why; one line for the user.
  std::string why(Time now) const;

  Phase phase() const;
  const std::string& reason() const;  // of the phase: why the job failed, who asked ...
  int64_t wanted_workers() const;
  const GenerationPlan& generation() const;  // the last one formed; number 0 before the first
  int64_t step() const;                      // the newest state that a worker is known to have had
  int64_t checkpoint() const;                // the step of the newest published one; -1: none
  // From asking for a checkpoint to its publication, the longest so far; 0: none was seen yet.
  Time longest_save() const;
  bool crashed() const;  // whether the job failed because workers kept ending without an error
  ErrorCode error_code() const;  // the kind of the error with which the job failed, if it is known
  bool result_unsaved() const;   // whether it failed since nothing took the result of all steps
  // Preempted without saving: how many steps will be done again for that reason; else 0.
  int64_t unsaved_steps() const;
  // The cost of all workers over the life of the job, also of those that are gone. The energy of
  // each host is counted once. The caller, who has a clock, adds wall_seconds.
  run::Cost cost() const;

  ~Membership();
  Membership(const Membership&);
  Membership(Membership&&) noexcept;
  Membership& operator=(const Membership&);
  Membership& operator=(Membership&&) noexcept;

 private:
  Membership successor(Time now, Outcome& first) const;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ductile::control
