#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ductile/control/protocol.h"

// The worker's side of the protocol: what a worker may do in which generation. It is a pure state
// machine; the step loop passes events to it, and carries out its commands.
namespace ductile::control {

// ---- What happened in the worker.

struct Loaded {};             // code and data are loaded; the worker can join
struct InstructionReceived {  // from the controller
  Instruction instruction;
};
struct Restored {  // after Restore or Apply: the state before `step` is complete
  Generation generation = 0;
  int64_t step = 0;
  bool done = false;      // whether this is the state after the last step
  int64_t num_parts = 1;  // of the whole state
  Parts held{{0, 1}};     // the parts that this worker has
  bool can_save = false;  // what this worker does not have of the state is saved by the others
  bool on_disk = false;   // and is on disk by now: it is there until another step is applied
};
struct RestoreFailed {  // the checkpoint that Restore names is damaged or missing
  Generation generation = 0;
  std::string text;
};
struct Reduced {  // the whole reduction of `step` is in this worker's memory
  Generation generation = 0;
  int64_t step = 0;
  Parts next{{0, 1}};  // the parts that it has after Apply; it has all that they need
};
struct AllVoted {  // the votes of all members for `step` have arrived
  Generation generation = 0;
  int64_t step = 0;
  Generation stop = 0;  // the largest CastVote::stop among them
};
struct PeerLost {  // the communicator of `generation` is finished
  Generation generation = 0;
  std::vector<WorkerId> suspects;
  std::string text;
};
// The host of this worker refused something (memory, descriptors, a disk). The present command is
// given up, and tried again here or elsewhere. The state is unchanged; if a step was applied,
// Restored is passed first. If the worker was applying a step, its state is unknown, and it exits.
struct Faulted {
  Generation generation = 0;
  std::string text;
};
struct Abandoned {  // after Abandon: the step loop does nothing more in that generation
  Generation generation = 0;
};
struct Saved {
  uint64_t attempt = 0;
  int64_t step = 0;
  SaveFigures figures{};
};
struct SaveFailed {
  uint64_t attempt = 0;
  std::string text;
  bool parts_lost = false;  // what others had saved is not there, so it would fail again
};
struct JobError {  // a fault of the job itself (bad data ...): ends the job
  std::string text;
  ErrorCode code = ErrorCode::internal;
};
struct LeaveAsked {  // the host is drained: leave after the step
  int signal = 0;    // the signal that asked for it; 0: none
};
// The saved state of the controller was read, begun at `asked_at`, because no Ack came: it lets
// this worker go on in `generation` (may_go_on() of membership.h).
struct RecordRead {
  Time asked_at{0};
  Generation generation = 0;
};
struct Beat {};  // time has passed, which matters for the heartbeat and the lease

using WorkerEvent =
    std::variant<Loaded, InstructionReceived, Restored, RestoreFailed, Reduced, AllVoted, PeerLost,
                 Faulted, Abandoned, Saved, SaveFailed, JobError, LeaveAsked, RecordRead, Beat>;

// What an exception that ended a command means, so that no kind of error is mistaken for another.
// If a peer is gone (peer_lost, deadline), the event is PeerLost. If a resource is refused now
// (unavailable, no memory, an error of the system), it is Faulted. Every other error would happen
// on every worker, and is a JobError.
WorkerEvent event_of(const std::exception& error, Generation generation);
// The same for an exception that came while the checkpoint that Restore names was opened and read:
// damage and absence (data_loss, not_found) are RestoreFailed.
WorkerEvent restore_event_of(const std::exception& error, Generation generation);

// ---- What to do.

struct SendStatus {
  WorkerStatus report;
};
// Get the state before plan->start, and answer with Restored. Every member of a generation receives
// this command before the first step, whatever it holds, and none can answer before all have
// received it: they meet, bring the parts to where the plan wants them, and feed the members with
// self.source == peer. A member that keeps its state has it meanwhile; that of the others is gone.
struct Restore {
  std::shared_ptr<const GenerationPlan> plan;
  Member self;
};
// Compute the own ranks and reduce. The answer is Reduced or PeerLost.
struct RunStep {
  std::shared_ptr<const GenerationPlan> plan;
  int64_t step = 0;
};
struct CastVote {  // tell every member, and answer with AllVoted or PeerLost
  Generation generation = 0;
  int64_t step = 0;
  Generation stop = 0;  // if not 0: halt after this step, for that generation
  // Whether one worker is to be able to save after this step: alone, as all parts are at the
  // leader, or, here, as it has all parts or the others save theirs (Restored::can_save).
  enum class Gather { no, at_leader, here };
  Gather gather = Gather::no;
};
struct Apply {  // apply the reduction of `step`, and answer with Restored for step + 1
  Generation generation = 0;
  int64_t step = 0;
};
struct Abandon {  // make the communicator fail, give the step up, and answer with Abandoned
  Generation generation = 0;
};
struct WriteCheckpoint {  // of the state before `step`, which is copied before the next command
  uint64_t attempt = 0;
  Generation generation = 0;
  int64_t step = 0;
};
struct Exit {
  std::string reason;
};

using WorkerCommand =
    std::variant<SendStatus, Restore, RunStep, CastVote, Apply, Abandon, WriteCheckpoint, Exit>;

struct WorkerOptions {
  WorkerId worker = 0;
  std::string address;
  Time heartbeat = std::chrono::milliseconds(200);
  Time lease = std::chrono::seconds(10);  // as MembershipOptions::lease
};

// One worker. One thread at a time may use it: a step loop and a control thread share it under one
// lock, so that a promise and a vote exclude each other. `now` must advance while the process is
// stopped or its machine sleeps (CLOCK_BOOTTIME).
class WorkerProtocol {
 public:
  explicit WorkerProtocol(WorkerOptions options);

  // Commands must be carried out in order. Late, duplicated and stale events do no harm.
  std::vector<WorkerCommand> apply(const WorkerEvent& event, Time now);

  Time next_deadline() const;  // when apply(Beat) is due at the latest
  // Whether no Ack has come for a good part of the lease, so that RecordRead is of use.
  bool misses_controller(Time now) const;

  WorkerPhase phase() const;
  Generation generation() const;
  Generation promised() const;
  int64_t step() const;  // -1: no state
  bool voted() const;
  Time lease_until() const;

 private:
  enum class Activity { none, restoring, applying, stepping, voting };  // not yet answered

  void on(const Loaded&, Time now);
  void on(const InstructionReceived& event, Time now);
  void on(const Restored& event, Time now);
  void on(const RestoreFailed& event, Time now);
  void on(const Reduced& event, Time now);
  void on(const AllVoted& event, Time now);
  void on(const PeerLost& event, Time now);
  void on(const Faulted& event, Time now);
  void on(const Abandoned& event, Time now);
  void on(const Saved& event, Time now);
  void on(const SaveFailed& event, Time now);
  void on(const JobError& event, Time now);
  void on(const LeaveAsked&, Time now);
  void on(const RecordRead& event, Time now);
  void on(const Beat&, Time now);
  void follow(const Ack& ack);
  void follow(const Halt& halt);
  void follow(const Enter& enter);
  void follow(const Save& save);
  void follow(const Stop& stop);

  void promise(Generation generation);
  void halt(std::string note);
  void enter_if_free();
  void go_on();
  void save_if_due();
  bool may_step(Generation generation, int64_t step, Activity activity) const;
  bool has_lease(Time now);
  bool holds_all() const { return covers({&held_}, num_parts_); }
  CastVote::Gather gather_wish() const;
  void send_report(Time now);

  WorkerOptions options_;
  uint64_t controller_ = 0;  // the newest incarnation seen
  WorkerPhase phase_ = WorkerPhase::loading;
  Activity activity_ = Activity::none;
  bool abandoning_ = false;
  bool exited_ = false;
  Generation generation_ = 0;
  Generation promised_ = 0;
  Generation stop_ = 0;  // the next vote asks all to halt for this generation; 0: it does not
  bool stop_gathers_ = false;
  Generation agreed_ = 0;  // by the votes of the step, all members halt after it for this one
  int64_t step_ = -1;
  bool voted_ = false;
  bool done_ = false;
  bool can_save_ = false, on_disk_ = false;
  int64_t num_parts_ = 0;
  Parts held_, next_;
  std::shared_ptr<const GenerationPlan> plan_;     // of generation_
  std::shared_ptr<const GenerationPlan> waiting_;  // is entered once the loop has abandoned plan_
  std::optional<Save> pending_save_;
  SaveStatus save_;
  std::vector<WorkerId> suspects_;
  int64_t unreadable_ = -1;
  bool faulted_ = false;
  bool leaving_ = false;
  std::string error_;
  ErrorCode error_code_ = ErrorCode::internal;
  std::string note_;

  uint64_t sequence_ = 0;
  bool report_due_ = true;
  Time next_beat_{0};
  Time lease_until_ = Time::min();
  std::vector<std::pair<uint64_t, Time>> sent_;  // reports that no Ack covers yet
  std::vector<WorkerCommand> commands_;
};

}  // namespace ductile::control
