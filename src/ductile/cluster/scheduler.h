#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/cluster/records.h"
#include "ductile/sched/job_agent.h"
#include "ductile/sched/policy.h"
#include "ductile/spec/cluster.h"

namespace ductile::cluster {

// A job by stages: pipelines side by side, all of which are virtual ranks, so that its result does
// not depend on how many of them have devices of their own.
struct StagePlan {
  int32_t devices = 1;    // of one pipeline: a device for each part of a stage
  int32_t pipelines = 1;  // of the plan
  double seconds = 0;     // predicted, of a step with devices for all pipelines; 0: not known
  int32_t least = 1;      // devices without which there is no memory for it
  bool operator==(const StagePlan&) const = default;
};

// What a job asks for.
struct JobDemand {
  JobId id = 0;
  std::string name;
  std::string application;  // jobs of one application share what they measure; empty: none
  double arrival = 0;       // seconds of the clock of decide()
  sched::Tier tier = sched::Tier::standard;
  int32_t team = 0;
  bool rigid = false;     // it runs on min_devices or not at all
  bool one_node = false;  // its devices are on one node
  int32_t gpus = 0;       // of that node, that nobody else has
  int32_t min_devices = 1, max_devices = 1;
  int32_t batch = 1;        // samples of a step, over all devices
  int32_t most_batch = 0;   // up to which another one may be ordered; 0: it stays as it is
  int32_t batch_parts = 1;  // an ordered one is a whole number of samples for each
  // Of a job by stages. Of several one is chosen when it begins (best_plan()), for which all of
  // them have to have a time.
  std::vector<StagePlan> plans{};
  int64_t total_steps = 0;  // as far as its options say; 0: its workers will
  // Of an inference service: seconds within which its requests are to be answered. It has one
  // replica a device: as many as its load needs, of min_devices to max_devices, and fewer only
  // where there are not so many.
  std::optional<double> target;
  // Where its data are; empty, or not in the cluster: everywhere. To start elsewhere takes
  // `transfer` seconds more, and the data are then there. Only some policies know regions
  // (PolicyTraits::sees_regions).
  std::string region;
  double transfer = 0;
  bool movable = true;  // false: it runs in that region alone
};

// What comes to a service.
struct ServiceLoad {
  double load = 0, peak = 0;  // requests per second: now, and the most lately
  double rate = 0;            // that one replica answers; 0: nobody knows yet
};

// What a job is to hold from now on.
struct Allotment {
  JobId job = 0;
  spec::Allocation allocation;  // empty: nothing
  std::string reason;           // in a sentence
};

// Joins a policy with jobs that really run: keeps what the policy is to know of each (what it asked
// for, holds, has done and has measured), and asks it. It has no clock, no threads and no files, so
// that the same calls give the same answers. One thread at a time.
class Scheduler {
 public:
  // Throws invalid_argument for an unknown policy. `interval`: seconds between two decisions. The
  // quotas of the cluster's teams are kept under every policy.
  Scheduler(const spec::Cluster& cluster, std::string_view policy, double interval);

  void add(const JobDemand& demand);
  // `ended` = false: it is not to run now. What it has learnt waits for the next add() of it.
  void remove(JobId job, bool ended = true);
  // A job that is not to run now, and of which restore() may know something. Until add() or
  // remove().
  void set_aside(JobId job);
  // Its user wants another number of devices; what it holds beyond that changes with decide().
  void set_bounds(JobId job, int32_t least, int32_t most);
  bool knows(JobId job) const { return jobs_.contains(job); }

  // The numbers of devices that a job by stages is given, in rising order: those of whole
  // pipelines, within its bounds. Policies that see plans (PolicyTraits::sees_plans) are offered
  // each as one, where its plans have times; those that scale pipelines know how many devices one
  // has; under the others such a job has its least number. Empty: of other jobs, and of those that
  // may not have as many devices as one pipeline, so that its stages take turns on any number.
  std::vector<int32_t> whole_sizes(JobId job) const;
  // What a job that has `now` takes next of what it was granted, of which `there` is free for it:
  // as much as whole_sizes() allows, all of it where that is empty; `now` where that is as much,
  // and it was granted all of that.
  spec::Allocation next_whole(JobId job, const spec::Allocation& now,
                              const spec::Allocation& granted, spec::Allocation there) const;
  // The least number of devices of a job by stages, as its plans and its user allow; 0: of other
  // jobs, as they were submitted.
  int32_t least_of_stages(JobId job) const;
  // Of several plans, the one for these devices, by its place in JobDemand::plans: the fastest, or
  // the first that has so many virtual ranks.
  size_t best_plan(JobId job, const spec::Allocation& devices) const;
  // The job has been begun by this one of its plans, and has no other from then on.
  void keep_plan(JobId job, size_t plan);

  // The job holds this from now on, which need not be all that it was granted.
  void holds(JobId job, const spec::Allocation& allocation, double now);
  // What its workers say: how many samples they take per second together, and how far they are.
  // Absurd values change nothing.
  void measured(JobId job, double samples_per_second);
  // What they say of the batch that they train with now, and of the noise scale of their gradients,
  // in samples (noise_scale.h).
  void trains_with(JobId job, int64_t batch, std::optional<double> noise_scale);
  void progress(JobId job, int64_t steps, int64_t total_steps);
  // For how many seconds it stood still at a start, or at a change of what it held. Policies weigh
  // starts and changes by these: by the job's own ones, and before its first one by those of all
  // jobs.
  void paused(JobId job, double seconds, bool at_start);
  // Of a service; whether it needs more replicas than it holds or was granted, and may have them.
  bool served(JobId job, const ServiceLoad& load);
  // How many devices a service needs for its load, with a little more, as it keeps them (services.h
  // of sched), within its bounds. Nothing: the job is none.
  std::optional<int64_t> service_needs(JobId job) const;
  // So many GPUs can be used there. Policies know nothing of them: a job that asks for some is
  // shown to the policy while a node has so many free, and then placed on such a node; one that
  // lacks them takes them from lower tiers.
  // `lost`: and so many that jobs hold have failed since.
  void has_gpus(int32_t node, int32_t usable, int32_t lost = 0);
  // GPUs that the jobs of a team hold at most, by team; of a team with a quota of devices.
  void set_gpu_quotas(std::map<int32_t, int64_t> quotas) { gpu_quotas_ = std::move(quotas); }
  // Nothing new starts there, and what runs there moves away. `why`: which node that is and what is
  // the matter with it, for those who wait for it.
  void drain(int32_t node, bool drained, std::string why = "");
  // It does not answer now, and may soon: what runs there stays, and nothing is granted there
  // beside it.
  void away(int32_t node, bool is_away, std::string why = "");
  // It will be drained then; +inf: no such time is known. Policies that look ahead (`ductile`)
  // start nothing there that would not end before, and move away in time what runs.
  void leaves(int32_t node, double at);

  // What changes. Jobs that it does not name keep what they have, or go on towards what they were
  // granted: from the decision until holds() says the same, a grant is on its way, and is neither
  // made again nor changed, unless it takes more than kPatience seconds, or its node or its user
  // wants something else.
  std::vector<Allotment> decide(double now);
  static constexpr double kPatience = 60;
  // A job that has to be on one node, and has found no room for so many seconds, is not overtaken
  // any more: the room of a node is kept for the one of these that is first by tier and age.
  static constexpr double kOvertaken = 120;
  // A job of a higher tier that has lacked GPUs for so many seconds takes them from jobs of a lower
  // one, which are saved and go on when and where there is room. Never from services, and never
  // from its own tier.
  static constexpr double kTakes = 5;
  // A job of a higher tier never waits while jobs of lower ones hold what it could start on, or are
  // about to: these shrink or are saved, under each policy. Nothing is taken from services, from
  // those whose grant is on its way, and on nodes that go within so many seconds.
  static constexpr double kSoonGone = 600;
  // Until a pause of any job was measured, and the longest that is believed: more is something
  // else, as a debugger.
  static constexpr double kFirstPause = 3, kLongestPause = 600;
  // The batch with the best goodput on what the job holds; 0: its batch stays as it is, the policy
  // does not use that, or too little was measured yet.
  int64_t best_batch(JobId job);
  // What the job was granted and does not hold yet; empty: it is to give up all that it holds.
  std::optional<spec::Allocation> on_its_way(JobId job) const;
  // Nothing more will come of that.
  void withdrawn(JobId job);
  // Samples per second that the job's model expects on 1, 2, ... devices of the first node that it
  // holds, up to what it may have; empty: nothing was measured yet. Of a job by stages, on the
  // whole pipelines among these devices; 0: there is none.
  std::vector<double> modelled_speeds(JobId job) const;
  // The part of its samples that are progress with the batch that it trains with now, where one is
  // those of its own batch; none: its batch is fixed, or the noise of its gradients is not known.
  std::optional<double> efficiency(JobId job) const;
  // Why the job waits, or holds what it holds.
  std::string why(JobId job) const;
  // The node whose room is kept, for whom, and since when. It ends with that job, when the job has
  // its devices, is not to run now, asks for something else, or can have them nowhere.
  struct Claim {
    JobId job = 0;
    int32_t node = -1;
    double since = 0;
    bool operator==(const Claim&) const = default;
  };
  const std::optional<Claim>& claim() const { return claim_; }

  // Whether its team's quota alone kept it from the policy in the last decision.
  bool over_quota(JobId job) const { return over_quota_.contains(job); }
  bool nothing_runs() const;  // no job holds a device, or was granted one

  // What policy and jobs have learnt, as JSON. restore(), to be called when the jobs have been
  // added and none holds anything yet, goes on from it; jobs that it does not know begin anew, and
  // under another policy all of it does. A clock that was set back meanwhile makes nothing later
  // than `now`. Throws data_loss for a damaged state; then all begins anew.
  nlohmann::json state() const;
  void restore(const nlohmann::json& state, double now);

  const sched::PolicyTraits traits() const { return policy_->traits(); }

 private:
  using NodeCounts = std::map<int32_t, int32_t>;        // by node
  using KindSpeeds = std::vector<std::vector<double>>;  // scheduler_speeds.cc
  struct KnownSpeeds {
    KindSpeeds speeds;
    uint64_t version = 0;  // of its kind
    bool used = false;     // in this decision
  };

  // Samples per second that a job with times was seen to take.
  struct SeenRate {
    int32_t type = 0, devices = 1;
    double rate = 0;
  };

  struct Job {
    std::unique_ptr<sched::JobAgent> agent;
    // By type, where its agent shares nothing: what is known of its kind, which so is not
    // forgotten.
    std::vector<std::shared_ptr<sched::Measurements>> of_kind;
    sched::JobView view;
    std::optional<spec::Allocation> granted;  // on its way
    double granted_at = 0;
    std::optional<spec::Allocation> held_before;  // restored: it may have held it all along
    double accounted = 0;                         // until when attained_service is counted
    double total_steps = 0;
    int32_t batch_parts = 1;
    bool one_node = false;
    int32_t gpus = 0;
    double lacked_at = 0;
    std::optional<double> lacks_since;  // room on one node; none: it was not looked for, or found
    int64_t batch = 0;                  // that it trains with now
    double rate_of_one = 0;             // samples per second that one device was seen to take
    double pause = 0;                   // as `pause_` below, of its own; 0: none was measured
    std::optional<double> change;       // as `change_` below, of its own
    bool works = false;                 // with what it holds: its speed was measured
    std::unique_ptr<JobDemand> staged;  // of a job by stages: what it asks for now
    std::vector<int32_t> sizes;         // whole_sizes()
    std::vector<SeenRate> seen;         // one of each size, the newest last
  };

  // What a team's jobs hold.
  struct Held {
    int64_t devices = 0, gpus = 0;
  };
  // Jobs, by their places in the list of views, that are stopped on a node, or have so many devices
  // less there.
  struct Takeover {
    int32_t node = -1;
    std::vector<size_t> stopped;
    std::vector<std::pair<size_t, int32_t>> shrunk;
  };

  void mark(std::map<int32_t, std::string>& nodes, int32_t node, bool in, std::string why);
  void see_nodes();
  int32_t region_named(std::string_view name) const;  // -1: there is none
  int32_t region_of(int32_t node) const;
  void bound_service(sched::JobView& view, int32_t least, int32_t most) const;
  void set_agent(Job& job, const JobDemand& asked);
  void set_agent_anew(Job& job);
  static void see_rate(Job& job, const SeenRate& seen);
  static std::vector<sched::JobPlan> plans_now(const Job& job);
  static std::string room_for_pipelines(const Job& job, const spec::Allocation& devices);
  void keep_pipelines_whole(const sched::Round& round, sched::Decisions& decisions) const;
  static int32_t most_batch(const Job& job);
  nlohmann::json state_of(JobId id, const Job& job) const;
  void restore_job(const nlohmann::json& item, double now);
  void take_back(JobId id);
  sched::JobView view_of(const Job& job, double now) const;
  void note_of_kind(const Job& job, int32_t type, const sched::StepSample& sample);
  std::optional<uint64_t> version_of_kind(const std::string& kind);
  KindSpeeds speeds_of_kind(const std::string& kind, int64_t batch, int32_t most) const;
  KindSpeeds speeds_of_average(int64_t batch) const;
  void look_at_average(std::span<const sched::JobView> views);
  bool has_speed(const sched::JobView& view) const;
  const KindSpeeds& speeds_of(const Job& job, int32_t most);
  void tell_speeds(std::vector<sched::JobView>& views);
  std::vector<sched::JobView> within_quotas(std::vector<sched::JobView> views);
  std::vector<sched::JobView> that_fit_a_node(std::vector<sched::JobView> views,
                                              std::vector<sched::JobView>& hidden);
  std::vector<sched::JobView> that_find_gpus(std::vector<sched::JobView> views, bool at_once);
  void keep_on_one_node(const sched::Round& round, sched::Decisions& decisions);
  int32_t best_node(const sched::Round& round, const Job& job, int32_t devices, int32_t region,
                    const NodeCounts& used, const NodeCounts& gpus) const;
  std::string lacks_on_a_node(const Job& job, int32_t devices) const;
  std::string lacks_nodes(const Job& job) const;
  std::string why_gone(const spec::Allocation& had) const;
  void choose_claim(std::span<const sched::JobView> views, double now);
  bool yields(const sched::JobView& view, int32_t node) const;
  int32_t kept_gpus(const sched::JobView& view, int32_t node) const;  // from it, there
  bool claim_has_devices(std::span<const sched::JobView> views) const;
  void keep_claim(const sched::Round& round, sched::Decisions& decisions) const;
  void keep_from_growing(int32_t missing, const sched::Allocation& before, sched::Decision& change,
                         NodeCounts& used) const;
  bool is_elsewhere(const sched::JobView& view, int32_t node) const;
  static void take_from(sched::Allocation& allocation, int32_t node, int32_t devices);
  std::map<int32_t, Held> held_by_teams(std::span<const sched::JobView> views) const;
  bool fits_quota(const sched::JobView& view, const std::map<int32_t, Held>& held) const;
  std::map<JobId, std::string> take_gpus(std::vector<sched::JobView>& views, double now);
  std::optional<Takeover> best_takeover(const sched::JobView& taker,
                                        std::span<const sched::JobView> views) const;
  std::optional<Takeover> takeover_on(int32_t node, const sched::JobView& taker,
                                      std::span<const sched::JobView> views,
                                      int32_t held_gpus) const;
  void give_way(const sched::Round& round, int32_t missing, sched::Decision& change,
                NodeCounts& used, NodeCounts& gpus) const;
  class TierRound;
  void keep_tiers(const sched::Round& round, sched::Decisions& decisions);
  void note_lacks(double now);
  // GPUs of each node that are held once the decisions are carried out.
  NodeCounts gpus_after(std::span<const sched::JobView> views,
                        const sched::Decisions& decisions) const;
  bool takes_gpus(JobId id, int32_t node, NodeCounts& held) const;

  const double interval_;
  const std::string policy_name_;
  sched::Cluster cluster_;
  std::unique_ptr<sched::Policy> policy_;
  sched::FitCache fits_;
  sched::SharedMeasurements shared_;
  // What views of the last decision refer to, which is kept until somebody has measured: of kinds
  // that ran, by kind, batch and most devices; and of an average one, by batch.
  std::map<std::tuple<std::string, int64_t, int32_t>, KnownSpeeds> kind_speeds_;
  std::map<int64_t, KindSpeeds> average_speeds_;
  std::vector<std::pair<std::string, uint64_t>> averaged_;  // kinds, with their versions
  int32_t average_devices_ = 0;                             // up to which it is known
  std::map<JobId, Job> jobs_;
  // That are not to run now: what state() has of them; null: nothing was learnt.
  std::map<JobId, std::shared_ptr<const nlohmann::json>> aside_;
  double now_ = 0;                // of the last decide() or restore()
  double pause_;                  // seconds that a start costs a job: late ones count more
  std::optional<double> change_;  // the same of a change of what it holds; none was measured
  // Were kept from the policy in the last decision, and why.
  std::map<JobId, std::string> over_quota_;
  // No node had room for these, although the cluster had: for so many more decisions others may
  // have that room.
  std::map<JobId, int> scattered_;
  std::vector<int32_t> gpus_, lost_gpus_;  // by node; of the former, those that have failed
  std::map<int32_t, int64_t> gpu_quotas_;
  const std::vector<int16_t> devices_;             // of each node
  std::map<int32_t, std::string> drained_, away_;  // what is the matter with these nodes
  std::optional<Claim> claim_;
  std::set<JobId> without_gpus_{};          // no node had so many free in the last decision
  std::map<JobId, std::string> displaced_;  // by whom, of a higher tier, in the last decision
};

}  // namespace ductile::cluster
