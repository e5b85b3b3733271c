#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/error.h"
#include "ductile/control/ranges.h"
#include "ductile/run/meters.h"

// The messages between the controller of an elastic job and its workers: plain structs, and their
// JSON. docs/design/005-membership.md has the protocol, its assumptions and its invariants.
//
// Every message may be lost, late, duplicated or reordered. A WorkerStatus contains the whole state
// of a worker, so the newest one replaces all earlier ones. An Instruction is repeated for as long
// as the reports show that it has not been followed.
namespace ductile::control {

using WorkerId = uint64_t;    // a process: the controller gives the id at launch, and never twice
using Generation = uint64_t;  // 1, 2, ...: the fencing token; 0 is none
using Time = std::chrono::microseconds;  // a clock that never goes back; see Membership

// The state is divided into parts 0 .. n - 1, and a worker holds some of them (in ascending ranges
// that do not touch each other). Unless the update is sharded, each worker holds all parts.
// docs/design/008-sharded-updates.md
struct PartRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const PartRange&) const = default;
};
using Parts = std::vector<PartRange>;
// Whether these are all of the `num_parts` parts together; false if there are no parts.
bool covers(const std::vector<const Parts*>& held, int64_t num_parts);

// From where a member of a new generation gets the state at the generation's first step.
enum class StateSource {
  keep,         // it already has the state
  apply_voted,  // it is one step behind, holds the reduction of that step, and applies it
  peer,         // from the member `feeder`
  checkpoint,   // from disk, since no worker has a state: all parts, or, with all others, its own
  initial,      // all parts from the job file, since there is no checkpoint either
};

// One member. Its rank in the communicator is its position in GenerationPlan::members.
struct Member {
  WorkerId worker = 0;
  std::string address;  // as the worker reported it; this module does not interpret it
  RankRange ranks;      // the virtual ranks it hosts; none if it only hands over parts
  StateSource source = StateSource::keep;
  WorkerId feeder = 0;  // with StateSource::peer: who sends it what belongs to no part
  Parts held{};         // with keep or apply_voted: its parts of the state before `start`
  bool operator==(const Member&) const = default;
};

struct GenerationPlan {
  Generation number = 0;
  int64_t start = 0;  // the first step to run: every member begins with the state before it
  std::vector<Member> members;

  const Member* find(WorkerId worker) const;
  bool operator==(const GenerationPlan&) const = default;
};

enum class WorkerPhase {
  loading,    // it is connected, and loads code and data
  ready,      // it has loaded, and belongs to no generation yet
  restoring,  // it has entered a generation, and receives its state
  running,    // it computes steps
  halted,     // it stopped between two steps, or gave one up, and waits for the next generation
  done,       // it has the state after the last step
};

// What a checkpoint took, for the job's event log.
struct SaveFigures {
  int64_t bytes = 0;            // of the state
  int64_t bytes_written = 0;    // of them new on disk
  double blocking_seconds = 0;  // training waited
  double write_seconds = 0;
  double write_core_seconds = 0;
  int64_t parts = 1;  // that several workers wrote
  bool operator==(const SaveFigures&) const = default;
};

// A checkpoint as its writer sees it. `attempt` is that of the Save instruction that it answers.
struct SaveStatus {
  enum class State { none, saving, written, failed };
  uint64_t attempt = 0;
  State state = State::none;
  int64_t step = 0;       // the state it holds
  std::string text;       // why it failed
  SaveFigures figures{};  // if it is written
  bool operator==(const SaveStatus&) const = default;
};

// From a worker to the controller, at every change, and as the heartbeat.
struct WorkerStatus {
  WorkerId worker = 0;
  uint64_t sequence = 0;  // grows with every report of this process
  std::string address;    // under which its peers reach it
  WorkerPhase phase = WorkerPhase::loading;
  Generation generation = 0;  // the last one it entered
  Generation promised = 0;    // it no longer acts in any generation below this one
  int64_t step = -1;          // it holds the state before this step; -1: it holds no state
  bool voted = false;         // it also holds the whole reduction of `step`, not yet applied
  int64_t num_parts = 0;      // of the whole state; 0: not known yet
  Parts held;                 // its parts of the state before `step`
  Parts next;                 // if voted: its parts of the state after `step`
  // Halted or done: all that it lacks of the state is on disk, so it can save all of it.
  bool can_save = false;
  std::vector<WorkerId> suspects;  // if halted: the peers that it could not reach
  SaveStatus save;
  // The step of a damaged or missing checkpoint, which no worker can restore; -1: none.
  int64_t unreadable = -1;
  // It halted because its host refused something (memory, descriptors, a disk). Another attempt may
  // succeed, and so may another host. `note` says what was refused.
  bool faulted = false;
  bool leaving = false;  // something outside asked it to leave (its host is drained ...)
  // A fault of the job itself, which would happen on every worker and ends the job; empty: none.
  std::string error;
  ErrorCode error_code = ErrorCode::internal;  // the kind of `error`
  std::string note;                            // for people: why it halted ...
  run::Cost cost;                              // of this process, since it began
  bool operator==(const WorkerStatus&) const = default;
};

// From the controller to a worker. `controller` is the incarnation of the controller: a worker
// ignores an incarnation older than one that it has seen.
struct Ack {  // report `sequence` was received, which renews the lease from when it was sent
  uint64_t sequence = 0;
  // What the job has cost until now, all workers over its whole life; its wall_seconds are the
  // run's own clock. The controller's host fills it in.
  std::optional<run::Cost> cost{};
  bool operator==(const Ack&) const = default;
};
struct Halt {  // the worker promises `generation`: it does nothing more in an older one
  Generation generation = 0;
  bool at_boundary = false;  // finish the present step with all members; otherwise give it up now
  std::string reason;
  bool gather = false;  // with at_boundary: also bring all parts to the leader, to be saved
  bool operator==(const Halt&) const = default;
};
struct Enter {  // the worker is a member of this generation
  std::shared_ptr<const GenerationPlan> plan;
  std::string reason;
  bool operator==(const Enter& other) const;
};
struct Save {  // write a checkpoint; the controller then decides that it counts
  Generation generation = 0;
  uint64_t attempt = 0;
  // The state before this step, or the first one after it, but never the one after the last step;
  // -1: the next state, whichever it is.
  int64_t at_step = -1;
  std::string reason;
  bool operator==(const Save&) const = default;
};
struct Stop {  // exit; this worker is not needed any more
  std::string reason;
  bool operator==(const Stop&) const = default;
};
struct Instruction {
  uint64_t controller = 0;
  WorkerId worker = 0;
  std::variant<Ack, Halt, Enter, Save, Stop> what;
  bool operator==(const Instruction&) const = default;
};

std::string_view to_string(StateSource source);
std::string_view to_string(WorkerPhase phase);

// JSON as on the wire: {"instruction": "halt", ...}. Reading throws invalid_argument that names the
// key if it is missing, of the wrong type or out of range.
nlohmann::json to_json(const GenerationPlan& plan);
nlohmann::json to_json(const SaveFigures& figures);
nlohmann::json to_json(const WorkerStatus& report);
nlohmann::json to_json(const Instruction& instruction);
GenerationPlan plan_from_json(const nlohmann::json& value);
SaveFigures save_figures_from_json(const nlohmann::json& value);
WorkerStatus worker_status_from_json(const nlohmann::json& value);
Instruction instruction_from_json(const nlohmann::json& value);

}  // namespace ductile::control
