#include "ductile/sched/services.h"

#include <algorithm>

#include <fmt/format.h>

#include "ductile/sched/queueing.h"

namespace ductile::sched {
namespace {

constexpr double kKeepFor = 1.1;  // load for which replicas are kept once they are there

class Planner {
 public:
  Planner(const Round& round, std::span<const Pool> pools, double horizon)
      : round_(round), pools_(pools), room_(round.cluster.nodes()), trained_(room_.size(), 0) {
    for (int32_t n = 0; n < round.cluster.nodes(); ++n)
      room_[n] = usable_until(round.cluster, n, horizon) ? round.cluster.node_devices[n] : 0;
    for (size_t i = 0; i < round.jobs.size(); ++i) {
      const JobView& job = round.jobs[i];
      if (job.service) {
        plans_.push_back({i, -1, {}, ""});
        continue;
      }
      for (const NodeShare& s : job.allocation) {
        if (job.preemptible)
          trained_[s.node] += s.devices;
        else
          room_[s.node] = std::max(0, room_[s.node] - s.devices);
      }
    }
    std::stable_sort(plans_.begin(), plans_.end(), [&](const ServicePlan& a, const ServicePlan& b) {
      return round_.jobs[a.job].tier < round_.jobs[b.job].tier;
    });
  }

  std::vector<ServicePlan> run() {
    for (ServicePlan& plan : plans_) keep(plan);
    for (ServicePlan& plan : plans_) reach(plan, service(plan).floor, true);
    for (ServicePlan& plan : plans_) {
      if (plan.pool >= 0) {
        reach(plan, wanted(plan), false);
        stay(plan);
      }
      explain(plan);
    }
    std::sort(plans_.begin(), plans_.end(),
              [](const ServicePlan& a, const ServicePlan& b) { return a.job < b.job; });
    return std::move(plans_);
  }

 private:
  const ServiceView& service(const ServicePlan& plan) const {
    return *round_.jobs[plan.job].service;
  }
  int32_t unit(const ServicePlan& plan) const {
    return round_.jobs[plan.job].types[pools_[plan.pool].type].unit;
  }
  int32_t replicas(const ServicePlan& plan) const {
    return plan.pool < 0 ? 0 : device_count(plan.allocation) / unit(plan);
  }
  int32_t needed(const ServicePlan& plan, int32_t type, double load) const {
    const ServiceView& s = service(plan);
    return replicas_needed(load, s.rate[type], s.target, s.goal, s.floor);
  }
  int32_t wanted(const ServicePlan& plan) const {
    const double load = std::max(service(plan).load, service(plan).peak);
    const int32_t type = pools_[plan.pool].type;
    return std::max(needed(plan, type, load),
                    std::min(replicas(plan), needed(plan, type, kKeepFor * load)));
  }

  // What it holds on nodes that stay, less what it no longer needs.
  void keep(ServicePlan& plan) {
    const JobView& job = round_.jobs[plan.job];
    if (job.allocation.empty()) return;
    const int32_t node = job.allocation.front().node;
    for (size_t p = 0; p < pools_.size(); ++p)
      if (pools_[p].type == round_.cluster.node_type[node] &&
          pools_[p].cluster == round_.cluster.node_cluster[node])
        plan.pool = static_cast<int32_t>(p);
    for (const NodeShare& s : job.allocation)
      if (room_[s.node] >= s.devices) {
        plan.allocation.push_back(s);
        room_[s.node] -= s.devices;
      }
    // Where load has fallen, the nodes that it holds least of come free first.
    for (int32_t more = replicas(plan) - wanted(plan); more > 0; --more) {
      auto least = std::min_element(
          plan.allocation.begin(), plan.allocation.end(),
          [](const NodeShare& a, const NodeShare& b) { return a.devices <= b.devices; });
      least->devices -= unit(plan);
      room_[least->node] += unit(plan);
      if (least->devices <= 0) plan.allocation.erase(least);
    }
  }

  int64_t left(int32_t pool, int32_t unit) const {
    int64_t sum = 0;
    for (const int32_t n : pools_[pool].nodes) sum += room_[n] / unit * unit;
    return sum;
  }

  // The pool in which the load takes the smallest part of what there is, of those that have room
  // for it; else for the floor.
  int32_t choose_pool(const ServicePlan& plan) const {
    const JobView& job = round_.jobs[plan.job];
    int32_t best = -1;
    double least = 0;
    bool best_fits = false;
    for (size_t p = 0; p < pools_.size(); ++p) {
      const TypeModel& type = job.types[pools_[p].type];
      if (!type.allowed || service(plan).rate[pools_[p].type] <= 0) continue;
      const int64_t there = left(static_cast<int32_t>(p), type.unit);
      if (there < int64_t{service(plan).floor} * type.unit) continue;
      const double load = std::max(service(plan).load, service(plan).peak);
      const int64_t need = int64_t{needed(plan, pools_[p].type, load)} * type.unit;
      const double part = static_cast<double>(need) / static_cast<double>(pools_[p].devices);
      const bool fits = need <= there;
      if (best >= 0 && (fits < best_fits || (fits == best_fits && part >= least))) continue;
      best = static_cast<int32_t>(p);
      least = part;
      best_fits = fits;
    }
    return best;
  }

  void give_all_back(ServicePlan& plan) {
    for (const NodeShare& s : plan.allocation) room_[s.node] += s.devices;
    plan.allocation.clear();
  }

  void reach(ServicePlan& plan, int32_t count, bool floor) {
    int32_t more = count - replicas(plan);
    if (more <= 0) return;
    if (floor && (plan.pool < 0 || left(plan.pool, unit(plan)) < int64_t{more} * unit(plan))) {
      const int32_t pool = choose_pool(plan);
      if (pool >= 0 && pool != plan.pool) {
        give_all_back(plan);
        plan.pool = pool;
        more = count;
      }
    }
    if (plan.pool < 0) return;
    const int32_t devices = unit(plan);
    for (; more > 0; --more) {
      const int32_t node = best_node(plan, devices);
      if (node < 0) return;
      room_[node] -= devices;
      const auto mine = std::find_if(plan.allocation.begin(), plan.allocation.end(),
                                     [&](const NodeShare& s) { return s.node == node; });
      if (mine != plan.allocation.end())
        mine->devices += devices;
      else
        plan.allocation.push_back({node, devices});
    }
  }

  // Replicas for which there is no other place stay on a node that is about to leave.
  void stay(ServicePlan& plan) {
    for (const NodeShare& s : round_.jobs[plan.job].allocation) {
      if (!round_.cluster.node_up[s.node] ||
          round_.cluster.node_type[s.node] != pools_[plan.pool].type)
        continue;
      if (std::any_of(plan.allocation.begin(), plan.allocation.end(),
                      [&](const NodeShare& mine) { return mine.node == s.node; }))
        continue;
      const int32_t missing = (wanted(plan) - replicas(plan)) * unit(plan);
      if (missing > 0 && room_[s.node] < s.devices)
        plan.allocation.push_back({s.node, std::min(missing, s.devices)});
    }
  }

  // Nobody's devices before a training job's, its own node before another, the fullest first.
  int32_t best_node(const ServicePlan& plan, int32_t devices) const {
    int32_t best = -1;
    int64_t most = -1;
    for (const int32_t n : pools_[plan.pool].nodes) {
      if (room_[n] < devices) continue;
      const bool free = room_[n] - trained_[n] >= devices;
      const bool own = std::any_of(plan.allocation.begin(), plan.allocation.end(),
                                   [&](const NodeShare& s) { return s.node == n; });
      const int64_t worth =
          (free ? 2'000'000 : 0) + (own ? 1'000'000 : 0) + (free ? 100'000 - room_[n] : room_[n]);
      if (worth > most) most = worth, best = n;
    }
    return best;
  }

  void explain(ServicePlan& plan) const {
    const ServiceView& s = service(plan);
    std::sort(plan.allocation.begin(), plan.allocation.end(),
              [](const NodeShare& a, const NodeShare& b) { return a.node < b.node; });
    if (plan.allocation.empty()) {
      plan.reason = fmt::format("waits: no devices for its floor of {} replicas", s.floor);
      return;
    }
    const int32_t have = replicas(plan), type = pools_[plan.pool].type;
    const double load = std::max(s.load, s.peak);
    plan.reason = fmt::format(
        "{} replica{} (floor {}) for up to {:.3g} requests a second: {:.1f} % within {:.3g} s{}",
        have, have == 1 ? "" : "s", s.floor, load,
        100 * on_time_share(load, have, s.rate[type], s.target), s.target,
        have < wanted(plan) ? fmt::format(", {} more are wanted", wanted(plan) - have) : "");
  }

  const Round& round_;
  std::span<const Pool> pools_;
  std::vector<int32_t> room_;     // for services, by node
  std::vector<int32_t> trained_;  // held by jobs that may be preempted
  std::vector<ServicePlan> plans_;
};

}  // namespace

std::vector<ServicePlan> plan_services(const Round& round, std::span<const Pool> pools,
                                       double horizon) {
  return Planner(round, pools, horizon).run();
}

}  // namespace ductile::sched
