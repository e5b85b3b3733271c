// Fixed sizes by tier, over regions: what clusters do that promise nothing. Within a tier, first
// come, first served; who does not fit is overtaken by who does.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/sched/policies_impl.h"
#include "ductile/sched/pools.h"

namespace ductile::sched {
namespace {

// Free devices by node, while a round is put together.
class FreeNodes {
 public:
  explicit FreeNodes(const Cluster& cluster) {
    for (int32_t n = 0; n < cluster.nodes(); ++n) free_.push_back(cluster.usable(n));
  }
  int64_t on(const std::vector<int32_t>& nodes) const {
    int64_t sum = 0;
    for (const int32_t n : nodes) sum += std::max(free_[static_cast<size_t>(n)], 0);
    return sum;
  }
  void change(const Allocation& allocation, int32_t sign) {
    for (const NodeShare& share : allocation)
      free_[static_cast<size_t>(share.node)] += sign * share.devices;
  }
  // On the fullest node that has room for all, otherwise on the emptiest ones; there is enough.
  Allocation take(const std::vector<int32_t>& nodes, int32_t devices) {
    std::vector<int32_t> order;
    int32_t best = -1;
    for (const int32_t n : nodes) {
      const int32_t here = free_[static_cast<size_t>(n)];
      if (here > 0) order.push_back(n);
      if (here >= devices && (best < 0 || here < free_[static_cast<size_t>(best)])) best = n;
    }
    if (best >= 0) {
      order = {best};
    } else {
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return free_[static_cast<size_t>(a)] > free_[static_cast<size_t>(b)];
      });
    }
    Allocation out;
    for (size_t i = 0; devices > 0; ++i) {
      DUCTILE_CHECK(i < order.size(), "{} devices too few", devices);
      const int32_t taken = std::min(free_[static_cast<size_t>(order[i])], devices);
      out.push_back({order[i], taken});
      devices -= taken;
    }
    change(out, -1);
    return out;
  }

 private:
  std::vector<int32_t> free_;
};

// Nodes of one type over which a job may be spread: those of one cluster or, for a job that is
// larger than each of these, those of all clusters.
struct Place {
  int32_t type = 0, region = -1;
  std::vector<int32_t> nodes;
  int64_t size = 0;             // devices, whether they are usable or not
  std::vector<size_t> running;  // jobs, by their number in the round, in order of arrival
};

class TierPolicy final : public ReasonedPolicy {
 public:
  explicit TierPolicy(bool preempts) : preempts_(preempts) {}
  std::string_view name() const override { return preempts_ ? "priority" : "tiers"; }
  PolicyTraits traits() const override {
    return {.uses = Scaling::rigid, .keeps_fixed = true, .sees_regions = true};
  }

  Decisions decide(const Round& round) override {
    const size_t n = round.jobs.size();
    std::vector<Place> places = find_places(round.cluster);
    FreeNodes free(round.cluster);
    std::vector<Allocation> next(n);
    std::vector<std::string> reasons(n);
    std::vector<size_t> order;
    for (size_t i = 0; i < n; ++i) {
      const JobView& job = round.jobs[i];
      order.push_back(i);
      if (job.allocation.empty()) continue;
      next[i] = job.allocation;
      reasons[i] = job.is_fixed() ? reason_of_fixed(job.granted) : "goes on with what it has";
      free.change(next[i], -1);
      places[place_of_[static_cast<size_t>(next[i].front().node)]].running.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return round.jobs[a].tier < round.jobs[b].tier; });
    for (const size_t i : order) {
      if (!next[i].empty()) continue;
      const JobView& job = round.jobs[i];
      const std::vector<size_t> choices = choices_of(job, places);
      size_t chosen = places.size();
      for (const size_t p : choices)
        if (chosen == places.size() && free.on(places[p].nodes) >= job.requested_devices)
          chosen = p;
      for (const size_t p : choices)
        if (preempts_ && chosen == places.size() &&
            make_room(round, i, p, places[p], free, next, reasons))
          chosen = p;
      if (chosen == places.size()) {
        if (reasons[i].empty())
          reasons[i] = fmt::format(
              "waits for {} devices in one cluster, behind jobs of its tier "
              "and higher ones",
              job.requested_devices);
        continue;
      }
      next[i] = free.take(places[chosen].nodes, job.requested_devices);
      reasons[i] = fmt::format("starts: {} tier, and {} devices are free", to_string(job.tier),
                               job.requested_devices);
    }
    return decisions(round, std::move(next), std::move(reasons));
  }

 private:
  std::vector<Place> find_places(const Cluster& cluster) {
    std::vector<Place> places;
    std::map<int32_t, Place> of_type;
    place_of_.assign(static_cast<size_t>(cluster.nodes()), 0);
    for (Pool& pool : find_pools(cluster, 0)) {
      Place place{pool.type,
                  cluster.cluster_region[static_cast<size_t>(pool.cluster)],
                  std::move(pool.nodes),
                  0,
                  {}};
      for (const int32_t node : place.nodes) {
        place.size += cluster.node_devices[static_cast<size_t>(node)];
        place_of_[static_cast<size_t>(node)] = places.size();
      }
      Place& all = of_type[place.type];
      all.type = place.type;
      all.size += place.size;
      all.nodes.insert(all.nodes.end(), place.nodes.begin(), place.nodes.end());
      places.push_back(std::move(place));
    }
    for (auto& [type, all] : of_type) places.push_back(std::move(all));
    return places;
  }

  // Where it may run: in the region of its data first, there on the fastest type first.
  static std::vector<size_t> choices_of(const JobView& job, const std::vector<Place>& places) {
    const std::vector<int32_t> types = types_by_speed(job);
    std::vector<size_t> out;
    bool fits = false;  // in one cluster
    for (const bool home : {true, false})
      for (const int32_t type : types)
        for (size_t p = 0; p < places.size(); ++p) {
          const Place& place = places[p];
          const bool here = job.region < 0 || place.region == job.region;
          if (place.region < 0 || place.type != type || here != home) continue;
          if ((!here && !job.movable) || place.size < job.requested_devices) continue;
          fits = true;
          out.push_back(p);
        }
    if (fits || (job.region >= 0 && !job.movable)) return out;
    for (const int32_t type : types)
      for (size_t p = 0; p < places.size(); ++p)
        if (places[p].region < 0 && places[p].type == type) out.push_back(p);
    return out;
  }

  // Stops jobs of lower tiers, the lowest and last first, if that makes room.
  bool make_room(const Round& round, size_t job, size_t number, Place& place, FreeNodes& free,
                 std::vector<Allocation>& next, std::vector<std::string>& reasons) const {
    const JobView& wants = round.jobs[job];
    std::vector<size_t> lower;
    for (const size_t v : place.running)
      if (round.jobs[v].tier > wants.tier && !round.jobs[v].is_fixed()) lower.push_back(v);
    std::stable_sort(lower.begin(), lower.end(), [&](size_t a, size_t b) {
      return round.jobs[a].tier != round.jobs[b].tier ? round.jobs[a].tier > round.jobs[b].tier
                                                      : a > b;
    });
    int64_t room = free.on(place.nodes);
    size_t stopped = 0;
    while (stopped < lower.size() && room < wants.requested_devices)
      room += usable_in(number, round.cluster, next[lower[stopped++]]);
    if (room < wants.requested_devices) return false;
    for (size_t k = 0; k < stopped; ++k) {
      const size_t v = lower[k];
      free.change(next[v], 1);
      next[v].clear();
      reasons[v] = fmt::format("stops for {} of the {} tier", wants.name, to_string(wants.tier));
      std::erase(place.running, v);
    }
    return true;
  }

  // A job that is larger than each place holds devices of others, too.
  int64_t usable_in(size_t place, const Cluster& cluster, const Allocation& allocation) const {
    int64_t sum = 0;
    for (const NodeShare& share : allocation)
      if (place_of_[static_cast<size_t>(share.node)] == place && cluster.usable(share.node) > 0)
        sum += share.devices;
    return sum;
  }

  bool preempts_;
  std::vector<size_t> place_of_;  // of each node, in a round
};

}  // namespace

std::unique_ptr<Policy> make_tiers(const PolicyOptions&) {
  return std::make_unique<TierPolicy>(false);
}

std::unique_ptr<Policy> make_priority(const PolicyOptions&) {
  return std::make_unique<TierPolicy>(true);
}

}  // namespace ductile::sched
