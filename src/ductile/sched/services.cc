#include "ductile/sched/services.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "ductile/sched/queueing.h"

namespace ductile::sched {
namespace {

constexpr double kKeepFor = 1.1;  // load for which replicas are kept once they are there

class Granter {
 public:
  Granter(const Round& round, std::span<const Pool> pools, double horizon, ServicesTake take)
      : round_(round), pools_(pools), room_(round.cluster.nodes()), trained_(room_.size(), 0) {
    for (int32_t n = 0; n < round.cluster.nodes(); ++n)
      room_[n] = usable_until(round.cluster, n, horizon) ? round.cluster.node_devices[n] : 0;
    for (size_t i = 0; i < round.jobs.size(); ++i) {
      const JobView& job = round.jobs[i];
      if (job.service) {
        grants_.push_back({i, -1, {}, ""});
        continue;
      }
      for (const NodeShare& s : job.allocation) {
        if (!job.is_fixed() && take == ServicesTake::preemptible)
          trained_[s.node] += s.devices;
        else
          room_[s.node] = std::max(0, room_[s.node] - s.devices);
      }
    }
    std::stable_sort(grants_.begin(), grants_.end(),
                     [&](const ServiceGrant& a, const ServiceGrant& b) {
                       return round_.jobs[a.job].tier < round_.jobs[b.job].tier;
                     });
  }

  std::vector<ServiceGrant> run() {
    for (ServiceGrant& grant : grants_) keep(grant);
    for (ServiceGrant& grant : grants_) reach(grant, service(grant).floor, true);
    for (ServiceGrant& grant : grants_) {
      if (grant.pool >= 0) {
        reach(grant, wanted(grant), false);
        stay(grant);
      }
      explain(grant);
    }
    std::sort(grants_.begin(), grants_.end(),
              [](const ServiceGrant& a, const ServiceGrant& b) { return a.job < b.job; });
    return std::move(grants_);
  }

 private:
  const ServiceView& service(const ServiceGrant& grant) const {
    return *round_.jobs[grant.job].service;
  }
  int32_t unit(const ServiceGrant& grant) const {
    return round_.jobs[grant.job].types[pools_[grant.pool].type].unit;
  }
  int32_t replicas(const ServiceGrant& grant) const {
    return grant.pool < 0 ? 0 : device_count(grant.allocation) / unit(grant);
  }
  int32_t needed(const ServiceGrant& grant, int32_t type, double load) const {
    const ServiceView& s = service(grant);
    const JobView& job = round_.jobs[grant.job];
    return std::min(replicas_needed(load, s.rate[type], s.target, s.goal, s.floor),
                    std::max(s.floor, job.max_devices / job.types[type].unit));
  }
  int32_t wanted(const ServiceGrant& grant) const {
    const double load = std::max(service(grant).load, service(grant).peak);
    const int32_t type = pools_[grant.pool].type;
    return std::max(needed(grant, type, load),
                    std::min(replicas(grant), needed(grant, type, kKeepFor * load)));
  }

  // What it holds on nodes that stay, less what it no longer needs.
  void keep(ServiceGrant& grant) {
    const JobView& job = round_.jobs[grant.job];
    if (job.allocation.empty()) return;
    const int32_t node = job.allocation.front().node;
    for (size_t p = 0; p < pools_.size(); ++p)
      if (pools_[p].type == round_.cluster.node_type[node] &&
          pools_[p].cluster == round_.cluster.node_cluster[node])
        grant.pool = static_cast<int32_t>(p);
    for (const NodeShare& s : job.allocation)
      if (room_[s.node] >= s.devices) {
        grant.allocation.push_back(s);
        room_[s.node] -= s.devices;
      }
    // Where load has fallen, the nodes that it holds least of come free first; the last but one of
    // a service that is to be spread only where there is nothing else.
    for (int32_t more = replicas(grant) - wanted(grant); more > 0; --more) {
      const auto holds_less = [](const NodeShare& a, const NodeShare& b) {
        return a.devices <= b.devices;
      };
      auto next = std::min_element(grant.allocation.begin(), grant.allocation.end(), holds_less);
      if (service(grant).spread && grant.allocation.size() == 2 && next->devices == unit(grant))
        next = next == grant.allocation.begin() ? std::next(next) : grant.allocation.begin();
      next->devices -= unit(grant);
      room_[next->node] += unit(grant);
      if (next->devices <= 0) grant.allocation.erase(next);
    }
  }

  int64_t left(int32_t pool, int32_t unit) const {
    int64_t sum = 0;
    for (const int32_t n : pools_[pool].nodes) sum += room_[n] / unit * unit;
    return sum;
  }

  // The pool in which the load takes the smallest part of what there is, of those that have room
  // for it; else for the floor.
  int32_t choose_pool(const ServiceGrant& grant) const {
    const JobView& job = round_.jobs[grant.job];
    int32_t best = -1;
    double least = 0;
    bool best_fits = false;
    for (size_t p = 0; p < pools_.size(); ++p) {
      const TypeModel& type = job.types[pools_[p].type];
      const int32_t region = round_.cluster.cluster_region[pools_[p].cluster];
      if (!job.movable && job.region >= 0 && region != job.region) continue;
      if (!type.allowed || service(grant).rate[pools_[p].type] <= 0) continue;
      const int64_t there = left(static_cast<int32_t>(p), type.unit);
      if (there < int64_t{service(grant).floor} * type.unit) continue;
      const double load = std::max(service(grant).load, service(grant).peak);
      const int64_t need = int64_t{needed(grant, pools_[p].type, load)} * type.unit;
      const double part = static_cast<double>(need) / static_cast<double>(pools_[p].devices);
      const bool fits = need <= there;
      if (best >= 0 && (fits < best_fits || (fits == best_fits && part >= least))) continue;
      best = static_cast<int32_t>(p);
      least = part;
      best_fits = fits;
    }
    return best;
  }

  void give_all_back(ServiceGrant& grant) {
    for (const NodeShare& s : grant.allocation) room_[s.node] += s.devices;
    grant.allocation.clear();
  }

  void reach(ServiceGrant& grant, int32_t count, bool floor) {
    int32_t more = count - replicas(grant);
    if (more <= 0) return;
    if (floor && (grant.pool < 0 || left(grant.pool, unit(grant)) < int64_t{more} * unit(grant))) {
      const int32_t pool = choose_pool(grant);
      if (pool >= 0 && pool != grant.pool) {
        give_all_back(grant);
        grant.pool = pool;
        more = count;
      }
    }
    if (grant.pool < 0) return;
    const int32_t devices = unit(grant);
    for (; more > 0; --more) {
      const int32_t node = best_node(grant, devices);
      if (node < 0) return;
      room_[node] -= devices;
      const auto mine = std::find_if(grant.allocation.begin(), grant.allocation.end(),
                                     [&](const NodeShare& s) { return s.node == node; });
      if (mine != grant.allocation.end())
        mine->devices += devices;
      else
        grant.allocation.push_back({node, devices});
    }
  }

  // Replicas for which there is no other place stay on a node that is about to leave.
  void stay(ServiceGrant& grant) {
    for (const NodeShare& s : round_.jobs[grant.job].allocation) {
      if (!round_.cluster.node_up[s.node] ||
          round_.cluster.node_type[s.node] != pools_[grant.pool].type)
        continue;
      if (std::any_of(grant.allocation.begin(), grant.allocation.end(),
                      [&](const NodeShare& mine) { return mine.node == s.node; }))
        continue;
      const int32_t missing = (wanted(grant) - replicas(grant)) * unit(grant);
      if (missing > 0 && room_[s.node] < s.devices)
        grant.allocation.push_back({s.node, std::min(missing, s.devices)});
    }
  }

  // Nobody's devices before a training job's, its own node before another, the fullest first. Where
  // it is to be spread and lies on one node alone, another one before its own.
  int32_t best_node(const ServiceGrant& grant, int32_t devices) const {
    int32_t best = -1;
    int64_t most = -1;
    const bool leave = service(grant).spread && grant.allocation.size() == 1;
    for (const int32_t n : pools_[grant.pool].nodes) {
      if (room_[n] < devices) continue;
      const bool free = room_[n] - trained_[n] >= devices;
      const bool own = std::any_of(grant.allocation.begin(), grant.allocation.end(),
                                   [&](const NodeShare& s) { return s.node == n; });
      const int64_t worth = (free ? 2'000'000 : 0) + (own != leave ? 1'000'000 : 0) +
                            (free ? 100'000 - room_[n] : room_[n]);
      if (worth > most) most = worth, best = n;
    }
    return best;
  }

  void explain(ServiceGrant& grant) const {
    const ServiceView& s = service(grant);
    std::sort(grant.allocation.begin(), grant.allocation.end(),
              [](const NodeShare& a, const NodeShare& b) { return a.node < b.node; });
    if (grant.allocation.empty()) {
      grant.reason = fmt::format("waits: no devices for its floor of {} replicas", s.floor);
      return;
    }
    const int32_t have = replicas(grant), type = pools_[grant.pool].type;
    const double load = std::max(s.load, s.peak);
    grant.reason = fmt::format(
        "{} replica{} (floor {}) for up to {:.3g} requests a second: {:.1f} % within {:.3g} s{}",
        have, have == 1 ? "" : "s", s.floor, load,
        100 * on_time_share(load, have, s.rate[type], s.target), s.target,
        have < wanted(grant) ? fmt::format(", {} more are wanted", wanted(grant) - have) : "");
  }

  const Round& round_;
  std::span<const Pool> pools_;
  std::vector<int32_t> room_;     // for services, by node
  std::vector<int32_t> trained_;  // held by jobs that may be preempted
  std::vector<ServiceGrant> grants_;
};

}  // namespace

std::vector<ServiceGrant> grant_services(const Round& round, std::span<const Pool> pools,
                                         double horizon, ServicesTake take) {
  return Granter(round, pools, horizon, take).run();
}

}  // namespace ductile::sched
