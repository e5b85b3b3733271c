#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ductile/cluster/database.h"
#include "ductile/cluster/records.h"
#include "ductile/server/node_devices.h"

namespace ductile::cluster {

// What a service is just doing with a job, beyond what the store says.
struct LiveState {
  enum class Moment : uint8_t { waiting, starting, running, saving, resting };
  // Why, in few words for programs.
  enum class Cause : uint8_t {
    none,
    devices,
    quota,
    too_large,
    user,
    room,
    end,
    failure,
    order,
    node,
  };
  Moment moment = Moment::waiting;
  std::string text;  // what the policy says of it, or why it is saved or rests; may be empty
  Cause cause = Cause::none;
  std::string says;  // of one that runs: what the policy says now of what it holds; may be empty
  bool operator==(const LiveState&) const = default;
};

std::string_view to_string(LiveState::Moment moment);
std::string_view to_string(LiveState::Cause cause);  // none: empty

// Which jobs are counted together.
struct LiveKind {
  LiveState::Moment moment = LiveState::Moment::waiting;
  LiveState::Cause cause = LiveState::Cause::none;
  auto operator<=>(const LiveKind&) const = default;
};

// What a service job is doing.
struct ServingFigures {
  std::string name, address;               // of the job; where it answers
  int64_t ready = 0;                       // replicas that answer
  std::map<std::string, int64_t> by_node;  // of these, where there are several nodes
  double load = 0, rate = 0;               // requests per second: that come, that a replica answers
  int64_t arrived = 0, answered = 0, retried = 0;  // since the service began
  int64_t waiting = 0, in_flight = 0;
  std::string trouble;  // why some replicas are not started now; empty: all are
};

// How far a training job is.
struct TrainingFigures {
  int64_t step = 0, total_steps = 0;
  double rate = 0;  // steps per second on what it has now; 0: not known, or it does not run
};

// How a job by stages is hosted: by whole pipelines, all of which are virtual ranks.
struct StagedFigures {
  int64_t devices = 1;    // of one pipeline
  int64_t pipelines = 1;  // of its plan
  int64_t least = 0;      // devices that it asks for; 0: its stages take turns on any number
  int64_t plans = 1;      // several: one of them is chosen when it begins, the above is the first
  bool operator==(const StagedFigures&) const = default;
};

// The decisions of the scheduler so far.
struct RoundFigures {
  int64_t count = 0;
  double seconds = 0, last = 0;
  double last_turn = 0;  // with all that the service does for it
};

// A node whose room is kept for a job that has waited for long (Scheduler::Claim).
struct NodeClaim {
  JobId job = 0;
  std::string name, tier, node;
  double submitted = 0, since = 0;  // seconds since 1970
};

// What the service tells those who ask, on other threads. Thread-safe.
class LiveView {
 public:
  explicit LiveView(std::map<std::string, int64_t> quotas,
                    std::map<std::string, int64_t> gpu_quotas = {},
                    std::map<std::string, double> shares = {})
      : quotas_(std::move(quotas)),
        gpu_quotas_(std::move(gpu_quotas)),
        shares_(std::move(shares)) {}

  void set(JobId job, LiveState state);
  // It has not ended.
  void enter(JobId job, const std::string& owner, const std::string& tier = "standard");
  void forget(JobId job);
  // Jobs that have not ended: of all, and of one owner.
  std::pair<int64_t, int64_t> live(const std::string& owner) const;
  // Of higher tiers than this, what runs or waits for devices: of all, and of those that were
  // submitted after the job.
  std::pair<int64_t, int64_t> above(JobId job, const std::string& tier) const;

  // What each node has, as far as it has said so, and how many GPUs a job asks for.
  void set_hardware(std::map<std::string, server::NodeHardware> hardware);
  std::map<std::string, server::NodeHardware> hardware() const;
  void set_gpus(JobId job, int64_t gpus);
  std::map<JobId, int64_t> gpus() const;  // of those that ask for any
  void set_training(JobId job, const TrainingFigures& figures);
  std::optional<TrainingFigures> training(JobId job) const;  // none: not known here
  void set_staged(JobId job, const StagedFigures& figures);
  std::optional<StagedFigures> staged(JobId job) const;  // of a job by stages
  void set_claim(std::optional<NodeClaim> claim);
  std::optional<NodeClaim> claim() const;

  // Why the store takes nothing now; none: it does.
  void set_refusal(StoreFault fault, std::string text);
  std::pair<StoreFault, std::string> refusal() const;

  void note_round(double seconds, double turn);
  void set_serving(JobId job, ServingFigures figures);
  void end_serving(JobId job);  // it answers nobody now, and has not ended
  std::optional<ServingFigures> serving(JobId job) const;
  std::map<JobId, ServingFigures> serving() const;

  std::optional<LiveState> of(JobId job) const;
  std::map<LiveKind, int64_t> counts() const;
  RoundFigures rounds() const;
  const std::map<std::string, int64_t>& quotas() const { return quotas_; }  // devices, by team
  const std::map<std::string, int64_t>& gpu_quotas() const { return gpu_quotas_; }
  const std::map<std::string, double>& shares() const { return shares_; }  // of all devices

 private:
  const std::map<std::string, int64_t> quotas_, gpu_quotas_;
  const std::map<std::string, double> shares_;
  mutable std::mutex mutex_;
  std::map<JobId, LiveState> states_;
  struct Known {
    std::string owner, tier;
    bool competes = true;  // for devices
  };
  std::map<JobId, Known> known_;                      // that have not ended
  std::map<std::string, int64_t> live_of_, of_tier_;  // by owner; by tier
  RoundFigures rounds_;
  std::map<JobId, ServingFigures> serving_;
  std::map<std::string, server::NodeHardware> hardware_;
  std::map<JobId, int64_t> gpus_;
  std::map<JobId, StagedFigures> staged_;
  std::map<JobId, TrainingFigures> training_;
  std::optional<NodeClaim> claim_;
  std::pair<StoreFault, std::string> refusal_;
};

// GPUs of a node that jobs hold.
int64_t held_gpus(const std::vector<Holder>& holders, const std::map<JobId, int64_t>& gpus,
                  const std::string& node);

// Of a tier: the smaller, the sooner it is its turn.
int rank_of(const std::string& tier);

struct WhyFacts {
  JobRecord job;
  std::optional<LiveState> live;
  std::vector<NodeRecord> nodes;
  double now = 0;                                        // seconds since 1970
  std::vector<Drain> drains;                             // that hold now
  std::vector<Holder> holders;                           // all that is held, by any job
  std::optional<int64_t> quota, gpu_quota;               // of its team
  std::optional<double> share;                           // likewise
  std::map<std::string, server::NodeHardware> hardware;  // by node
  std::map<JobId, int64_t> gpus;                         // that jobs ask for
  std::optional<NodeClaim> claim;
  std::optional<StagedFigures> staged;
  std::string serving_trouble;    // ServingFigures::trouble
  std::set<JobId> services;       // that answer requests
  std::vector<EarlierJob> after;  // that are to finish before it begins
  // Jobs of higher tiers that run or wait for devices: all, and those that came after it.
  int64_t above = 0, above_since = 0;
};

// In a sentence: why the job waits, or is as it is, with what it asks for, what is free, who holds
// the rest, and what would have to happen.
std::string why(const WhyFacts& facts);

}  // namespace ductile::cluster
