#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

// What a cluster's service knows of its jobs, as values.
namespace ductile::cluster {

using JobId = int64_t;     // rises with submission; never used twice
using Revision = int64_t;  // the number of an event; rises

// Times are seconds since 1970.

enum class Phase : uint8_t { queued, running, paused, finished, failed, cancelled };
// What its user wants of a job that has not ended.
enum class Wish : uint8_t { run, pause, cancel };

std::string_view to_string(Phase phase);
std::string_view to_string(Wish wish);
// Throws invalid_argument for another text, with the nearest one.
Phase phase_from(std::string_view text);
Wish wish_from(std::string_view text);

constexpr bool has_ended(Phase phase) {
  return phase == Phase::finished || phase == Phase::failed || phase == Phase::cancelled;
}
// Whether a job may go from one phase to the other. What has ended stays as it is.
bool may_follow(Phase from, Phase to);

// What is submitted, beside the text that says what to run.
struct Submission {
  std::string name, owner, team, tier = "standard";
  std::string kind = "train";  // train, serve, command
  int64_t min_devices = 1, max_devices = 1;
  std::string region;   // where its data are; empty: everywhere
  double transfer = 0;  // seconds that it takes to bring them to another region
  bool movable = true;  // false: it runs in that region alone
  bool operator==(const Submission&) const = default;
};

// When a job may begin, beside its turn.
struct Beginning {
  std::vector<JobId> after;  // once these have finished
  bool held = false;         // once somebody resumes it
  int64_t array = 0;         // how many came with one request, as an array; 0: it came alone
  // Of services: all that have finished by then, which are those and whatever they wait for.
  std::set<JobId> finished;
};

// A job that is to finish before another one begins.
struct EarlierJob {
  JobId id = 0;
  std::string name;
  std::optional<Phase> phase;  // none: it was removed
  bool operator==(const EarlierJob&) const = default;
};

struct JobRecord {
  JobId id = 0;
  Submission submission;
  Phase phase = Phase::queued;
  Wish wish = Wish::run;
  std::string reason;  // of the phase, or of the last change, in a sentence
  std::string run;     // the run directory; empty: none yet
  double submitted = 0;
  std::optional<double> started, ended;
  int64_t generation = 0;              // of the allocation; rises with each change of it
  std::string held_by{};               // who paused it, or submitted it to be held; empty: nobody
  std::optional<int64_t> exit_code{};  // of a command that has ended by itself
  Revision revision = 0;               // the last event that changed this record
  bool operator==(const JobRecord&) const = default;
};

// How long a store keeps jobs that have ended, with their events; 0: for ever.
struct Retention {
  double seconds = 90 * 86400.0;  // since they ended
  int64_t jobs = 100'000;         // at most, the newest ones
  // Of the answers to requests with keys, which are forgotten after a day anyway: the newest ones,
  // and those of the last ten minutes.
  int64_t answers = 100'000;
};

// Devices of one node that a job holds.
struct Holding {
  std::string node;
  int64_t devices = 1;
  bool operator==(const Holding&) const = default;
};

// The same with its job, where several are listed.
struct Holder {
  JobId job = 0;
  std::string name, team, tier;
  std::string node;
  int64_t devices = 1;
  bool operator==(const Holder&) const = default;
};

struct Event {
  Revision seq = 0;
  double time = 0;
  JobId job = 0;  // 0: of no job
  std::string kind;
  std::string body;  // JSON
  bool operator==(const Event&) const = default;
};

// away: it does not answer, or is not ready for jobs yet; its jobs keep their places there for a
// while, after which it is lost.
enum class NodeState : uint8_t { up, away, lost };
std::string_view to_string(NodeState state);
NodeState node_state_from(std::string_view text);  // throws invalid_argument, as the others

struct NodeRecord {
  std::string node, type;
  int64_t devices = 1;
  NodeState state = NodeState::away;
  std::string why;  // it is not up, in a sentence
  double since = 0;
  std::string region = "home";
  bool operator==(const NodeRecord&) const = default;
};

// Times are seconds since 1970.
struct Drain {
  std::string node;
  double time = 0;  // when it was asked for
  std::string reason;
  double starts = 0;           // until then the node is used; policies know that it will go
  std::optional<double> ends;  // the node then comes back by itself
  // What began when it was asked for does not end when the clock is set back.
  bool holds(double now) const { return (starts <= time || starts <= now) && !over(now); }
  bool over(double now) const { return ends && *ends <= now; }
  bool operator==(const Drain&) const = default;
};

}  // namespace ductile::cluster
