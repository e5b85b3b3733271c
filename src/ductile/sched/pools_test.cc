#include "ductile/sched/pools.h"

#include <limits>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"

namespace ductile::sched {
namespace {

// No device twice, sizes as asked, and no node with two jobs that span several.
void check_placement(const Cluster& cluster, const std::vector<PlacementRequest>& requests,
                     const PlacementResult& result) {
  std::map<int32_t, int32_t> used, spanning;
  std::map<int32_t, int32_t> size;
  for (const PlacementRequest& r : requests) size[r.job] = r.devices;
  for (const auto& [job, allocation] : result.placed) {
    EXPECT_EQ(device_count(allocation), size[job]);
    for (const NodeShare& s : allocation) {
      used[s.node] += s.devices;
      if (allocation.size() > 1) {
        EXPECT_LE(++spanning[s.node], 1);
      }
    }
  }
  for (auto [node, devices] : used) EXPECT_LE(devices, cluster.usable(node));
  EXPECT_EQ(result.placed.size() + result.unplaced.size(), requests.size());
}

TEST(Pools, OfferPowersOfTwoAndWholeNodes) {
  const Cluster cluster = homogeneous_cluster(16, 4);
  const Pool pool = find_pools(cluster, 0)[0];
  EXPECT_EQ(device_counts(pool, 1, 1, 16), (std::vector<int32_t>{1, 2, 4, 8, 12, 16}));
  EXPECT_EQ(device_counts(pool, 2, 2, 9), (std::vector<int32_t>{2, 4, 8}));
  EXPECT_EQ(device_counts(pool, 1, 5, 8), (std::vector<int32_t>{8}));
}

TEST(Pools, AnyUsualSizesWithinCapacityArePlacedRoundAfterRound) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(5, seed);
    const int32_t per_node = 1 << rng.below(4);
    const Cluster cluster = homogeneous_cluster(static_cast<int32_t>(2 + rng.below(12)), per_node);
    const Pool pool = find_pools(cluster, 0)[0];
    const std::vector<int32_t> counts = device_counts(pool, 1, 1, 1 << 20);
    std::vector<Allocation> held(30);
    for (int round = 0; round < 20; ++round) {
      std::vector<PlacementRequest> requests;
      int64_t left = pool.devices;
      for (int32_t j = 0; j < 30; ++j) {
        int32_t devices = device_count(held[static_cast<size_t>(j)]);
        if (rng.below(3) == 0) devices = counts[rng.below(static_cast<uint32_t>(counts.size()))];
        if (rng.below(4) == 0) devices = 0;
        if (devices == 0 || devices > left) {
          held[static_cast<size_t>(j)].clear();
          continue;
        }
        left -= devices;
        const Allocation& now = held[static_cast<size_t>(j)];
        requests.push_back({j, devices, true, device_count(now) == devices ? &now : nullptr});
      }
      const PlacementResult result = place(cluster, pool, 0, requests);
      check_placement(cluster, requests, result);
      EXPECT_TRUE(result.unplaced.empty());
      for (const auto& [job, allocation] : result.placed)
        held[static_cast<size_t>(job)] = allocation;
    }
  }
}

TEST(Pools, WhatMayNotMoveStaysAndNodesAboutToLeaveAreLeft) {
  Cluster cluster = homogeneous_cluster(2, 4);
  const Pool pool = find_pools(cluster, 0)[0];
  const Allocation fixed{{0, 1}}, movable{{1, 1}};
  PlacementResult r = place(cluster, pool, 0,
                            {{0, 1, false, &fixed}, {1, 1, true, &movable}, {2, 4, true, nullptr}});
  EXPECT_TRUE(r.unplaced.empty());
  EXPECT_EQ(r.moved, 1);
  for (const auto& [job, allocation] : r.placed) {
    if (job == 0) {
      EXPECT_EQ(allocation, fixed);
    }
    if (job == 2) {
      EXPECT_EQ(allocation, (Allocation{{1, 4}}));
    }
  }
  cluster.node_leaves_at[0] = 50;
  r = place(cluster, pool, 100, {{0, 1, true, &fixed}});
  ASSERT_EQ(r.placed.size(), 1u);
  EXPECT_EQ(r.placed[0].second, (Allocation{{1, 1}}));
}

}  // namespace
}  // namespace ductile::sched
