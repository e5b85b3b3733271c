// One file because every part of a round reads and writes the same State of a job.
#include "ductile/sched/ductile_policy.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "ductile/base/error.h"
#include "ductile/sched/allocator.h"
#include "ductile/sched/job_curve.h"
#include "ductile/sched/policies_impl.h"
#include "ductile/sched/pools.h"
#include "ductile/sched/services.h"
#include "ductile/sched/shadow_cost.h"
#include "ductile/sched/work_left.h"

namespace ductile::sched {

namespace {

// Reports whose models differ less than this from those last used change nothing.
constexpr double kSameNoise = 0.03;
// A job that waits this long counts for twice as much, twice that for four times, and so on, so
// that none waits for ever.
constexpr double kPatience = 3600;
// A larger allocation than the present one must promise more than this much more: it is likely to
// be taken back by the next arrival, which is not in the model.
constexpr double kGrowthWorthwhile = 0.95;
// The same where the weight comes from a guessed size, and will be revised too.
constexpr double kGuessedGrowthWorthwhile = 0.9;
// A device that a tier's window still needs is worth so many times the best other use of any.
constexpr double kPromised[] = {4, 1.5, 0};
constexpr double kUrgent = 1.5;
constexpr double kPromiseMargin = 0.03;

// A node that leaves within two rounds is as good as gone.
double horizon_of(const Round& round) { return round.now + 2 * round.interval; }

bool close(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

}  // namespace

class DuctilePolicy::Impl {
 public:
  explicit Impl(const DuctileOptions& options) : options_(options) {}

  Decisions decide(const Round& round);
  std::string explain(JobId id) const;

 private:
  struct State {
    int slot = 0;                   // in the allocator
    int64_t seen = 0;               // round
    const JobView* view = nullptr;  // of this round only
    // Models last used.
    bool modelled = false;
    int32_t seen_devices = -1;
    std::optional<GradientNoise> noise;
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
    double weight = 0;
    int32_t pool_now = -1;
    double remaining = 0;  // best guess, steps of batch M0
    bool pinned = false;
    int32_t plan = -1;         // of a service: in plans_
    Owed owed;                 // devices that its window needs ...
    double promised = 0;       // ... and what each of them counts for
    int32_t most = INT32_MAX;  // devices, by its team's quota
    std::string reason;
    // What the allocator was last given.
    double given_weight = -1;
    int32_t given_devices = -1;
    int32_t given_pool = -1;
    double given_pause = 0;
    double given_promise = -1;
    int32_t given_most = -1;
  };

  void update_pools(const Round& round);
  void update_jobs(const Round& round);
  void forget_ended();
  void model(State& s, const JobView& job);
  void weigh(const Round& round);
  double fairness_factor(State& s, const JobView& job, const Round& round, size_t active);
  void serve(const Round& round, std::vector<int64_t>& capacity);
  void promise(const Round& round);
  double team_factor(const Round& round, int32_t team) const;
  void offer(const Round& round);
  void offer(const JobView& job, State& s);
  void keep_quotas(const Round& round);
  std::string reason_for(const State& s, const Allocation& now) const;

  DuctileOptions options_;
  WorkLeft work_left_;
  ApplicationModels applications_;
  std::vector<Pool> pools_;
  std::vector<double> pool_cost_;  // of a device, against the dearest
  std::vector<int32_t> per_node_;  // by type
  std::vector<std::string> type_names_;
  size_t nodes_ = 0;
  std::unique_ptr<Allocator> allocator_;
  std::vector<ServicePlan> plans_;
  std::vector<Option> choices_;
  std::unordered_map<JobId, State> states_;
  std::vector<int> free_slots_;
  int slots_ = 0;
  int64_t round_ = 0;
};

void DuctilePolicy::Impl::update_pools(const Round& round) {
  const double horizon = horizon_of(round);
  if (nodes_ != static_cast<size_t>(round.cluster.nodes()) || pools_.empty()) {
    pools_ = find_pools(round.cluster, horizon);
    nodes_ = static_cast<size_t>(round.cluster.nodes());
    if (pools_.size() > Allocator::kMaxTypes)
      fail(ErrorCode::invalid_argument,
           "ductile policy: {} pools (clusters x device types), at most {} in one cluster; use the "
           "fleet scheduler above it",
           pools_.size(), Allocator::kMaxTypes);
    per_node_.clear();
    for (int32_t t = 0; t < round.cluster.type_count(); ++t)
      per_node_.push_back(round.cluster.devices_per_node(t));
    type_names_ = round.cluster.types;
    allocator_.reset();
    free_slots_.clear();
    slots_ = 0;
    for (auto& [id, s] : states_) {
      s.slot = slots_++;
      s.modelled = false;
      s.given_weight = -1;
    }
  } else {
    std::vector<std::pair<int64_t, int32_t>> before;
    for (const Pool& p : pools_) before.push_back({p.devices, p.whole_nodes});
    refresh_pools(round.cluster, horizon, pools_);
    for (size_t p = 0; p < pools_.size(); ++p)
      if (before[p] != std::pair{pools_[p].devices, pools_[p].whole_nodes})
        for (auto& [id, s] : states_) s.modelled = false;
  }
}

void DuctilePolicy::Impl::model(State& s, const JobView& job) {
  const ApplicationModel* application =
      options_.share_by_application ? applications_.find(job.application) : nullptr;
  int32_t seen_devices = 0;
  for (const TypeModel& t : job.types)
    if (t.fitted) seen_devices = std::max(seen_devices, t.max_profiled);
  if (application)
    for (const TypeModel& t : application->types)
      if (t.fitted) seen_devices = std::max(seen_devices, t.max_profiled);
  std::optional<GradientNoise> noise = job.noise;
  if (!noise && application) noise = application->noise_at(job.progress);
  if (s.modelled && s.seen_devices == seen_devices &&
      (noise.has_value() == s.noise.has_value() &&
       (!noise || close(s.noise->sqr * noise->var, s.noise->var * noise->sqr, kSameNoise))))
    return;
  s.modelled = true;
  s.seen_devices = seen_devices;
  s.noise = noise;
  s.configurations = configurations(job, application, pools_, per_node_, options_.growth, noise);
  s.given_weight = -1;
}

void DuctilePolicy::Impl::update_jobs(const Round& round) {
  ++round_;
  for (const JobView& job : round.jobs) {
    auto [at, fresh] = states_.try_emplace(job.id);
    State& s = at->second;
    if (fresh) {
      if (free_slots_.empty()) {
        s.slot = slots_++;
      } else {
        s.slot = free_slots_.back();
        free_slots_.pop_back();
      }
      s.application = job.application;
      s.arrival = job.arrival;
      s.last_update = std::max(job.arrival, round.now - round.interval);
    }
    s.seen = round_;
    s.view = &job;
    s.plan = -1;
    s.progress = job.progress;
    s.service = job.attained_service;
    if (options_.share_by_application) applications_.learn(job);
  }
}

void DuctilePolicy::Impl::forget_ended() {
  for (auto at = states_.begin(); at != states_.end();) {
    State& s = at->second;
    if (s.seen == round_) {
      ++at;
      continue;
    }
    if (s.plan < 0)
      work_left_.ended(options_.share_by_application ? s.application : std::string(), s.progress,
                       s.service);
    if (allocator_ && s.slot < allocator_->num_jobs()) allocator_->set_job(s.slot, {});
    free_slots_.push_back(s.slot);
    at = states_.erase(at);
  }
  std::sort(free_slots_.begin(), free_slots_.end(), std::greater<>());
}

// Above 1 for a job that will end later than on its own fair share of the cluster.
double DuctilePolicy::Impl::fairness_factor(State& s, const JobView& job, const Round& round,
                                            size_t active) {
  const double age = round.now - s.arrival;
  double share = 0;  // progress a second on an equal share of all devices
  double total = 0;
  for (const Pool& p : pools_) total += static_cast<double>(p.devices);
  const double fair = total / static_cast<double>(std::max<size_t>(1, active));
  for (const Configuration& c : s.configurations) {
    const double rate = c.devices <= fair ? c.rate : c.rate * fair / c.devices;
    share = std::max(share, rate);
  }
  s.fair_progress += share * (round.now - s.last_update);
  s.last_update = round.now;
  if (share <= 0 || s.remaining <= 0) return 1;
  const double need = job.progress + s.remaining;
  const double fair_left = std::max(0.0, need - s.fair_progress) / share;
  const double fair_end = s.fair_progress >= need ? age * need / s.fair_progress : age + fair_left;
  double rate_now = 0;
  for (const Configuration& c : s.configurations)
    if (c.pool == s.pool_now && c.devices == device_count(job.allocation)) rate_now = c.rate;
  const double end = age + s.remaining / std::max(rate_now, share);
  const double slack = job.restart_seconds + 2 * round.interval;  // what any start costs
  const double rho = end / (fair_end + slack);
  return rho > options_.fairness ? std::pow(rho / options_.fairness, 2) : 1;
}

void DuctilePolicy::Impl::weigh(const Round& round) {
  // Relative cost of a device of each pool: the mean, over jobs, of its best progress per device
  // against the best of any pool.
  pool_cost_.assign(pools_.size(), 0);
  std::vector<double> best(pools_.size());
  std::vector<double> count(pools_.size());
  for (auto& [id, s] : states_) {
    std::fill(best.begin(), best.end(), 0.0);
    for (const Configuration& c : s.configurations)
      best[static_cast<size_t>(c.pool)] =
          std::max(best[static_cast<size_t>(c.pool)], c.rate / c.devices);
    const double top = *std::max_element(best.begin(), best.end());
    if (top <= 0) continue;
    for (size_t p = 0; p < best.size(); ++p)
      if (best[p] > 0) {
        pool_cost_[p] += best[p] / top;
        count[p] += 1;
      }
  }
  double capacity = 0;
  for (size_t p = 0; p < pools_.size(); ++p) {
    pool_cost_[p] = count[p] > 0 ? pool_cost_[p] / count[p] : 1;
    int64_t serving = 0;
    for (const ServicePlan& plan : plans_)
      if (plan.pool == static_cast<int32_t>(p)) serving += device_count(plan.allocation);
    capacity += pool_cost_[p] * static_cast<double>(pools_[p].devices - serving);
  }

  std::vector<CurvePoint> points;
  std::vector<SizedJob> sized;
  std::vector<State*> order;
  double guessed = 0;  // jobs without a budget
  std::vector<CurvePoint> curve;
  for (const JobView& job : round.jobs) {
    State& s = states_.at(job.id);
    if (job.service) continue;
    curve.clear();
    for (const Configuration& c : s.configurations)
      curve.push_back({pool_cost_[static_cast<size_t>(c.pool)] * c.devices, c.rate});
    keep_concave(curve);
    const auto begin = static_cast<int>(points.size());
    points.insert(points.end(), curve.begin(), curve.end());
    const auto end = static_cast<int>(points.size());
    const auto index = static_cast<int>(order.size());
    order.push_back(&s);
    s.weight = 0;
    s.remaining = 0;
    if (curve.empty()) continue;
    s.best_per_cost = curve[0].rate / curve[0].cost;
    if (options_.budgets && job.remaining) {
      // A budget that is all but spent while the job goes on was wrong.
      s.remaining = std::max(*job.remaining, 0.02 * (job.progress + *job.remaining));
      if (s.remaining <= 0) s.remaining = 1;
      sized.push_back({index, s.remaining / s.best_per_cost, 1, begin, end});
      continue;
    }
    guessed += 1;
    const std::vector<double> parts =
        work_left_.guess(options_.share_by_application ? job.application : std::string(),
                         job.progress, job.attained_service, s.best_per_cost);
    for (double part : parts)
      sized.push_back({index, part, 1.0 / static_cast<double>(parts.size()), begin, end});
    s.remaining = parts[parts.size() / 2] * s.best_per_cost;
  }
  const std::vector<double> worth =
      shadow_costs(std::move(sized), points, capacity, static_cast<int>(order.size()),
                   order.empty() ? 0 : guessed / static_cast<double>(order.size()));
  for (size_t i = 0; i < order.size(); ++i) {
    State& s = *order[i];
    const JobView& job = *s.view;
    s.weight =
        worth[i] * fairness_factor(s, job, round, order.size()) * team_factor(round, job.team);
    const bool waits = job.allocation.empty();
    if (!waits) s.waiting_since = -1;
    if (waits && s.waiting_since < 0) s.waiting_since = round.now;
    if (waits) s.weight *= std::exp2(std::min(200.0, (round.now - s.waiting_since) / kPatience));
  }
}

// Services take theirs before training is weighed.
void DuctilePolicy::Impl::serve(const Round& round, std::vector<int64_t>& capacity) {
  plans_.clear();
  if (std::none_of(round.jobs.begin(), round.jobs.end(),
                   [](const JobView& job) { return job.service.has_value(); }))
    return;
  const double horizon = horizon_of(round);
  plans_ = plan_services(round, pools_, horizon);
  for (size_t i = 0; i < plans_.size(); ++i) {
    State& s = states_.at(round.jobs[plans_[i].job].id);
    s.plan = static_cast<int32_t>(i);
    s.pinned = true;
    s.pool_now = plans_[i].pool;
    for (const NodeShare& share : plans_[i].allocation)
      if (usable_until(round.cluster, share.node, horizon))
        capacity[static_cast<size_t>(s.pool_now)] -= share.devices;
  }
}

// What the windows of Premium and Standard jobs still need.
void DuctilePolicy::Impl::promise(const Round& round) {
  double top = 0;
  bool any = false;
  for (const JobView& job : round.jobs) {
    State& s = states_.at(job.id);
    s.owed = {};
    s.promised = 0;
    if (s.pinned) continue;
    for (const Configuration& c : s.configurations)
      top = std::max(top, s.weight * c.rate / c.devices);
    s.owed = owed_devices(job.tier, guarantee(job.tier), kPromiseMargin, job.requested_devices,
                          job.window);
    any = any || s.owed.devices > 0;
  }
  if (!any) return;
  for (const JobView& job : round.jobs) {
    State& s = states_.at(job.id);
    s.promised = top * kPromised[static_cast<size_t>(job.tier)] *
                 (s.owed.urgent && job.tier == Tier::standard ? kUrgent : 1);
  }
}

// Below 1 for the jobs of a team that holds more than its share; in coarse steps, or teams would
// take turns.
double DuctilePolicy::Impl::team_factor(const Round& round, int32_t team) const {
  for (const Team& t : round.cluster.teams) {
    if (t.id != team || t.share <= 0) continue;
    double held = 0, all = 0;
    for (const JobView& job : round.jobs)
      if (job.team == team) held += device_count(job.allocation);
    for (const Pool& p : pools_) all += static_cast<double>(p.devices);
    return held <= 1.25 * t.share * all ? 1 : held <= 2 * t.share * all ? 0.6 : 0.3;
  }
  return 1;
}

// Hands the allocator each job's configurations with their values, where they have changed.
void DuctilePolicy::Impl::offer(const Round& round) {
  std::vector<int64_t> capacity;
  for (const Pool& p : pools_) capacity.push_back(p.devices);
  for (const JobView& job : round.jobs) {
    State& s = states_.at(job.id);
    s.pool_now = -1;
    s.pinned = false;
    s.most = INT32_MAX;
    if (job.allocation.empty() || job.service) continue;
    const auto first = static_cast<size_t>(job.allocation[0].node);
    for (size_t p = 0; p < pools_.size(); ++p)
      if (pools_[p].cluster == round.cluster.node_cluster[first] &&
          pools_[p].type == round.cluster.node_type[first])
        s.pool_now = static_cast<int32_t>(p);
    if (job.preemptible) continue;
    s.pinned = true;
    for (const NodeShare& share : job.allocation)
      if (usable_until(round.cluster, share.node, horizon_of(round)))
        capacity[static_cast<size_t>(s.pool_now)] -= share.devices;
  }
  serve(round, capacity);
  for (int64_t& c : capacity) c = std::max<int64_t>(c, 0);
  if (!allocator_) {
    AllocatorOptions o;
    o.target_gap = options_.target_gap;
    allocator_ = std::make_unique<Allocator>(capacity, o);
  } else {
    allocator_->set_capacity(capacity);
  }

  weigh(round);
  promise(round);
  for (const JobView& job : round.jobs) offer(job, states_.at(job.id));
  allocator_->solve();
  keep_quotas(round);
}

void DuctilePolicy::Impl::offer(const JobView& job, State& s) {
  const int32_t devices = s.pinned ? -2 : device_count(job.allocation);
  const double promise = s.owed.devices * s.promised;
  if (close(s.weight, s.given_weight, 0.01) && close(promise, s.given_promise, 0.01) &&
      devices == s.given_devices && s.pool_now == s.given_pool && s.most == s.given_most &&
      job.pause_left == s.given_pause)
    return;
  s.given_weight = s.weight;
  s.given_promise = promise;
  s.given_devices = devices;
  s.given_pool = s.pool_now;
  s.given_most = s.most;
  s.given_pause = job.pause_left;
  choices_.clear();
  const double worthwhile =
      options_.budgets && job.remaining ? kGrowthWorthwhile : kGuessedGrowthWorthwhile;
  if (!s.pinned)
    for (const Configuration& c : s.configurations) {
      double value = s.weight * c.rate + s.promised * std::min<double>(s.owed.devices, c.devices);
      // The pause before it trains has to pay off: a restart's, or what is left of the last one.
      const bool same = devices > 0 && c.devices == devices && c.pool == s.pool_now;
      const double h = std::min(options_.horizon, s.remaining / c.rate);
      const double lost = same          ? job.pause_left
                          : devices > 0 ? job.restart_seconds + job.unsaved_seconds
                                        : job.restart_seconds;
      value *= h / (h + lost);
      if (devices > 0 && c.devices > devices) value *= worthwhile;
      choices_.push_back({c.pool, c.devices, c.devices <= s.most ? value : -1});
    }
  allocator_->set_job(s.slot, choices_);
}

// Where a team would hold more than its quota, its jobs that make least of a device are limited to
// what the others leave of it, and all is solved again: what they give up may go to a team that is
// then above its own.
void DuctilePolicy::Impl::keep_quotas(const Round& round) {
  const bool none = std::all_of(round.cluster.teams.begin(), round.cluster.teams.end(),
                                [](const Team& t) { return t.quota <= 0; });
  for (size_t pass = 0; !none && pass <= round.cluster.teams.size(); ++pass) {
    bool changed = false;
    for (const Team& team : round.cluster.teams) {
      if (team.quota <= 0) continue;
      struct Claim {
        const JobView* job;
        State* state;
        int32_t devices;
        double worth;  // a device
      };
      std::vector<Claim> claims;
      int64_t left = team.quota, held = 0;
      for (const JobView& job : round.jobs) {
        if (job.team != team.id) continue;
        State& s = states_.at(job.id);
        if (s.plan >= 0)
          left -= device_count(plans_[static_cast<size_t>(s.plan)].allocation);
        else if (s.pinned)
          left -= device_count(job.allocation);
        const int c = s.pinned ? -1 : allocator_->chosen(s.slot);
        if (c < 0) continue;
        const Configuration& chosen = s.configurations[static_cast<size_t>(c)];
        held += chosen.devices;
        claims.push_back(
            {&job, &s, chosen.devices,
             s.weight * chosen.rate / chosen.devices + s.promised * (s.owed.devices > 0)});
      }
      if (held <= left) continue;
      changed = true;
      std::stable_sort(claims.begin(), claims.end(),
                       [](const Claim& a, const Claim& b) { return a.worth > b.worth; });
      for (const Claim& claim : claims) {
        claim.state->most = static_cast<int32_t>(std::clamp<int64_t>(left, 0, claim.devices));
        left -= std::min<int64_t>(claim.state->most, claim.devices);
      }
      // Those that got nothing get nothing of this either.
      for (const JobView& job : round.jobs) {
        State& s = states_.at(job.id);
        if (job.team != team.id || s.pinned) continue;
        if (s.most == INT32_MAX) s.most = 0;
        offer(job, s);
      }
    }
    if (!changed) return;
    allocator_->solve();
  }
}

std::string DuctilePolicy::Impl::reason_for(const State& s, const Allocation& now) const {
  if (s.plan >= 0) return plans_[static_cast<size_t>(s.plan)].reason;
  const int c = allocator_->chosen(s.slot);
  if (now.empty()) {
    if (s.most < INT32_MAX) return "its team holds its quota";
    if (s.configurations.empty()) return "no device type it may use is there";
    return fmt::format("its devices are worth more to other jobs");
  }
  const auto& chosen = s.configurations[static_cast<size_t>(c)];
  return fmt::format(
      "{} {} are worth {:.3g} to it (in jobs spared waiting), the price is {:.3g}", chosen.devices,
      type_names_[static_cast<size_t>(pools_[static_cast<size_t>(chosen.pool)].type)],
      s.weight * chosen.rate,
      allocator_->prices()[static_cast<size_t>(chosen.pool)] * chosen.devices);
}

Decisions DuctilePolicy::Impl::decide(const Round& round) {
  update_pools(round);
  update_jobs(round);
  forget_ended();
  for (const JobView& job : round.jobs)
    if (!job.service) model(states_.at(job.id), job);
  offer(round);

  Decisions decisions;
  decisions.objective = allocator_->result().objective;
  decisions.bound = allocator_->result().bound;
  const double horizon = horizon_of(round);
  std::vector<Allocation> next(round.jobs.size());
  std::vector<uint8_t> settled(round.jobs.size());
  std::vector<std::vector<PlacementRequest>> requests(pools_.size());
  for (size_t i = 0; i < round.jobs.size(); ++i) {
    const JobView& job = round.jobs[i];
    const State& s = states_.at(job.id);
    PlacementRequest r;
    r.job = static_cast<int32_t>(i);
    int32_t pool;
    if (s.plan >= 0) {
      const ServicePlan& plan = plans_[static_cast<size_t>(s.plan)];
      if (plan.allocation.empty()) continue;
      r.devices = device_count(plan.allocation);
      r.movable = r.talks = false;
      r.held = &plan.allocation;
      requests[static_cast<size_t>(plan.pool)].push_back(r);
      continue;
    }
    if (s.pinned) {
      pool = s.pool_now;
      r.devices = device_count(job.allocation);
      r.movable = false;
    } else {
      const int c = allocator_->chosen(s.slot);
      if (c < 0) continue;
      pool = s.configurations[static_cast<size_t>(c)].pool;
      r.devices = s.configurations[static_cast<size_t>(c)].devices;
      r.movable = job.preemptible || job.allocation.empty();
    }
    if (pool == s.pool_now && r.devices == device_count(job.allocation)) r.held = &job.allocation;
    requests[static_cast<size_t>(pool)].push_back(r);
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    const PlacementResult placed = place(round.cluster, pools_[p], horizon, requests[p]);
    for (const auto& [i, allocation] : placed.placed) next[static_cast<size_t>(i)] = allocation;
    for (int32_t i : placed.unplaced) settled[static_cast<size_t>(i)] = 1;
  }
  for (size_t i = 0; i < round.jobs.size(); ++i) {
    const JobView& job = round.jobs[i];
    State& s = states_.at(job.id);
    const bool fragmented = settled[i] != 0;
    s.reason = s.plan >= 0  ? reason_for(s, next[i])
               : s.pinned   ? "it may not be preempted and keeps what it has"
               : fragmented ? "its devices are free only in pieces spread over too many nodes"
                            : reason_for(s, next[i]);
    if (next[i] == job.allocation) continue;
    decisions.changes.push_back({job.id, next[i], s.reason});
  }
  return decisions;
}

std::string DuctilePolicy::Impl::explain(JobId id) const {
  const auto found = states_.find(id);
  if (found == states_.end() || !allocator_) return "";
  const State& s = found->second;
  const int c = allocator_->chosen(s.slot);
  if (s.plan >= 0) return s.reason;
  if (s.pinned || c >= 0) return fmt::format("runs: {}", s.reason);
  if (s.configurations.empty() || s.most < INT32_MAX) return fmt::format("waits: {}", s.reason);
  // The configuration nearest to being worth its price.
  double best = -1;
  const Configuration* nearest = nullptr;
  for (const Configuration& k : s.configurations) {
    const double price = allocator_->prices()[static_cast<size_t>(k.pool)];
    const double ratio = price > 0 ? s.weight * k.rate / (price * k.devices) : HUGE_VAL;
    if (ratio > best) best = ratio, nearest = &k;
  }
  const Pool& pool = pools_[static_cast<size_t>(nearest->pool)];
  const double value = s.weight * nearest->rate / nearest->devices;
  // Devices asked for by jobs that wait and would pay more.
  int64_t before = 0;
  int jobs_before = 0;
  for (const auto& [other_id, o] : states_) {
    if (other_id == id || o.pinned || allocator_->chosen(o.slot) >= 0) continue;
    double most = 0;
    int32_t devices = 0;
    for (const Configuration& k : o.configurations)
      if (k.pool == nearest->pool && o.weight * k.rate / k.devices > most)
        most = o.weight * k.rate / k.devices, devices = k.devices;
    if (most > value) before += devices, ++jobs_before;
  }
  const int64_t left = allocator_->capacity()[static_cast<size_t>(nearest->pool)] -
                       allocator_->used()[static_cast<size_t>(nearest->pool)];
  const int64_t needed = std::max<int64_t>(0, nearest->devices + before - left);
  return fmt::format(
      "waits: {}; {} {} would be worth {:.3g} each to it, the price is {:.3g}. It starts when {} "
      "more come free ({} waiting job{} before it), or earlier as its claim doubles with every {} "
      "minutes of waiting",
      s.reason, nearest->devices, type_names_[static_cast<size_t>(pool.type)], value,
      allocator_->prices()[static_cast<size_t>(nearest->pool)], needed, jobs_before,
      jobs_before == 1 ? "" : "s", static_cast<int>(kPatience / 60));
}

DuctilePolicy::DuctilePolicy(const DuctileOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
DuctilePolicy::~DuctilePolicy() = default;
Decisions DuctilePolicy::decide(const Round& round) { return impl_->decide(round); }
std::string DuctilePolicy::explain(JobId job) const { return impl_->explain(job); }

std::unique_ptr<Policy> make_ductile(const PolicyOptions&) {
  return std::make_unique<DuctilePolicy>();
}

}  // namespace ductile::sched
