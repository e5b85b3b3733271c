// Whoever is of a higher tier comes first, whatever the policy knows of tiers.
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/testing/demands.h"
#include "ductile/cluster/testing/obedient_world.h"

namespace ductile::cluster {
namespace {

using sched::Tier;
using testing::demand;
using testing::kInterval;
using testing::ObedientWorld;
using testing::one_machine;
using testing::some_nodes;

JobDemand of_tier(JobId id, Tier tier, int32_t devices, double arrival = 0) {
  JobDemand out = demand(id, devices, devices, arrival, true);
  out.one_node = true;
  out.tier = tier;
  return out;
}

TEST(Tiers, AHigherOneBeginsWhereALowerOneHoldsAllUnderEachPolicy) {
  for (const std::string& policy : sched::policy_names()) {
    ObedientWorld world(one_machine(4), policy);
    world.add(of_tier(1, Tier::basic, 2));
    world.decide(8);
    ASSERT_TRUE(world.runs(1)) << policy;
    world.add(of_tier(2, Tier::basic, 2));
    world.decide(8);
    ASSERT_TRUE(world.runs(1) && world.runs(2)) << policy;
    world.add(of_tier(3, Tier::standard, 3, world.now));
    world.decide();
    EXPECT_TRUE(world.runs(3)) << policy << ": " << world.scheduler.why(3);
    EXPECT_FALSE(world.runs(1) || world.runs(2)) << policy;
    for (const JobId id : {1, 2}) {
      if (policy != "fifo") break;  // others that know tiers have said why themselves
      EXPECT_EQ(world.reasons[id], "it makes room for job 3 (job3), whose tier is standard");
      EXPECT_EQ(world.scheduler.why(id),
                "waits: job 3 (job3) comes first, since its tier is standard");
    }
    world.decide(8);
    EXPECT_TRUE(world.runs(3)) << policy << ": no policy takes it back";
    world.remove(3);
    world.decide(8);
    EXPECT_TRUE(world.runs(1) && world.runs(2)) << policy << ": they go on";
  }
}

// "fifo" lets nobody overtake, also not the first one of a lower tier.
TEST(Tiers, NobodyWaitsBehindALowerOneInTheQueue) {
  ObedientWorld world(one_machine(2), "fifo");
  world.add(of_tier(1, Tier::standard, 1));
  world.decide();
  world.add(of_tier(2, Tier::basic, 2, 1));
  world.add(of_tier(3, Tier::standard, 1, 2));
  world.decide();
  EXPECT_TRUE(world.runs(1) && world.runs(3));
  EXPECT_FALSE(world.runs(2));
}

TEST(Tiers, OfTheLowestOneTheLastToBeginIsStopped) {
  ObedientWorld world(one_machine(3), "fifo");
  const std::pair<JobId, Tier> first[] = {{1, Tier::basic}, {2, Tier::basic}, {3, Tier::standard}};
  for (const auto& [id, tier] : first) {
    world.add(of_tier(id, tier, 1, static_cast<double>(id)));
    world.decide();
    ASSERT_TRUE(world.runs(id));
  }
  world.add(of_tier(4, Tier::premium, 1, 4));
  world.decide();
  EXPECT_TRUE(world.runs(1) && world.runs(3) && world.runs(4));
  EXPECT_FALSE(world.runs(2));
  world.add(of_tier(5, Tier::premium, 2, 5));
  world.decide();
  EXPECT_TRUE(world.runs(4) && world.runs(5));
  EXPECT_FALSE(world.runs(1) || world.runs(3));
}

TEST(Tiers, WhatCanDoWithFewerDevicesShrinks) {
  ObedientWorld world(one_machine(4), "ductile");
  JobDemand elastic = demand(1, 1, 4);
  elastic.tier = Tier::basic;
  world.add(elastic);
  for (int round = 0; round < 20 && world.devices(1) < 4; ++round) {
    world.decide();
    if (world.runs(1)) world.scheduler.measured(1, 100.0 * world.devices(1));
  }
  ASSERT_EQ(world.devices(1), 4);
  world.add(of_tier(2, Tier::premium, 3, world.now));
  world.decide();
  EXPECT_EQ(world.devices(2), 3);
  EXPECT_EQ(world.devices(1), 1);
}

TEST(Tiers, NothingIsTakenFromServices) {
  for (const std::string& policy : sched::policy_names()) {
    ObedientWorld world(one_machine(1), policy);
    JobDemand service = demand(1, 1, 1);
    service.tier = Tier::basic;
    service.target = 1;
    world.add(service);
    world.decide(8);
    ASSERT_TRUE(world.runs(1)) << policy;
    world.add(of_tier(2, Tier::premium, 1, world.now));
    world.decide(8);
    EXPECT_TRUE(world.runs(1)) << policy;
    EXPECT_FALSE(world.runs(2)) << policy;
  }
}

TEST(Tiers, WhatWasJustGrantedIsNotTakenBackForAWhile) {
  Scheduler scheduler(one_machine(1), "fifo", kInterval);
  scheduler.add(of_tier(1, Tier::basic, 1));
  ASSERT_EQ(scheduler.decide(0).size(), 1u);
  scheduler.add(of_tier(2, Tier::premium, 1, 1));
  EXPECT_TRUE(scheduler.decide(1).empty());
  double now = 1;
  std::map<JobId, int32_t> given;
  for (; now <= Scheduler::kPatience && given.empty(); now += 10)
    for (const Allotment& a : scheduler.decide(now))
      given[a.job] = sched::device_count(a.allocation);
  EXPECT_TRUE(given.empty());
  for (const Allotment& a : scheduler.decide(Scheduler::kPatience + 1))
    given[a.job] = sched::device_count(a.allocation);
  EXPECT_EQ(given, (std::map<JobId, int32_t>{{1, 0}, {2, 1}}));
}

// What the rule says, written out: of what is free and what lower tiers hold, on usable nodes that
// are not kept for one before it, nobody who waits could have what it needs.
class RandomTiers : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int32_t kNodes = 3, kDevices = 4;

  static std::tuple<Tier, double, JobId> turn_of(const JobDemand& job) {
    return {job.tier, job.arrival, job.id};
  }

  void change_something(ObedientWorld& world, Rng& rng) {
    if (world.jobs.size() < 14) {
      const auto least = static_cast<int32_t>(1 + rng.below(5));
      const bool rigid = rng.below(2) == 0;
      JobDemand one =
          demand(next_, least, rigid ? least : least + static_cast<int32_t>(rng.below(5)),
                 world.now, rigid);
      one.one_node = rigid && least <= kDevices;
      one.tier = static_cast<Tier>(rng.below(3));
      if (rng.below(12) == 0) {
        one = demand(next_, 1, 2, world.now);
        one.target = 1;
        one.tier = static_cast<Tier>(rng.below(3));
      }
      world.add(one);
      ++next_;
    }
    if (rng.below(3) == 0) {
      auto gone = world.jobs.begin();
      std::advance(gone, static_cast<int64_t>(rng.below(static_cast<uint32_t>(world.jobs.size()))));
      world.remove(gone->first);
    }
    if (rng.below(10) == 0) {
      const auto node = static_cast<int32_t>(rng.below(kNodes));
      const bool drained = rng.below(2) == 0;
      world.scheduler.drain(node, drained);
      drained ? (void)drained_.insert(node) : (void)drained_.erase(node);
    }
    for (const auto& [id, job] : world.jobs)
      if (world.runs(id) && rng.below(2) == 0)
        world.scheduler.measured(id, 50.0 * world.devices(id));
  }

  void expect_no_inversion(const ObedientWorld& world) const {
    for (const auto& [id, job] : world.jobs) {
      if (world.runs(id) || job.target) continue;
      int32_t room = 0, lower = 0;
      for (int32_t node = 0; node < kNodes; ++node) {
        if (drained_.contains(node)) continue;
        const auto& claim = world.scheduler.claim();
        if (claim && claim->node == node && claim->job != id &&
            turn_of(world.jobs.at(claim->job)) < turn_of(job))
          continue;
        int32_t here = kDevices, of_lower = 0;
        for (const auto& [other, allocation] : world.held) {
          const JobDemand& holder = world.jobs.at(other);
          const bool gives = holder.tier > job.tier && !holder.target;
          for (const spec::NodeShare& share : allocation) {
            if (share.node != node) continue;
            (gives ? of_lower : here) += gives ? share.devices : -share.devices;
          }
        }
        if (job.one_node && of_lower > 0 && here >= job.min_devices) room = here, lower = of_lower;
        if (!job.one_node) room += here, lower += of_lower;
      }
      EXPECT_FALSE(lower > 0 && room >= job.min_devices)
          << "job " << id << " of tier " << sched::to_string(job.tier) << " waits for "
          << job.min_devices << " devices, and " << room
          << " are free or held by lower tiers: " << world.scheduler.why(id);
    }
  }

  JobId next_ = 1;
  std::set<int32_t> drained_;
};

TEST_P(RandomTiers, NobodyWaitsWhileALowerTierHoldsWhatItCouldHave) {
  const bool slow = GetParam() == "pollux";  // it looks at 10,000 allocations in each round
  const int rounds = slow ? 10 : 80;
  for (uint64_t seed = 1; seed <= (slow ? 1U : 6U); ++seed) {
    Rng rng(seed, 9);
    ObedientWorld world(some_nodes(kNodes, kDevices), GetParam());
    drained_.clear();
    for (int round = 0; round < rounds && !HasFailure(); ++round) {
      change_something(world, rng);
      world.decide();
      expect_no_inversion(world);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, RandomTiers, ::testing::ValuesIn(sched::policy_names()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace ductile::cluster
