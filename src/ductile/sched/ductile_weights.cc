// What a job's progress is worth in a round: shadow costs, lateness, waiting, teams, promises.
#include <algorithm>
#include <cmath>

#include "ductile/sched/ductile_policy_impl.h"
#include "ductile/sched/shadow_cost.h"
#include "ductile/sched/valuation.h"

namespace ductile::sched {

namespace {

// A job that waits this long counts for twice as much, twice that for four times, and so on, so
// that none waits for ever. Not less than the work that is there would take on all devices: every
// job of a long queue waits longer than an hour, and if that counted they would only take turns.
constexpr double kPatience = 3600;
// A job is late where its lateness is so many times that of the median job: if all are late, it is
// the cluster that is too small, and there is nobody to take devices from.
constexpr double kLaterThanMost = 1.5;
// Of a job of unknown size that runs: its claim stays that of its start until it has had 1 + this x
// (jobs a device) times as much service. The longer the queue, the more is lost by taking turns,
// and the more there is to learn from jobs that end.
constexpr double kTurn = 2;
// A job that goes on after its budget is spent is taken to have this share of its progress left.
constexpr double kOverspent = 0.02;
// A device that a tier's window still needs is worth so many times the best other use of any.
constexpr double kPromised[] = {4, 1.5, 0};
constexpr double kUrgent = 1.5;

// Of the jobs whose lateness is known: those that can run nowhere at present say nothing of how
// late the others are. 0 where it is known of none.
double median_lateness(std::vector<double> rho) {
  std::erase_if(rho, [](double of_job) { return of_job <= 0; });
  if (rho.empty()) return 0;
  const auto middle = rho.begin() + static_cast<ptrdiff_t>(rho.size() / 2);
  std::nth_element(rho.begin(), middle, rho.end());
  return *middle;
}

}  // namespace

// The job's completion time, were it to have its fair share of the cluster from now on, over what
// it would have been with that share from its arrival; 0 where that is not known. What it holds now
// is left out: two late jobs would take turns, the one that waits being later each time.
double DuctilePolicy::Impl::lateness(State& s, const JobView& job, const Round& round,
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
  if (share <= 0 || s.least_left <= 0) return 0;
  const double need = job.progress + s.least_left;
  const double fair_left = std::max(0.0, need - s.fair_progress) / share;
  const double fair_end = s.fair_progress >= need ? age * need / s.fair_progress : age + fair_left;
  const double slack = job.restart_seconds + 2 * round.interval;  // what any start costs
  return (age + s.least_left / share) / (fair_end + slack);
}

// Relative cost of a device of each pool: the mean, over jobs, of its best progress per device
// against the best of any pool. Returns what all devices cost. In the order of jobs, since sums of
// doubles depend on theirs.
double DuctilePolicy::Impl::find_pool_costs(const Round& round) {
  pool_cost_.assign(pools_.size(), 0);
  std::vector<double> best(pools_.size());
  std::vector<double> count(pools_.size());
  for (const JobView& job : round.jobs) {
    const State& s = states_.at(job.id);
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
    for (const ServiceGrant& grant : grants_)
      if (grant.pool == static_cast<int32_t>(p)) serving += device_count(grant.allocation);
    capacity += pool_cost_[p] * static_cast<double>(pools_[p].devices - serving);
  }
  return capacity;
}

// Equally likely amounts of work left, in service; one where the job declares it. `crowd`: jobs a
// device.
void DuctilePolicy::Impl::size(const JobView& job, State& s, double crowd,
                               std::vector<double>& parts) const {
  parts.clear();
  s.guessed = !(options_.budgets && job.remaining);
  if (!s.guessed) {
    // A budget that is spent while the job goes on was wrong; until then it is believed to the end.
    s.remaining = std::max(1.0, *job.remaining > 0 ? *job.remaining : kOverspent * job.progress);
    s.least_left = s.remaining;
    parts.push_back(s.remaining / s.best_per_cost);
    return;
  }
  double claim = job.attained_service;
  if (job.allocation.empty()) s.service_at_start = claim;
  const double least = WorkLeft::kLeastService;
  claim =
      std::min(claim, std::max(s.service_at_start, (claim + least) / (1 + kTurn * crowd) - least));
  parts = work_left_.guess(options_.share_by_application ? job.application : std::string(),
                           job.progress, job.attained_service, s.best_per_cost, claim);
  s.remaining = parts[parts.size() / 2] * s.best_per_cost;
  s.least_left = parts.front() * s.best_per_cost;
}

// The curve of a job that waits, with its start in it: whenever it starts, it has to pay for that,
// so what the start takes from each configuration (value()) must not make it worth less than
// others.
void DuctilePolicy::Impl::count_start(const JobView& job, const State& s,
                                      std::vector<CurvePoint>& curve) const {
  curve.clear();
  for (const Configuration& c : s.configurations)
    curve.push_back({pool_cost_[static_cast<size_t>(c.pool)] * c.devices,
                     c.rate * after_pause(s.remaining / c.rate, job.restart_seconds)});
  keep_concave(curve);
}

void DuctilePolicy::Impl::weigh(const Round& round) {
  const double capacity = find_pool_costs(round);
  std::vector<CurvePoint> points;
  std::vector<SizedJob> sized;
  std::vector<State*> order;
  double guessed = 0;  // jobs without a budget
  double work = 0;     // of all jobs, in service of the dearest devices
  double devices = 0;
  for (const Pool& p : pools_) devices += static_cast<double>(p.devices);
  for (const ServiceGrant& grant : grants_) devices -= device_count(grant.allocation);
  const auto training = std::count_if(round.jobs.begin(), round.jobs.end(),
                                      [](const JobView& job) { return !job.service; });
  const double crowd = static_cast<double>(training) / std::max(1.0, devices);
  std::vector<CurvePoint> curve;
  std::vector<double> parts;
  for (const JobView& job : round.jobs) {
    State& s = states_.at(job.id);
    if (job.service) continue;
    curve.clear();
    for (const Configuration& c : s.configurations)
      curve.push_back({pool_cost_[static_cast<size_t>(c.pool)] * c.devices, c.rate});
    keep_concave(curve);
    const auto begin = static_cast<int>(points.size());
    const auto index = static_cast<int>(order.size());
    order.push_back(&s);
    s.weight = 0;
    s.remaining = s.least_left = 0;
    if (curve.empty()) continue;
    s.best_per_cost = curve[0].rate / curve[0].cost;
    size(job, s, crowd, parts);
    guessed += s.guessed;
    work += s.remaining / s.best_per_cost;
    // A job that waits has its start before it, and that of the job it would displace: who is
    // shorter by less than that is not ahead.
    const double pause = job.allocation.empty() ? 2 * job.restart_seconds : job.pause_left;
    for (double& part : parts) part += pause * curve[0].cost;
    if (job.allocation.empty()) count_start(job, s, curve);
    points.insert(points.end(), curve.begin(), curve.end());
    const auto end = static_cast<int>(points.size());
    for (const double part : parts)
      sized.push_back({index, part, 1.0 / static_cast<double>(parts.size()), begin, end});
  }
  if (order.empty()) return;
  const std::vector<double> worth =
      shadow_costs(std::move(sized), points, capacity, static_cast<int>(order.size()),
                   guessed / static_cast<double>(order.size()));
  std::vector<double> rho;
  for (State* s : order) rho.push_back(lateness(*s, *s->view, round, order.size()));
  const double late = std::max(options_.fairness, kLaterThanMost * median_lateness(rho));
  patience_ = std::max(kPatience, capacity > 0 ? work / capacity : 0);
  for (size_t i = 0; i < order.size(); ++i) {
    State& s = *order[i];
    const JobView& job = *s.view;
    s.weight =
        worth[i] * (rho[i] > late ? std::pow(rho[i] / late, 2) : 1) * team_factor(round, job.team);
    const bool waits = job.allocation.empty();
    if (!waits) s.waiting_since = -1;
    if (waits && s.waiting_since < 0) s.waiting_since = round.now;
    if (waits) s.weight *= std::exp2(std::min(200.0, (round.now - s.waiting_since) / patience_));
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

// Below 1 for the jobs of a team that holds more than its share.
double DuctilePolicy::Impl::team_factor(const Round& round, int32_t team) const {
  for (const Team& t : round.cluster.teams) {
    if (t.id != team || t.share <= 0) continue;
    double held = 0, all = 0;
    for (const JobView& job : round.jobs)
      if (job.team == team) held += device_count(job.allocation);
    for (const Pool& p : pools_) all += static_cast<double>(p.devices);
    return sched::team_factor(held, t.share * all);
  }
  return 1;
}

}  // namespace ductile::sched
