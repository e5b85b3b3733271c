#include "ductile/sched/ductile_policy.h"

#include <algorithm>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/sched/ductile_policy_impl.h"
#include "ductile/sched/policies_impl.h"
#include "ductile/sched/valuation.h"

namespace ductile::sched {

namespace {

// Reports whose models differ less than this from those last used change nothing.
constexpr double kSameNoise = 0.03, kSameRate = 0.03;
// A larger allocation than the present one, or one elsewhere, must promise more than this much
// more: it is likely to be taken back by the next arrival, which is not in the model.
constexpr double kGrowthWorthwhile = 0.95;
// The same where the weight comes from a guessed size, and will be revised too.
constexpr double kGuessedGrowthWorthwhile = 0.9;

// A cost of devices is at most this much of what one is worth to the job.
constexpr double kMostOfWorth = 0.25;

bool close(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

// A driver may correct the rates of plans by what is measured, and drop plans.
bool same_plans(const std::vector<double>& modelled, const std::vector<JobPlan>& plans) {
  return std::equal(modelled.begin(), modelled.end(), plans.begin(), plans.end(),
                    [](double rate, const JobPlan& plan) {
                      return close(rate, plan.samples_per_second, kSameRate);
                    });
}

bool same_rates(const std::vector<Configuration>& modelled,
                const std::vector<Configuration>& anew) {
  return std::equal(modelled.begin(), modelled.end(), anew.begin(), anew.end(),
                    [](const Configuration& a, const Configuration& b) {
                      return a.pool == b.pool && a.devices == b.devices &&
                             close(a.rate, b.rate, kSameRate);
                    });
}

}  // namespace

void DuctilePolicy::Impl::update_pools(const Round& round) {
  const double horizon = horizon_of(round);
  if (restored_) go_on_in(round);
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
    for (auto& [id, s] : states_in_order()) {
      s->slot = slots_++;
      s->modelled = false;
      s->given_weight = -1;
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

// What its rates follow from is what it was, but for what is measured on sizes that were seen
// before.
bool DuctilePolicy::Impl::is_modelled(const State& s, const JobView& job, int32_t seen_devices,
                                      const std::optional<GradientNoise>& noise) const {
  return s.modelled && s.seen_devices == seen_devices && s.least == job.min_devices &&
         s.most_wanted == job.max_devices && same_plans(s.plan_rates, job.plans) &&
         noise.has_value() == s.noise.has_value() &&
         (!noise || close(s.noise->sqr * noise->var, s.noise->var * noise->sqr, kSameNoise));
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
  const bool known = is_modelled(s, job, seen_devices, noise);
  // A first reading may be far off. Those that wait are modelled anew once they run: what others of
  // their kind measure would be looked at in each round for each of a long queue.
  if (known && (s.speeds_version == job.speeds_version || job.allocation.empty())) return;
  std::vector<Configuration> anew =
      configurations(job, application, pools_, per_node_, options_.growth, noise);
  s.speeds_version = job.speeds_version;
  if (known && same_rates(s.configurations, anew)) return;
  s.modelled = true;
  s.seen_devices = seen_devices;
  s.least = job.min_devices;
  s.most_wanted = job.max_devices;
  s.noise = noise;
  s.plan_rates.clear();
  for (const JobPlan& plan : job.plans) s.plan_rates.push_back(plan.samples_per_second);
  s.configurations = std::move(anew);
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
    s.gone = false;
    s.grant = -1;
    s.progress = job.progress;
    s.service = job.attained_service;
    if (options_.share_by_application) applications_.learn(job);
  }
}

// States by job: the order of a hash table is not that of one restored from it.
std::vector<std::pair<JobId, DuctilePolicy::Impl::State*>> DuctilePolicy::Impl::states_in_order() {
  std::vector<std::pair<JobId, State*>> out;
  out.reserve(states_.size());
  for (auto& [id, s] : states_) out.emplace_back(id, &s);
  std::sort(out.begin(), out.end());
  return out;
}

void DuctilePolicy::Impl::forget_ended() {
  for (const auto& [id, state] : states_in_order()) {
    State& s = *state;
    if (s.seen == round_) continue;
    if (s.grant < 0 && !s.gone)
      work_left_.ended(options_.share_by_application ? s.application : std::string(), s.progress,
                       s.service);
    if (allocator_ && s.slot < allocator_->num_jobs()) allocator_->set_job(s.slot, {});
    free_slots_.push_back(s.slot);
    states_.erase(id);
  }
  std::sort(free_slots_.begin(), free_slots_.end(), std::greater<>());
}

int32_t DuctilePolicy::Impl::pool_of(const Cluster& cluster, const Allocation& allocation) const {
  const auto first = static_cast<size_t>(allocation.front().node);
  for (size_t p = 0; p < pools_.size(); ++p)
    if (pools_[p].cluster == cluster.node_cluster[first] &&
        pools_[p].type == cluster.node_type[first])
      return static_cast<int32_t>(p);
  return -1;
}

// Services take theirs before training is weighed.
void DuctilePolicy::Impl::serve(const Round& round, std::vector<int64_t>& capacity) {
  grants_.clear();
  if (std::none_of(round.jobs.begin(), round.jobs.end(),
                   [](const JobView& job) { return job.service.has_value(); }))
    return;
  const double horizon = horizon_of(round);
  grants_ = grant_services(round, pools_, horizon);
  for (size_t i = 0; i < grants_.size(); ++i) {
    State& s = states_.at(round.jobs[grants_[i].job].id);
    s.grant = static_cast<int32_t>(i);
    s.pinned = true;
    s.pool_now = grants_[i].pool;
    for (const NodeShare& share : grants_[i].allocation)
      if (usable_until(round.cluster, share.node, horizon))
        capacity[static_cast<size_t>(s.pool_now)] -= share.devices;
  }
}

// Hands the allocator each job's configurations with their values, where they have changed.
void DuctilePolicy::Impl::offer(const Round& round) {
  std::vector<int64_t> capacity;
  for (const Pool& p : pools_) capacity.push_back(p.devices);
  for (const JobView& job : round.jobs) {
    State& s = states_.at(job.id);
    s.pool_now = -1;
    s.pinned = s.left_out = false;
    s.most = INT32_MAX;
    s.fits.clear();
    if (job.allocation.empty() || job.service) continue;
    s.pool_now = pool_of(round.cluster, job.allocation);
    if (!job.is_fixed()) continue;
    s.pinned = true;
    for (const NodeShare& share : job.allocation)
      if (usable_until(round.cluster, share.node, horizon_of(round)))
        capacity[static_cast<size_t>(s.pool_now)] -= share.devices;
  }
  serve(round, capacity);
  keep_unsaved(round, capacity);
  for (int64_t& c : capacity) c = std::max<int64_t>(c, 0);
  if (!allocator_) {
    allocator_ = std::make_unique<Allocator>(capacity, allocator_options());
  } else {
    allocator_->set_capacity(capacity);
  }

  weigh(round);
  promise(round);
  try_again(round);
  for (const JobView& job : round.jobs) offer(job, states_.at(job.id));
  allocator_->solve();
  keep_quotas(round);
  count_trials(round);
}

// What leaving a running job without devices costs, a second: it will pay for a start again.
double DuctilePolicy::Impl::eviction_cost(const JobView& job, const State& s) const {
  const int32_t devices = device_count(job.allocation);
  if (s.pinned || devices == 0) return 0;
  for (const Configuration& c : s.configurations)
    if (c.devices == devices && c.pool == s.pool_now)
      return s.weight * c.rate * (job.restart_seconds + job.unsaved_seconds) /
             std::min(options_.horizon, s.remaining / c.rate);
  return 0;
}

// What a configuration is worth while it lasts, less what it takes to get there.
double DuctilePolicy::Impl::value(const JobView& job, const State& s,
                                  const Configuration& c) const {
  const int32_t devices = device_count(job.allocation);
  double value = s.weight * c.rate + s.promised * std::min<double>(s.owed.devices, c.devices);
  // The pause before it trains has to pay off: a restart's, or what is left of the last one.
  const bool same = devices > 0 && c.devices == devices && c.pool == s.pool_now;
  double h = std::min(options_.horizon, s.remaining / c.rate);
  const double price = allocator_->prices()[static_cast<size_t>(c.pool)];
  if (s.guessed && !same && price > 0) {
    // Of a guessed size the claim falls as it runs, by half when its service has doubled: until it
    // has fallen to the price of the devices, when others take them.
    const double above = s.weight * c.rate / (price * c.devices) - 1;
    h = std::min(
        h, std::max(1.0, (job.attained_service + WorkLeft::kLeastService) * above / c.devices));
  }
  // A start that takes longer than usual (data come from far away) is not made shorter by another.
  const double start = std::max(job.restart_seconds, job.pause_left);
  const double change = std::max(job.change_seconds(), job.pause_left);
  const double lost = same          ? job.pause_left
                      : devices > 0 ? change + job.unsaved_seconds
                                    : job.restart_seconds;
  value *= after_pause(h, lost);
  if (devices > 0 && (c.devices > devices || c.pool != s.pool_now)) {
    // Where a start takes longer than a round, one that is under way is not given up for something
    // better: two jobs could change places for ever.
    if (job.pause_left > 0 && start >= interval_) return -1;
    value *= s.guessed ? kGuessedGrowthWorthwhile : kGrowthWorthwhile;
  }
  // A cost of devices makes jobs smaller, and never keeps one waiting.
  return value - std::min(options_.device_cost, kMostOfWorth * s.best_per_device) * c.devices;
}

// What a stop now would cost, over what the job has before it: as it nears its end the same pause
// is a larger part of that, while its weight may stay the same. A guessed end does not come nearer.
double DuctilePolicy::Impl::stake(const JobView& job, const State& s) const {
  double lasts = options_.horizon;
  if (!s.guessed)
    for (const Configuration& c : s.configurations) lasts = std::min(lasts, s.remaining / c.rate);
  return (job.restart_seconds + job.unsaved_seconds) / lasts;
}

void DuctilePolicy::Impl::offer(const JobView& job, State& s) {
  const int32_t devices = s.pinned ? -2 : device_count(job.allocation);
  const double promise = s.owed.devices * s.promised;
  const double stake = this->stake(job, s);
  if (close(s.weight, s.given_weight, 0.01) && close(promise, s.given_promise, 0.01) &&
      close(stake, s.given_stake, 0.02) && devices == s.given_devices &&
      s.pool_now == s.given_pool && s.most == s.given_most && job.pause_left == s.given_pause)
    return;
  s.given_weight = s.weight;
  s.given_promise = promise;
  s.given_stake = stake;
  s.given_devices = devices;
  s.given_pool = s.pool_now;
  s.given_most = s.most;
  s.given_pause = job.pause_left;
  choices_.clear();
  s.best_per_device = 0;
  for (const Configuration& c : s.configurations)
    s.best_per_device = std::max(s.best_per_device, s.weight * c.rate / c.devices);
  const double stay = eviction_cost(job, s);
  if (!s.pinned)
    for (const Configuration& c : s.configurations) {
      const bool may = c.devices <= s.most &&
                       (s.fits.empty() || c.devices <= s.fits[static_cast<size_t>(c.pool)]);
      Configuration counted = c;
      if (c.devices == s.trial && c.pool == s.pool_now) counted.rate = s.trial_rate;
      const double worth = may ? value(job, s, counted) : -1;
      choices_.push_back({c.pool, c.devices, worth > 0 ? worth + stay : -1});
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
        if (s.grant >= 0)
          left -= device_count(grants_[static_cast<size_t>(s.grant)].allocation);
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

// Finds devices for what each job takes; marks those for which there are none in one piece.
std::vector<uint8_t> DuctilePolicy::Impl::place_all(const Round& round,
                                                    std::vector<Allocation>& next) const {
  const double horizon = horizon_of(round);
  std::vector<uint8_t> unplaced(round.jobs.size());
  next.assign(round.jobs.size(), {});
  std::vector<std::vector<PlacementRequest>> requests(pools_.size());
  for (size_t i = 0; i < round.jobs.size(); ++i) {
    const JobView& job = round.jobs[i];
    const State& s = states_.at(job.id);
    PlacementRequest r;
    r.job = static_cast<int32_t>(i);
    int32_t pool;
    if (s.grant >= 0) {
      const ServiceGrant& grant = grants_[static_cast<size_t>(s.grant)];
      if (grant.allocation.empty()) continue;
      r.devices = device_count(grant.allocation);
      r.movable = r.talks = false;
      r.held = &grant.allocation;
      requests[static_cast<size_t>(grant.pool)].push_back(r);
      continue;
    }
    if (s.pinned) {
      pool = s.pool_now;
      r.devices = device_count(job.allocation);
      r.movable = false;
    } else {
      const int c = s.takes;
      if (c < 0) continue;
      pool = s.configurations[static_cast<size_t>(c)].pool;
      r.devices = s.configurations[static_cast<size_t>(c)].devices;
      r.movable = !job.is_fixed();
    }
    if (pool == s.pool_now && r.devices == device_count(job.allocation)) r.held = &job.allocation;
    requests[static_cast<size_t>(pool)].push_back(r);
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    const PlacementResult placed = place(round.cluster, pools_[p], horizon, requests[p]);
    for (const auto& [i, allocation] : placed.placed) next[static_cast<size_t>(i)] = allocation;
    for (int32_t i : placed.unplaced) unplaced[static_cast<size_t>(i)] = 1;
  }
  use_leaving_nodes(round, next);
  return unplaced;
}

Decisions DuctilePolicy::Impl::decide(const Round& round) {
  interval_ = round.interval;
  update_pools(round);
  update_jobs(round);
  forget_ended();
  for (const JobView& job : round.jobs)
    if (!job.service) model(states_.at(job.id), job);
  offer(round);

  std::vector<Allocation> next;
  std::vector<uint8_t> unplaced;
  do {
    take_choices(round);
    unplaced = place_all(round, next);
  } while (keep_from_own_tier(round, next) || drop_trials(round, unplaced) ||
           leave_out(round, unplaced, next));
  Decisions decisions;
  decisions.objective = allocator_->result().objective;
  decisions.bound = allocator_->result().bound;
  outlook_.reset();
  for (size_t i = 0; i < round.jobs.size(); ++i) {
    const JobView& job = round.jobs[i];
    State& s = states_.at(job.id);
    s.name = job.name;
    s.requested = job.requested_devices;
    s.fragmented = unplaced[i] != 0 || s.left_out;
    s.holds = device_count(next[i]);
    s.holds_pool = s.holds > 0 ? pool_of(round.cluster, next[i]) : -1;
    s.useful = most_useful(job, s.holds_pool);
    s.quota = job.quota;
    if (s.pinned && s.grant < 0)
      s.reason = job.is_fixed() ? reason_of_fixed(job.granted)
                                : "it has all that it asked for, and would lose its work if it "
                                  "were stopped";
    if (next[i] == job.allocation) continue;
    if (!s.pinned || s.grant >= 0) s.reason = reason_for(s, job.allocation, round);
    decisions.changes.push_back({job.id, next[i], s.reason});
  }
  return decisions;
}

DuctilePolicy::DuctilePolicy(const DuctileOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
DuctilePolicy::~DuctilePolicy() = default;
Decisions DuctilePolicy::decide(const Round& round) { return impl_->decide(round); }
std::string DuctilePolicy::explain(JobId job) const { return impl_->explain(job); }
void DuctilePolicy::forget(JobId job) { impl_->forget(job); }

std::unique_ptr<Policy> make_ductile(const PolicyOptions& options) {
  DuctileOptions own;
  own.share_by_application = options.share_by_application;
  own.device_cost = options.device_cost.value_or(own.device_cost);
  return std::make_unique<DuctilePolicy>(own);
}

}  // namespace ductile::sched
