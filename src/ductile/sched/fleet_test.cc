#include "ductile/sched/fleet.h"

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile::sched {
namespace {

std::vector<Pool> make_pools(Rng& rng, int32_t regions, std::vector<int32_t>& region_of_cluster) {
  std::vector<Pool> pools;
  for (int32_t r = 0; r < regions; ++r) {
    region_of_cluster.push_back(r);
    for (int32_t t = 0; t <= static_cast<int32_t>(rng.below(2)); ++t) {
      Pool p;
      p.cluster = r;
      p.type = t;
      p.per_node = 8;
      p.whole_nodes = static_cast<int32_t>(2 + rng.below(6));
      p.devices = 8 * p.whole_nodes;
      pools.push_back(p);
    }
  }
  return pools;
}

TEST(FleetScheduler, NeverExceedsCapacityAndItsAccountsSumUpInRandomFleetsWithFaults) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(11, seed);
    std::vector<int32_t> region_of_cluster;
    const auto regions = static_cast<int32_t>(1 + rng.below(3));
    const std::vector<Pool> pools = make_pools(rng, regions, region_of_cluster);
    FleetOptions options;
    options.window = 600;
    FleetScheduler f(pools, region_of_cluster, options);
    std::vector<int64_t> capacity;
    for (const Pool& p : pools) capacity.push_back(p.devices);
    struct Mine {
      FleetJob job;
      bool alive = false;
      double asked = 0;
    };
    std::vector<Mine> mine(40);
    std::vector<ClosedWindow> closed;
    double now = 0;
    for (int round = 0; round < 60; ++round) {
      for (int32_t j = 0; j < 40; ++j) {
        Mine& m = mine[static_cast<size_t>(j)];
        if (m.alive && rng.below(20) == 0) {
          f.remove_job(j);
          m = {};
        } else if (!m.alive && rng.below(8) == 0) {
          m.alive = true;
          m.job.tier = static_cast<Tier>(rng.below(3));
          m.job.home = static_cast<int32_t>(rng.below(static_cast<uint32_t>(regions)));
          m.job.demand = 1 << rng.below(4);
          m.job.elastic = rng.below(4) != 0;
          m.job.team = static_cast<int32_t>(rng.below(3));
          f.set_job(j, m.job, now);
        } else if (m.alive && rng.below(20) == 0) {
          f.lose(j);
        }
      }
      if (rng.below(4) == 0) {
        const auto p = rng.below(static_cast<uint32_t>(pools.size()));
        capacity[p] = 8 * rng.below(static_cast<uint32_t>(pools[p].whole_nodes + 1));
        f.set_capacity(static_cast<int32_t>(p), capacity[p]);
      }
      const FleetScheduler::Summary s = f.decide(now, rng.below(5) == 0);
      EXPECT_LE(s.objective, s.bound * (1 + 1e-9));
      std::vector<int64_t> used(pools.size());
      for (int32_t j = 0; j < 40; ++j) {
        const Mine& m = mine[static_cast<size_t>(j)];
        if (!m.alive || f.pool(j) < 0) continue;
        const Pool& p = pools[static_cast<size_t>(f.pool(j))];
        used[static_cast<size_t>(f.pool(j))] += f.devices(j);
        EXPECT_EQ(region_of_cluster[static_cast<size_t>(p.cluster)], f.region(j));
        if (!m.job.elastic) {
          EXPECT_EQ(f.devices(j), m.job.demand);
        }
        EXPECT_FALSE(f.explain(j).empty());
      }
      for (size_t p = 0; p < pools.size(); ++p) EXPECT_LE(used[p], capacity[p]);
      now += 60;
      closed.clear();
      f.account(now, 60, closed);
      for (Mine& m : mine)
        if (m.alive) m.asked += 60.0 * m.job.demand;
      for (const ClosedWindow& r : closed) {
        Mine& m = mine[static_cast<size_t>(r.job)];
        EXPECT_DOUBLE_EQ(r.asked, m.asked);
        EXPECT_LE(r.granted, 2 * r.asked + 1e-6);
        EXPECT_GE(r.granted, 0);
        m.asked = 0;
      }
    }
  }
}

TEST(FleetScheduler, KeepsPremiumWholeAndStandardAboveItsShareWhenThereIsTooLittle) {
  Pool pool;
  pool.per_node = 8;
  pool.whole_nodes = 8;
  pool.devices = 64;
  const std::vector<int32_t> regions{0};
  FleetScheduler f(std::span(&pool, 1), regions);
  int32_t id = 0;
  const auto add = [&](Tier tier, int count) {
    for (int i = 0; i < count; ++i) {
      FleetJob j;
      j.tier = tier;
      j.demand = 8;
      j.restart_seconds = 10;
      f.set_job(id++, j, 0);
    }
  };
  add(Tier::premium, 3);
  add(Tier::standard, 6);  // 48 of the 40 left: all cannot run all the time
  add(Tier::basic, 4);
  std::vector<ClosedWindow> closed;
  for (double now = 0; now < 6 * 3600; now += 60) {
    f.decide(now, false);
    f.account(now + 60, 60, closed);
  }
  ASSERT_FALSE(closed.empty());
  for (const ClosedWindow& r : closed) {
    if (r.tier == Tier::premium) {
      EXPECT_GE(r.fraction(), 0.95);
    }
    if (r.tier == Tier::standard) {
      EXPECT_GE(r.fraction(), 0.70);
    }
  }
}

TEST(FleetScheduler, SendsWaitingJobsToARegionWithRoomAndLeavesThoseThatMustStay) {
  std::vector<Pool> pools(2);
  for (int32_t r = 0; r < 2; ++r) {
    pools[static_cast<size_t>(r)].cluster = r;
    pools[static_cast<size_t>(r)].per_node = 8;
    pools[static_cast<size_t>(r)].whole_nodes = 100;
    pools[static_cast<size_t>(r)].devices = r == 0 ? 16 : 800;
  }
  const std::vector<int32_t> regions{0, 1};
  FleetScheduler f(pools, regions);
  for (int32_t j = 0; j < 8; ++j) {
    FleetJob job;
    job.demand = 8;
    job.movable = j != 0 && j != 1 && j != 2;
    f.set_job(j, job, 0);
  }
  for (int i = 0; i < 10; ++i) f.decide(60.0 * i, false);
  for (int32_t j = 0; j < 3; ++j) EXPECT_EQ(f.region(j), 0);
  int away = 0;
  for (int32_t j = 3; j < 8; ++j) away += f.region(j) == 1 && f.pool(j) >= 0;
  EXPECT_GE(away, 3);
}

// A driver that keeps the state of jobs itself makes the scheduler anew for every round.
TEST(FleetScheduler, GoesOnFromWhatADriverSays) {
  std::vector<Pool> pools(3);
  for (int32_t p = 0; p < 3; ++p) {
    pools[static_cast<size_t>(p)].cluster = p / 2;
    pools[static_cast<size_t>(p)].type = p % 2;
    pools[static_cast<size_t>(p)].per_node = 8;
    pools[static_cast<size_t>(p)].whole_nodes = 2;
    pools[static_cast<size_t>(p)].devices = 16;
  }
  const std::vector<int32_t> regions{0, 1};
  FleetScheduler f(pools, regions);
  FleetJob job;
  job.demand = 8;
  job.sizes = 0b100;  // neither more nor less
  f.set_job(0, job, 0);
  f.set_place(0, 1, 2, 8);  // it went to the other region, and runs there
  job.types = 0b10;
  f.set_job(1, job, 0);  // a type that one pool has
  job.types = ~uint64_t{0};
  job.sizes = 0b1111;
  job.tier = Tier::premium;
  f.set_job(2, job, 0);
  f.set_place(2, 1, 2, 8);
  f.set_job(3, job, 0);
  f.set_place(3, 0, 0, 8);
  f.set_window(3, {0, 3000, 20000, 24000});  // 83 % of what it asked for
  f.decide(3000, true);
  EXPECT_EQ(f.region(0), 1);
  EXPECT_EQ(f.pool(0), 2);
  EXPECT_EQ(f.devices(0), 8);
  EXPECT_EQ(f.pool(1), 1);
  EXPECT_EQ(f.devices(1), 8);
  EXPECT_EQ(f.devices(2), 8);
  EXPECT_EQ(f.devices(3), 16) << "more than it asks for, to make up for what is missing";
  EXPECT_THROW(f.set_place(0, 0, 2, 8), Error) << "a pool of another region";
}

TEST(FleetScheduler, RefusesNonsense) {
  Pool pool;
  pool.per_node = 8;
  pool.devices = 8;
  const std::vector<int32_t> regions{0};
  FleetScheduler f(std::span(&pool, 1), regions);
  FleetJob job;
  job.demand = 0;
  EXPECT_THROW(f.set_job(0, job, 0), Error);
  job.demand = 1;
  job.home = 4;
  EXPECT_THROW(f.set_job(0, job, 0), Error);
}

}  // namespace
}  // namespace ductile::sched
