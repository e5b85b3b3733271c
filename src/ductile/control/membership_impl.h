#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "ductile/control/membership.h"

namespace ductile::control {

// "1 worker", "2 workers".
inline std::string counted_workers(int64_t count) {
  return fmt::format("{} worker{}", count, count == 1 ? "" : "s");
}

// One process, from its launch command until it is known to be gone.
struct WorkerRecord {
  WorkerId id = 0;
  WorkerStatus report;     // the newest; of a worker that never reported, only `worker` is set
  bool connected = false;  // it has reported
  bool reachable = false;  // and is not overdue
  bool doomed = false;     // told to stop; whatever it says, it takes part in nothing any more
  bool killed = false;
  bool sent_away = false;  // a resize named it
  Time launched_at{0};
  Time heard_at{0};
  Time acked_at{0};  // the last Ack: its lease ends no later than options.lease after this
  Time ready_at{0};
  Time told_at{0};    // the last instruction that it has to follow
  Time doomed_at{0};  // then: since when that is saved
  std::string host;   // where it runs, by its launcher's name; empty: it is not known

  bool leaving() const { return sent_away || report.leaving; }
  bool live() const { return !doomed && connected && reachable; }
  bool loaded() const { return connected && report.phase != WorkerPhase::loading; }
  bool halted_for(Generation generation) const { return report.promised >= generation; }
  // The step from which it can start by itself; -1: it has no state.
  int64_t reach() const { return report.step < 0 ? -1 : report.step + (report.voted ? 1 : 0); }
  bool can_start(int64_t step) const {
    return report.step >= 0 && (report.step == step || reach() == step);
  }
  // What it would begin `step` with.
  const Parts& parts_at(int64_t step) const {
    return report.step == step ? report.held : report.next;
  }
};

// A change of members under way: those of the last generation are being halted for `number`.
struct Change {
  Generation number = 0;
  bool at_boundary = false;
  bool after_loss = false;
  bool judged = false;  // it was looked at whether the generation broke for no visible reason
  std::string reason;
  Time since{0};
  std::optional<Time> saved_at;  // by then: whoever looks finds that the old generation is over
};

// A host where workers have an error before they take part, since one last took part there.
struct Trouble {
  int64_t tries = 0;
  Time last{0};  // the last error; a worker launched before it is of the same try
};

struct SaveTask {
  uint64_t attempt = 0;
  WorkerId worker = 0;
  int64_t at_step = -1;
};

struct Membership::State {
  MembershipOptions options;

  Phase phase = Phase::queued;
  std::string reason;
  ErrorCode error_code = ErrorCode::internal;  // failed: the kind of `reason`
  bool result_unsaved = false;  // failed: all steps are done, and nothing took the result
  int64_t unsaved_steps = 0;    // that the last preemption left, since it could not save
  uint64_t incarnation = 1;
  int64_t wanted = 1;
  bool winding_down = false;  // all workers are being stopped, then phase becomes `after`
  Phase after = Phase::preempted;
  bool resume_after = false;

  WorkerId next_worker = 1;
  std::map<WorkerId, WorkerRecord> workers;
  run::Cost spent;                         // of the workers that are gone; and the energy of all
  std::map<std::string, WorkerId> meters;  // by whose reports the energy of a host is counted

  Generation granted = 0;  // the highest number ever given to a Halt or a plan
  std::shared_ptr<const GenerationPlan> plan = std::make_shared<GenerationPlan>();
  std::optional<Change> change;
  bool ran = false;  // a generation was formed since start or resume
  // The last outcome had to be saved. By the next event it is; what was decided from here on counts
  // from then.
  std::optional<Time> unsaved_since;

  int64_t high_water = 0;   // the newest state that any worker has had
  int64_t formed_high = 0;  // high_water when plan was formed
  int64_t failures = 0;     // since high_water last rose
  int64_t crashes = 0;      // of these: a worker ended, or fell silent, without a word
  int64_t barren = 0;       // generations in a row that broke without a loss and without a step
  Time next_try{0};
  std::string last_failure;
  int64_t hosts_away = 0;       // launches in a row for which no host had room
  bool places_held = false;     // by workers of the job, when the last launch failed
  int64_t launch_failures = 0;  // in a row, of any kind; steps of the others are no comfort
  Time next_launch{0};
  std::map<std::string, Trouble> troubled;
  int64_t begin_errors = 0;  // rounds of them in a row, on any host
  Time next_begin{0};        // launches wait for it after such an error

  std::vector<int64_t> checkpoints;  // steps of the newest few published ones, ascending
  // Steps of published ones that were found damaged or missing, and why.
  std::map<int64_t, std::string> unreadable;
  std::optional<PublishCheckpoint> publishing;
  std::optional<SaveTask> save_task;
  uint64_t save_attempts = 0;    // the last one given
  uint64_t offered_attempt = 0;  // the last one that was handed to PublishCheckpoint
  bool save_asked = false;
  Time next_save{0};
  Time last_checkpoint{0};
  Time save_began{0};
  Time save_took{0};  // of the last checkpoint, from asking for it to its publication
  Time longest_save{0};
  std::string last_save_error;
  Time preempt_since{0};
  Time finish_since{0};

  // Of the apply() under way.
  Time now{0};
  Time wake = Time::max();  // the earliest time at which a rule that said "not yet" may say yes
  bool again = false;       // something was decided: look at all rules once more
  Outcome out;

  // ---- events (membership.cc)
  void on(const StartJob& event);
  void on(const ResizeJob& event);
  void on(const PreemptJob&);
  void on(const ResumeJob& event);
  void on(const StopJob& event);
  void on(const SaveJob&);
  void on(const LaunchFailed& event);
  void on(const WorkerExited& event);
  void on(const ConnectionClosed& event);
  void on(const WorkerReported& event);
  void on(const CheckpointPublished& event);
  void on(const PublishFailed& event);
  void on(const Tick&) {}
  Outcome apply(std::span<const Event> events, Time at);
  void note_saved(Time at);
  void reconcile();
  void check_restored() const;  // throws data_loss (membership_check.cc)
  bool count_in_range(int64_t workers);
  void repeat_instructions(WorkerRecord& worker);

  // ---- helpers (membership.cc)
  bool active() const;
  bool due(Time at);
  void note(std::string event, std::string text);
  void refuse(std::string_view request);
  void send(WorkerId to, std::variant<Ack, Halt, Enter, Save, Stop> what);
  void tell(WorkerRecord& worker, std::variant<Ack, Halt, Enter, Save, Stop> what);
  void set_phase(Phase next, std::string why);
  WorkerRecord* find(WorkerId id);
  void forget(WorkerId id);  // it is gone; what it cost is kept
  void count_energy(const WorkerStatus& report, const WorkerRecord& before,
                    const std::string& host);
  int64_t max_workers() const;
  int64_t newest_checkpoint() const { return checkpoints.empty() ? -1 : checkpoints.back(); }

  // ---- workers (membership_workers.cc)
  void check_timeouts();
  std::string silence_of(const WorkerRecord& worker);
  void launch_and_trim();
  void doom(WorkerRecord& worker, bool kill, const std::string& why);
  void lose(WorkerRecord& worker, const std::string& why);
  enum class Failure { crash, other };
  void record_failure(const std::string& text, Failure kind = Failure::other);
  bool alone() const { return wanted == 1 && options.num_hosts == 1; }
  bool too_many_failures() const {
    return failures > options.max_failures || (alone() && crashes > options.max_crashes_alone);
  }
  void wait_for_hosts(const std::string& text);
  void cannot_begin(WorkerRecord& worker, const std::string& host, const std::string& text);
  Time backoff(int64_t failures_in_a_row) const;
  void launch_later();
  void place_is_free();
  void wind_down(Phase then, const std::string& why);
  void fail_job(const std::string& why, ErrorCode code = ErrorCode::internal);
  void settle();

  // ---- generations (membership_change.cc)
  std::vector<WorkerRecord*> participants();  // of the last generation, neither doomed nor gone
  std::vector<WorkerRecord*> joiners();
  bool joiners_complete();
  Time lease_end(const WorkerRecord& worker) const {
    const Time barred = change ? change->saved_at.value_or(now) : now;
    return std::max(worker.acked_at, barred) + options.lease + options.clock_drift;
  }
  bool may_still_act(const WorkerRecord& worker);
  std::string broken();        // why the generation cannot go on; empty: it can
  std::string change_asked();  // why it should be re-formed at the next boundary; empty: no reason
  void begin_change(bool at_boundary, bool after_loss, const std::string& why);
  bool old_generation_blocked();  // no step of the last generation can be committed any more
  bool halted();                  // and everyone who can be waited for has said where it stands
  void drive_change();
  void try_form();
  bool judge();
  std::vector<WorkerRecord*> choose(const std::vector<WorkerRecord*>& survivors,
                                    const std::vector<WorkerRecord*>& joined, int64_t start);
  // Where the survivors can start from with all parts; -1: nowhere.
  int64_t first_start(const std::vector<WorkerRecord*>& survivors);
  bool cover(const std::vector<WorkerRecord*>& workers, int64_t start);
  // The survivors beside `chosen` without whom parts would be missing.
  std::vector<WorkerRecord*> donors(const std::vector<WorkerRecord*>& chosen,
                                    const std::vector<WorkerRecord*>& survivors, int64_t start);
  bool holds_all(const WorkerRecord& worker);
  bool can_save(const WorkerRecord& worker);
  // Nobody can save by itself, but those who can be reached have states.
  bool parts_are_apart();
  void seat(std::vector<WorkerRecord*>& chosen, std::span<const RankRange> ranges) const;
  void form(std::vector<WorkerRecord*> chosen, const std::vector<WorkerRecord*>& donors,
            int64_t start, bool from_state);
  void update_phase();

  // ---- checkpoints (membership_saves.cc)
  void take_save_status(WorkerRecord& worker);
  void drop_unreadable(int64_t step, const std::string& why);
  void drive_saves();
  void start_save(WorkerRecord& writer, int64_t at_step, const std::string& why);
  void tell_to_save(WorkerRecord& writer, const std::string& why);
  void drop_save_at_step();
  void save_before_preempting();
  void wind_down_lost();
  void preempt_without_saving(const WorkerRecord* writer);
  void save_result();
  bool saves_earlier();
  Time checkpoint_interval() const;
  void save_while_running();
  WorkerRecord* done_worker();
};

}  // namespace ductile::control
