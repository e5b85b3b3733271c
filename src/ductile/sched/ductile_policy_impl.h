#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/sched/allocator.h"
#include "ductile/sched/ductile_policy.h"
#include "ductile/sched/job_curve.h"
#include "ductile/sched/services.h"
#include "ductile/sched/shadow_cost.h"
#include "ductile/sched/waiting_claims_impl.h"
#include "ductile/sched/work_left.h"

namespace ductile {
class JsonFields;
}

// The state of Ductile's policy: ductile_policy.cc makes rounds of it, ductile_weights.cc says what
// each job's progress is worth, ductile_state.cc saves and restores it.
namespace ductile::sched {

// A node that leaves within two rounds is as good as gone.
inline double horizon_of(const Round& round) { return round.now + 2 * round.interval; }

class DuctilePolicy::Impl {
 public:
  explicit Impl(const DuctileOptions& options) : options_(options) {}

  Decisions decide(const Round& round);
  std::string explain(JobId id) const;
  void forget(JobId id) {
    if (const auto found = states_.find(id); found != states_.end()) found->second.gone = true;
  }
  nlohmann::json state() const;
  void restore(const nlohmann::json& state, const std::string& where);

 private:
  struct State {
    int slot = 0;                   // in the allocator
    int64_t seen = 0;               // round
    const JobView* view = nullptr;  // of this round only
    // Models last used.
    bool modelled = false;
    int32_t seen_devices = -1;
    uint32_t speeds_version = 0;         // JobView::speeds_version
    int32_t least = 0, most_wanted = 0;  // the bounds that were modelled
    std::optional<GradientNoise> noise;
    std::vector<double> plan_rates;  // samples per second of its plans
    std::vector<Configuration> configurations;
    double best_per_cost = 0;  // progress per device-second of the reference type
    // What ended jobs teach.
    std::string application;
    double progress = 0, service = 0;
    // Fairness.
    double arrival = 0;
    double fair_progress = 0;  // it would have made on its fair share
    double last_update = 0;
    double waiting_since = -1;
    double service_at_start = 0;  // when its present run began
    double weight = 0;
    bool guessed = false;        // from a guessed size
    double best_per_device = 0;  // the most value of a device to it
    int32_t pool_now = -1;
    double remaining = 0;   // best guess, steps of batch M0
    double least_left = 0;  // the least of the guesses
    bool pinned = false;
    bool gone = false;  // forget()
    // Of sizes that were slow (ductile_trials.cc).
    int32_t trial = 0;         // devices of the one that it tries now; 0: none
    int32_t trials = 0;        // so far
    double trial_rate = 0;     // that it counts as meanwhile
    int32_t grant = -1;        // of a service: in grants_
    Owed owed;                 // devices that its window needs ...
    double promised = 0;       // ... and what each of them counts for
    int32_t most = INT32_MAX;  // devices, by its team's quota
    // Devices, by pool: in this round more are not free in one piece. Empty: nothing is known.
    std::vector<int32_t> fits;
    bool left_out = false;  // of this round, since it could begin on no piece that is free
    int32_t takes = -1;     // the configuration that it is to have, where it is not pinned
    // Of the last round, for explain().
    std::string name, reason;
    int32_t requested = 0;
    int32_t holds = 0, holds_pool = -1;
    int32_t useful = 0;       // devices of that pool's type; 0: not known
    int32_t quota = 0;        // JobView::quota
    bool fragmented = false;  // what was chosen for it found no place
    // What the allocator was last given.
    double given_weight = -1;
    int32_t given_devices = -1;
    int32_t given_pool = -1;
    double given_pause = 0;
    double given_promise = -1;
    double given_stake = -1;
    int32_t given_most = -1;
  };

  AllocatorOptions allocator_options() const {
    AllocatorOptions o;
    o.target_gap = options_.target_gap;
    return o;
  }
  std::vector<std::pair<JobId, State*>> states_in_order();
  static nlohmann::json to_json(const State& s);
  static State state_from(const nlohmann::json& item, const std::string& where, size_t pools);
  void read_jobs(const JsonFields& f);
  void go_on_in(const Round& round);
  void update_pools(const Round& round);
  void update_jobs(const Round& round);
  void forget_ended();
  bool is_modelled(const State& s, const JobView& job, int32_t seen_devices,
                   const std::optional<GradientNoise>& noise) const;
  void model(State& s, const JobView& job);
  void weigh(const Round& round);
  double find_pool_costs(const Round& round);
  void size(const JobView& job, State& s, double crowd, std::vector<double>& parts) const;
  void count_start(const JobView& job, const State& s, std::vector<CurvePoint>& curve) const;
  double lateness(State& s, const JobView& job, const Round& round, size_t active);
  void serve(const Round& round, std::vector<int64_t>& capacity);
  void promise(const Round& round);
  double team_factor(const Round& round, int32_t team) const;
  void offer(const Round& round);
  void offer(const JobView& job, State& s);
  double value(const JobView& job, const State& s, const Configuration& c) const;
  double eviction_cost(const JobView& job, const State& s) const;
  double stake(const JobView& job, const State& s) const;
  void keep_quotas(const Round& round);
  std::vector<uint8_t> place_all(const Round& round, std::vector<Allocation>& next) const;
  int32_t pool_of(const Cluster& cluster, const Allocation& allocation) const;
  // ductile_order.cc
  std::vector<int32_t> room_beside_kept(const Round& round) const;
  bool may_keep(const Round& round, const JobView& job, const std::vector<int32_t>& room) const;
  std::vector<const JobView*> unsaved_jobs(const Round& round) const;
  void keep_unsaved(const Round& round, std::vector<int64_t>& capacity);
  bool has_just_begun(const Round& round, const JobView& job) const;
  bool keep_from_own_tier(const Round& round, const std::vector<Allocation>& next);
  std::vector<int32_t> largest_pieces(const Round& round,
                                      const std::vector<Allocation>& next) const;
  bool leave_out(const Round& round, const std::vector<uint8_t>& unplaced,
                 const std::vector<Allocation>& next);
  void take_choices(const Round& round);
  // ductile_trials.cc
  double trial_seconds(const Configuration& c) const;
  bool is_on_trial(const Round& round, const JobView& job, const State& s) const;
  std::vector<const Configuration*> slower_sizes(const JobView& job, const State& s,
                                                 int64_t idle) const;
  void begin_trial(const Round& round, const JobView& job, State& s, int64_t share, int64_t& idle);
  void try_again(const Round& round);
  void count_trials(const Round& round);
  bool drop_trials(const Round& round, const std::vector<uint8_t>& unplaced);
  // ductile_leaving.cc
  void use_leaving_nodes(const Round& round, std::vector<Allocation>& next) const;
  State as_if_staying(const JobView& job, std::span<const Pool> pools) const;
  // ductile_reasons.cc
  struct Outlook;
  const Outlook& outlook() const;
  int32_t nearest(const State& s) const;
  bool is_shared(const State& s, int32_t pool) const;
  WaitingClaims::Turn turn_of(JobId id, const State& s, const Configuration& c) const;
  std::string holders_of(int32_t pool) const;
  const std::string& type_of(int32_t pool) const;
  int32_t most_useful(const JobView& job, int32_t pool) const;
  std::string why_it_runs(const State& s, int32_t devices, int32_t pool) const;
  std::string why_not_more(const State& s, int32_t devices, int32_t pool) const;
  std::string why_it_waits(JobId id, const State& s) const;
  std::string reason_for(const State& s, const Allocation& before, const Round& round) const;

  DuctileOptions options_;
  WorkLeft work_left_;
  ApplicationModels applications_;
  std::vector<Pool> pools_;
  std::vector<double> pool_cost_;  // of a device, against the dearest
  std::vector<int32_t> per_node_;  // by type
  std::vector<std::string> type_names_;
  size_t nodes_ = 0;
  bool restored_ = false;  // and no round since: the pools have no nodes yet, but so many:
  std::vector<size_t> nodes_in_pools_;
  std::unique_ptr<Allocator> allocator_;
  std::vector<ServiceGrant> grants_;
  std::vector<Option> choices_;
  std::unordered_map<JobId, State> states_;
  std::vector<int> free_slots_;
  int slots_ = 0;
  int64_t round_ = 0;
  double interval_ = 60;                      // seconds between rounds
  double patience_ = 0;                       // seconds of waiting that double a claim
  mutable std::shared_ptr<Outlook> outlook_;  // of the last round, made when explain() needs it
};

}  // namespace ductile::sched
