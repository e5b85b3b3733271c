#include "ductile/sched/pools.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>

#include "ductile/base/error.h"

namespace ductile::sched {

bool usable_until(const Cluster& cluster, int32_t node, double horizon) {
  const auto n = static_cast<size_t>(node);
  return cluster.node_up[n] && cluster.node_leaves_at[n] > horizon;
}

std::vector<Pool> find_pools(const Cluster& cluster, double horizon) {
  std::map<std::pair<int32_t, int32_t>, Pool> found;
  for (int32_t n = 0; n < cluster.nodes(); ++n) {
    const auto i = static_cast<size_t>(n);
    Pool& pool = found[{cluster.node_cluster[i], cluster.node_type[i]}];
    pool.cluster = cluster.node_cluster[i];
    pool.type = cluster.node_type[i];
    pool.nodes.push_back(n);
  }
  std::vector<Pool> pools;
  for (auto& [key, pool] : found) pools.push_back(std::move(pool));
  refresh_pools(cluster, horizon, pools);
  return pools;
}

void refresh_pools(const Cluster& cluster, double horizon, std::vector<Pool>& pools) {
  for (Pool& pool : pools) {
    pool.per_node = 0;
    pool.whole_nodes = 0;
    pool.devices = 0;
    for (int32_t n : pool.nodes)
      pool.per_node =
          std::max<int32_t>(pool.per_node, cluster.node_devices[static_cast<size_t>(n)]);
    for (int32_t n : pool.nodes)
      if (usable_until(cluster, n, horizon)) {
        pool.devices += cluster.node_devices[static_cast<size_t>(n)];
        pool.whole_nodes += cluster.node_devices[static_cast<size_t>(n)] == pool.per_node;
      }
  }
}

std::vector<int32_t> device_counts(const Pool& pool, int32_t unit, int32_t least, int32_t most) {
  std::vector<int32_t> counts;
  const auto add = [&](int32_t k) {
    if (k >= least && k <= most && k % unit == 0 && k <= pool.devices &&
        (counts.empty() || counts.back() < k))
      counts.push_back(k);
  };
  if (pool.devices <= 0) return counts;
  for (int32_t k = unit; k < pool.per_node; k *= 2) add(k);
  if (pool.whole_nodes > 0) add(pool.per_node);
  for (int32_t n = 2; n <= pool.whole_nodes; n += n < 16 ? 1 : n / 4) add(n * pool.per_node);
  return counts;
}

namespace {

class Placer {
 public:
  Placer(const Cluster& cluster, const Pool& pool, double horizon)
      : pool_(pool),
        free_(pool.nodes.size()),
        shared_(pool.nodes.size()),
        held_(pool.nodes.size()) {
    for (size_t i = 0; i < pool.nodes.size(); ++i) {
      const auto n = static_cast<size_t>(pool.nodes[i]);
      size_.push_back(cluster.node_devices[n]);
      free_[i] = usable_until(cluster, pool.nodes[i], horizon) ? size_[i] : 0;
      if (free_[i] > 0) by_free_.insert({free_[i], static_cast<int32_t>(i)});
    }
  }

  PlacementResult run(std::vector<PlacementRequest>& requests) {
    allocations_.resize(requests.size());
    requests_ = &requests;
    for (const PlacementRequest& q : requests)
      if (!q.movable && q.held) reserve(*q.held, q.talks);
    for (size_t r = 0; r < requests.size(); ++r)
      if (!(!requests[r].movable && requests[r].held) && !keep(static_cast<int32_t>(r)))
        waiting_.push({requests[r].devices, -static_cast<int32_t>(r)});
    PlacementResult result;
    for (const PlacementRequest& q : requests)
      if (!q.movable && q.held) result.placed.push_back({q.job, *q.held});
    while (!waiting_.empty()) {
      const int32_t r = -waiting_.top().second;
      waiting_.pop();
      if (!place(r)) result.unplaced.push_back(requests[static_cast<size_t>(r)].job);
    }
    for (size_t r = 0; r < requests.size(); ++r)
      if (!allocations_[r].empty()) {
        Allocation a;
        for (const NodeShare& s : allocations_[r])
          a.push_back({pool_.nodes[static_cast<size_t>(s.node)], s.devices});
        std::sort(a.begin(), a.end(),
                  [](const NodeShare& x, const NodeShare& y) { return x.node < y.node; });
        result.placed.push_back({requests[r].job, std::move(a)});
      }
    result.moved = moved_;
    return result;
  }

 private:
  void set_free(int32_t node, int32_t value) {
    auto& f = free_[static_cast<size_t>(node)];
    if (f > 0) by_free_.erase({f, node});
    f = value;
    if (f > 0) by_free_.insert({f, node});
  }

  void take(int32_t r, int32_t node, int32_t devices, bool several) {
    const auto n = static_cast<size_t>(node);
    set_free(node, free_[n] - devices);
    if (several) shared_[n] = 1;
    held_[n].push_back(r);
    allocations_[static_cast<size_t>(r)].push_back({node, devices});
  }

  void give_back(int32_t r) {
    auto& mine = allocations_[static_cast<size_t>(r)];
    for (const NodeShare& s : mine) {
      const auto n = static_cast<size_t>(s.node);
      set_free(s.node, free_[n] + s.devices);
      if (mine.size() > 1) shared_[n] = 0;
      std::erase(held_[n], r);
    }
    mine.clear();
  }

  // What must not move is out of reach, on nodes that are about to leave too.
  void reserve(const Allocation& held, bool talks) {
    for (const NodeShare& s : held) {
      const auto at = std::lower_bound(pool_.nodes.begin(), pool_.nodes.end(), s.node);
      if (at == pool_.nodes.end() || *at != s.node) continue;
      const auto i = static_cast<int32_t>(at - pool_.nodes.begin());
      set_free(i, std::max(0, free_[static_cast<size_t>(i)] - s.devices));
      if (talks && held.size() > 1) shared_[static_cast<size_t>(i)] = 1;
    }
  }

  // Keeps what the job holds if every node of it is there and has room.
  bool keep(int32_t r) {
    const PlacementRequest& q = (*requests_)[static_cast<size_t>(r)];
    if (!q.held || q.held->empty()) return false;
    std::vector<NodeShare> local;
    for (const NodeShare& s : *q.held) {
      const auto at = std::lower_bound(pool_.nodes.begin(), pool_.nodes.end(), s.node);
      if (at == pool_.nodes.end() || *at != s.node) return false;
      const auto i = static_cast<int32_t>(at - pool_.nodes.begin());
      if (free_[static_cast<size_t>(i)] < s.devices) return false;
      if (q.held->size() > 1 && shared_[static_cast<size_t>(i)]) return false;
      local.push_back({i, s.devices});
    }
    for (const NodeShare& s : local) take(r, s.node, s.devices, local.size() > 1);
    return true;
  }

  bool place(int32_t r) {
    const int32_t devices = (*requests_)[static_cast<size_t>(r)].devices;
    const int32_t whole = devices / pool_.per_node;
    const int32_t rest = devices % pool_.per_node;
    if (devices <= pool_.per_node) return place_on_one(r, devices, false);
    // Whole nodes first, then what is over on one node more.
    int32_t empty = 0;
    for (auto at = by_free_.lower_bound({pool_.per_node, 0}); at != by_free_.end() && empty < whole;
         ++at)
      ++empty;
    while (empty < whole && clear_a_node(devices)) ++empty;
    if (empty < whole) return false;
    std::vector<int32_t> nodes;
    for (auto at = by_free_.lower_bound({pool_.per_node, 0});
         static_cast<int32_t>(nodes.size()) < whole; ++at)
      nodes.push_back(at->second);
    for (int32_t n : nodes) take(r, n, pool_.per_node, true);
    if (rest > 0 && !place_on_one(r, rest, true)) {
      give_back(r);
      return false;
    }
    return true;
  }

  bool place_on_one(int32_t r, int32_t devices, bool several) {
    for (auto at = by_free_.lower_bound({devices, 0}); at != by_free_.end(); ++at)
      if (!several || !shared_[static_cast<size_t>(at->second)]) {
        take(r, at->second, devices, several);
        return true;
      }
    // No node has room: empty the one where least has to move.
    int32_t best = -1, least = INT32_MAX;
    for (size_t n = 0; n < free_.size(); ++n) {
      if (size_[n] < devices || (several && shared_[n])) continue;
      const int32_t need = devices - free_[n];
      int32_t movable = 0;
      for (int32_t h : held_[n]) movable += share_to_move(h, devices, static_cast<int32_t>(n));
      if (movable >= need && need < least) least = need, best = static_cast<int32_t>(n);
    }
    if (best < 0) return false;
    evict(best, least, devices);
    take(r, best, devices, several);
    return true;
  }

  // Devices on `node` that leave with a held job, if it may be moved for one of `devices`.
  int32_t share_to_move(int32_t h, int32_t devices, int32_t node) const {
    const PlacementRequest& q = (*requests_)[static_cast<size_t>(h)];
    const auto& mine = allocations_[static_cast<size_t>(h)];
    if (!q.movable || mine.size() != 1 || q.devices >= devices || mine[0].node != node) return 0;
    return mine[0].devices;
  }

  void evict(int32_t node, int32_t need, int32_t devices) {
    std::vector<std::pair<int32_t, int32_t>> victims;
    for (int32_t h : held_[static_cast<size_t>(node)])
      if (const int32_t d = share_to_move(h, devices, node)) victims.push_back({d, h});
    std::sort(victims.begin(), victims.end());
    for (auto [d, h] : victims) {
      if (need <= 0) break;
      need -= d;
      give_back(h);
      ++moved_;
      waiting_.push({d, -h});
    }
  }

  // Moves everything off the fully movable node that holds least.
  bool clear_a_node(int32_t devices) {
    int32_t best = -1, least = INT32_MAX;
    for (size_t n = 0; n < free_.size(); ++n) {
      if (size_[n] != pool_.per_node || free_[n] == size_[n] || held_[n].empty()) continue;
      int32_t movable = 0;
      for (int32_t h : held_[n]) movable += share_to_move(h, devices, static_cast<int32_t>(n));
      if (free_[n] + movable == size_[n] && movable < least)
        least = movable, best = static_cast<int32_t>(n);
    }
    if (best < 0) return false;
    evict(best, least, devices);
    return true;
  }

  const Pool& pool_;
  std::vector<PlacementRequest>* requests_ = nullptr;
  std::vector<int32_t> size_;
  std::vector<int32_t> free_;                      // by index within the pool
  std::vector<uint8_t> shared_;                    // a multi-node job is on it
  std::vector<std::vector<int32_t>> held_;         // requests on the node
  std::set<std::pair<int32_t, int32_t>> by_free_;  // (free devices, node)
  std::vector<std::vector<NodeShare>> allocations_;
  std::priority_queue<std::pair<int32_t, int32_t>> waiting_;  // largest, then first request
  int32_t moved_ = 0;
};

}  // namespace

PlacementResult place(const Cluster& cluster, const Pool& pool, double horizon,
                      std::vector<PlacementRequest> requests) {
  return Placer(cluster, pool, horizon).run(requests);
}

}  // namespace ductile::sched
