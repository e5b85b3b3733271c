#include "ductile/cluster/scheduler.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/cluster/testing/demands.h"
#include "ductile/cluster/testing/obedient_world.h"

namespace ductile::cluster {
namespace {

using testing::demand;
using testing::kInterval;
using testing::ObedientWorld;
using testing::one_machine;

// Nobody else is there, so nothing is a reason to stop it.
TEST(Scheduler, AJobThatIsAloneKeepsItsDevicesUnderEachPolicy) {
  for (const std::string& policy : sched::policy_names()) {
    using Range = std::pair<int32_t, int32_t>;
    for (const auto& [least, most] : {Range{1, 4}, {2, 4}, {3, 3}, {4, 4}}) {
      Scheduler scheduler(one_machine(4), policy, kInterval);
      scheduler.add(demand(1, least, most));
      int32_t held = 0;
      for (int round = 0; round < 8; ++round) {
        const double now = round * kInterval;
        for (const Allotment& a : scheduler.decide(now)) {
          held = sched::device_count(a.allocation);
          EXPECT_GE(held, least) << policy << ", round " << round;
          scheduler.holds(a.job, a.allocation, now);
        }
        ASSERT_GE(held, least) << policy << " leaves it waiting in round " << round;
        scheduler.measured(1, 100.0 * held);
      }
    }
  }
}

// Steps that take 1 s and 1 ms for each sample, on one device.
double speed_of(int64_t batch) {
  return static_cast<double>(batch) / (1 + 0.001 * static_cast<double>(batch));
}

// The batch that is ordered in the end, where all that is ordered is obeyed.
int64_t ordered_at_last(const std::string& policy, JobDemand demand, double noise_scale) {
  Scheduler scheduler(one_machine(1), policy, kInterval);
  scheduler.add(demand);
  int64_t batch = demand.batch;
  for (int round = 0; round < 30; ++round) {
    const double now = round * kInterval;
    for (const Allotment& a : scheduler.decide(now)) scheduler.holds(a.job, a.allocation, now);
    EXPECT_EQ(round == 0 ? scheduler.best_batch(1) : 0, 0) << "nothing was measured";
    scheduler.trains_with(1, batch, noise_scale);
    scheduler.measured(1, speed_of(batch));
    scheduler.progress(1, round, 1000);
    const int64_t best = scheduler.best_batch(1);
    if (best == 0) continue;
    EXPECT_GE(best, demand.batch);
    EXPECT_LE(best, std::max(demand.batch, demand.most_batch));
    EXPECT_EQ(best % demand.batch_parts, 0);
    batch = best;
  }
  return batch;
}

TEST(Scheduler, TheBatchFollowsGoodputWhereTheJobLetsIt) {
  JobDemand job = demand(1, 1, 1);
  job.most_batch = 1021;  // no whole number of its parts
  job.batch_parts = 4;
  for (const std::string& policy : sched::policy_names()) {
    const auto uses = sched::make_policy(policy, {})->traits().uses;
    const int64_t noisy = ordered_at_last(policy, job, 1e6);
    const int64_t calm = ordered_at_last(policy, job, 1);
    if (uses != sched::Scaling::adaptive) {
      EXPECT_EQ(noisy, 64) << policy;
      EXPECT_EQ(calm, 64) << policy;
      continue;
    }
    EXPECT_GE(noisy, 900) << policy << ": the gradients are nothing but noise";
    EXPECT_LE(calm, 72) << policy << ": more samples gain nothing";
    EXPECT_EQ(ordered_at_last(policy, demand(1, 1, 1), 1e6), 64) << "its batch is its own";
  }
}

// Of one whose gradients are nothing but noise each sample counts, and of one without noise those
// beyond its own batch count for nothing.
TEST(Scheduler, ABatchIsAsEfficientAsTheNoiseOfItsGradientsSays) {
  JobDemand job = demand(1, 1, 1);
  job.most_batch = 1024;
  Scheduler scheduler(one_machine(1), "ductile", kInterval);
  scheduler.add(job);
  EXPECT_EQ(scheduler.efficiency(1), std::nullopt);
  for (const Allotment& a : scheduler.decide(0)) scheduler.holds(a.job, a.allocation, 0);
  scheduler.trains_with(1, 64, 1e9);
  EXPECT_NEAR(scheduler.efficiency(1).value(), 1, 1e-6);
  scheduler.trains_with(1, 256, 1e9);
  EXPECT_NEAR(scheduler.efficiency(1).value(), 1, 1e-3);
  Scheduler calm(one_machine(1), "ductile", kInterval);
  calm.add(job);
  calm.trains_with(1, 256, 1e-9);
  EXPECT_NEAR(calm.efficiency(1).value(), 0.25, 1e-3);
  Scheduler own(one_machine(1), "ductile", kInterval);
  own.add(demand(1, 1, 1));
  own.trains_with(1, 64, 1e9);
  EXPECT_EQ(own.efficiency(1), std::nullopt) << "its batch is its own";
}

TEST(Scheduler, AbsurdWordsOfBatchAndNoiseChangeNothing) {
  JobDemand job = demand(1, 1, 1);
  job.most_batch = 1024;
  Scheduler scheduler(one_machine(1), "ductile", kInterval);
  scheduler.add(job);
  for (const Allotment& a : scheduler.decide(0)) scheduler.holds(a.job, a.allocation, 0);
  scheduler.trains_with(1, 64, 1e6);
  scheduler.measured(1, speed_of(64));
  const nlohmann::json before = scheduler.state().at("jobs").at(0).at("agent").at("noise");
  const int64_t best = scheduler.best_batch(1);
  for (const int64_t batch : {int64_t{0}, int64_t{-5}, int64_t{1} << 40})
    scheduler.trains_with(1, batch, {});
  for (const double scale : {-1.0, 1e300, double{NAN}, double{INFINITY}})
    scheduler.trains_with(1, 64, scale);
  EXPECT_EQ(scheduler.state().at("jobs").at(0).at("agent").at("noise"), before);
  EXPECT_EQ(scheduler.best_batch(1), best);
}

// Of four devices a job holds one or two, since another one held the rest until now. It is to end
// soon. How many it takes of those that are free now.
int32_t grown_after_another_ended(double pause) {
  Scheduler scheduler(one_machine(4), "ductile", kInterval);
  scheduler.add(demand(1, 1, 4));
  scheduler.add(demand(2, 2, 2));
  std::map<JobId, int32_t> held;
  double now = 0;
  const auto round = [&] {
    for (const Allotment& a : scheduler.decide(now)) {
      scheduler.holds(a.job, a.allocation, now);
      scheduler.paused(a.job, pause, true);
      held[a.job] = sched::device_count(a.allocation);
    }
    for (const auto& [id, devices] : held)
      if (devices > 0) {
        scheduler.measured(id, 60.0 * devices);
        scheduler.progress(id, 100, 140);
      }
    now += kInterval;
  };
  for (int i = 0; i < 4; ++i) round();
  const int32_t before = held[1];
  held.erase(2);
  scheduler.remove(2);
  for (int i = 0; i < 4; ++i) round();
  return held[1] - before;
}

TEST(Scheduler, WhatChangesCostIsLearntFromThoseThatWereSeen) {
  EXPECT_GE(grown_after_another_ended(0.1), 2);
  EXPECT_EQ(grown_after_another_ended(300), 0);
}

// As many as its load needs, within its bounds and its team's quota, and before training.
TEST(Scheduler, AServiceHasWhatItsLoadNeeds) {
  ServiceOptions options;
  options.devices = 8;
  options.node = "here";
  options.quotas = {{"team", 5}};
  Scheduler scheduler(cluster_of(options), "ductile", kInterval);
  JobDemand service = demand(1, 2, 6);
  service.target = 0.1;
  scheduler.add(service);
  scheduler.add(demand(2, 1, 8));
  std::map<JobId, int32_t> held;
  double now = 0;
  const auto round = [&] {
    now += kInterval;
    for (const Allotment& a : scheduler.decide(now)) {
      held[a.job] = sched::device_count(a.allocation);
      scheduler.holds(a.job, a.allocation, now);
      EXPECT_FALSE(a.reason.empty());
    }
  };
  round();
  EXPECT_EQ(held[1], 2);
  EXPECT_GT(held[2], 0);
  EXPECT_EQ(scheduler.service_needs(1), 2);
  EXPECT_EQ(scheduler.service_needs(2), std::nullopt) << "it trains";
  EXPECT_TRUE(scheduler.served(1, {350, 350, 100}));
  EXPECT_GE(scheduler.service_needs(1), 4);
  EXPECT_LE(scheduler.service_needs(1), 6);
  round();
  EXPECT_GE(held[1], 4);
  EXPECT_LE(held[1], 6);
  EXPECT_FALSE(scheduler.served(1, {350, 350, 100})) << "it has what it needs";
  scheduler.served(1, {9000, 9000, 100});
  round();
  EXPECT_EQ(held[1], 6) << "its user wants no more";
  EXPECT_FALSE(scheduler.served(1, {9000, 9000, 100}));
  EXPECT_EQ(scheduler.service_needs(1), 6);
  scheduler.set_bounds(1, 1, 3);
  round();
  EXPECT_EQ(held[1], 3);
  scheduler.served(1, {0, 0, 100});
  round();
  EXPECT_EQ(held[1], 1);
  scheduler.remove(1);
  service.team = 1;
  service.id = 3;
  service.min_devices = 6;
  scheduler.add(service);
  scheduler.served(3, {9000, 9000, 100});
  round();
  round();
  EXPECT_EQ(held[3], 5) << "its team has no more";
}

// Rather fewer replicas than none.
TEST(Scheduler, AServiceOfWhichOnlyAPartFitsHasThatPart) {
  Scheduler scheduler(one_machine(4), "ductile", kInterval);
  JobDemand service = demand(1, 3, 3);
  service.target = 0.1;
  scheduler.add(service);
  for (const Allotment& a : scheduler.decide(10)) scheduler.holds(a.job, a.allocation, 10);
  scheduler.set_bounds(1, 6, 6);
  int32_t held = 3;
  for (const Allotment& a : scheduler.decide(20)) held = sched::device_count(a.allocation);
  EXPECT_GE(held, 3);
  EXPECT_LE(held, 4);
}

TEST(Scheduler, ARigidJobRunsBesideAnotherOneUnderEachPolicy) {
  for (const std::string& policy : sched::policy_names()) {
    Scheduler scheduler(one_machine(3), policy, kInterval);
    scheduler.add(demand(1, 1, 3));
    scheduler.add(demand(2, 2, 2, 0, true));
    bool ran = false;
    for (int round = 0; round < 12 && !ran; ++round) {
      for (const Allotment& a : scheduler.decide(round * kInterval)) {
        if (a.job == 2 && !a.allocation.empty()) {
          EXPECT_EQ(sched::device_count(a.allocation), 2) << policy;
          ran = true;
        }
        scheduler.holds(a.job, a.allocation, round * kInterval);
      }
      scheduler.measured(1, 100);
    }
    EXPECT_TRUE(ran) << policy << ": " << scheduler.why(2);
  }
}

// In random worlds: whoever loses all of its devices loses them to somebody.
// Each node has room for one of two devices, then one of them for both.
TEST(Scheduler, AJobOfOneNodeIsNeverScatteredAndHoldsUpNobody) {
  for (const std::string& policy : sched::policy_names()) {
    spec::Cluster cluster = one_machine(2);
    cluster.groups.front().hosts = {"one", "two"};
    cluster.groups.front().count = 2;
    Scheduler scheduler(cluster, policy, kInterval);
    std::map<JobId, spec::Allocation> held;
    double now = 0;
    const auto decide = [&](int rounds) {
      for (int round = 0; round < rounds; ++round, now += kInterval)
        for (const Allotment& a : scheduler.decide(now)) {
          held[a.job] = a.allocation;
          scheduler.holds(a.job, a.allocation, now);
        }
    };
    for (JobId id : {1, 2}) {
      JobDemand narrow = demand(id, 1, 1, 0, true);
      scheduler.add(narrow);
      scheduler.holds(id, {{static_cast<int32_t>(id - 1), 1}}, 0);
      held[id] = {{static_cast<int32_t>(id - 1), 1}};
    }
    JobDemand wide = demand(3, 2, 2, 1, true);
    wide.one_node = true;
    scheduler.add(wide);
    decide(3);
    if (!held[3].empty()) {  // the policy moved one of the others for it
      EXPECT_EQ(held[3].size(), 1u) << policy;
      continue;
    }
    scheduler.add(demand(4, 1, 1, 2, true));
    decide(12);
    EXPECT_LE(held[3].size(), 1u) << policy;
    if (held[3].empty()) {
      EXPECT_FALSE(held[4].empty()) << policy << " keeps free what nobody can use";
    }
    for (JobId id : {1, 2, 4}) {
      scheduler.remove(id);
      held.erase(id);
    }
    decide(8);
    ASSERT_EQ(held[3].size(), 1u) << policy;
    EXPECT_EQ(held[3].front().devices, 2) << policy;
  }
}

TEST(Scheduler, NobodyIsPreemptedForNobody) {
  for (const std::string& policy : sched::policy_names()) {
    const int rounds = policy == "pollux" ? 8 : 60;  // it looks at 10,000 allocations in each
    Rng rng(17, 4);
    const int32_t devices = 6;
    Scheduler scheduler(one_machine(devices), policy, kInterval);
    std::map<JobId, int32_t> held;
    JobId next = 1;
    for (int round = 0; round < rounds; ++round) {
      const double now = round * kInterval;
      if (held.size() < 6 && rng.below(3) == 0) {
        const auto least = static_cast<int32_t>(1 + rng.below(4));
        const auto most = least + static_cast<int32_t>(rng.below(3));
        const bool rigid = rng.below(4) == 0;
        scheduler.add(demand(next, least, rigid ? least : most, now, rigid));
        held[next++] = 0;
      }
      if (!held.empty() && rng.below(8) == 0) {
        scheduler.remove(held.begin()->first);
        held.erase(held.begin());
      }
      std::map<JobId, int32_t> before = held;
      for (const Allotment& a : scheduler.decide(now)) {
        held.at(a.job) = sched::device_count(a.allocation);
        scheduler.holds(a.job, a.allocation, now);
      }
      int32_t used = 0;
      for (const auto& [id, count] : held) used += count;
      EXPECT_LE(used, devices);
      for (const auto& [id, count] : held) {
        if (count == 0 && before[id] > 0) {
          EXPECT_GT(used + before[id], devices)
              << policy << " preempts job " << id << " for nobody in round " << round;
        }
        if (count > 0 && rng.below(2) == 0) scheduler.measured(id, 50.0 * count);
      }
    }
  }
}

// Whatever the policy knows of teams; and nobody waits beside devices that another team may not
// have.
TEST(Scheduler, NoTeamHoldsMoreThanItsQuotaUnderAnyPolicy) {
  for (const std::string& policy : sched::policy_names()) {
    const int rounds = policy == "pollux" ? 8 : 40;
    Rng rng(18, 5);
    Scheduler scheduler(one_machine(6, {{"a", 3}, {"b", 2}}), policy, kInterval);
    std::map<JobId, std::pair<int32_t, int32_t>> held;  // team, devices
    JobId next = 1;
    for (int round = 0; round < rounds; ++round) {
      const double now = round * kInterval;
      if (held.size() < 6) {
        const auto least = static_cast<int32_t>(1 + rng.below(3));
        JobDemand one = demand(next, least, least + static_cast<int32_t>(rng.below(4)), now);
        one.team = static_cast<int32_t>(rng.below(3));  // 0: without a quota
        one.tier = static_cast<sched::Tier>(rng.below(3));
        scheduler.add(one);
        held[next++] = {one.team, 0};
      }
      if (rng.below(6) == 0) {
        scheduler.remove(held.begin()->first);
        held.erase(held.begin());
      }
      for (const Allotment& a : scheduler.decide(now)) {
        held.at(a.job).second = sched::device_count(a.allocation);
        scheduler.holds(a.job, a.allocation, now);
      }
      std::map<int32_t, int32_t> of_team;
      for (const auto& [id, job] : held) of_team[job.first] += job.second;
      EXPECT_LE(of_team[1], 3) << policy << ", round " << round;
      EXPECT_LE(of_team[2], 2) << policy << ", round " << round;
    }
  }
}

TEST(Scheduler, AJobBehindAQuotaIsInNobodysWay) {
  Scheduler scheduler(one_machine(3, {{"a", 1}}), "fifo", kInterval);
  JobDemand first = demand(1, 2, 2);
  first.team = 1;
  scheduler.add(first);
  scheduler.add(demand(2, 2, 2, 1));
  std::vector<JobId> started;
  for (const Allotment& a : scheduler.decide(2)) started.push_back(a.job);
  EXPECT_EQ(started, std::vector<JobId>{2});
  EXPECT_EQ(scheduler.why(1), "waits: it asks for 2 devices, and its team's quota is 1");
}

// The number that holds it up is named: of its team, of the machine, or its own.
TEST(Scheduler, SaysWhatKeepsAJobFromMore) {
  Scheduler scheduler(one_machine(4, {{"a", 2}}), "ductile", kInterval);
  JobDemand first = demand(1, 1, 3), second = demand(2, 2, 2, 1), third = demand(3, 1, 1, 2);
  for (JobDemand* job : {&first, &second, &third}) job->team = 1;
  scheduler.add(first);
  auto decide = [&, now = 2.0]() mutable {
    for (const Allotment& a : scheduler.decide(now)) scheduler.holds(a.job, a.allocation, now);
    now += kInterval;
  };
  decide();
  scheduler.set_bounds(1, 1, 1);
  decide();
  EXPECT_EQ(scheduler.why(1), "runs on 1 cpu, as many as it asks for");
  scheduler.add(second);
  decide();
  EXPECT_EQ(scheduler.why(2),
            "waits: it asks for 2 devices, and its team has 1 left of its quota of 2");
  scheduler.add(third);
  decide();
  scheduler.set_bounds(1, 1, 3);
  decide();
  EXPECT_NE(scheduler.why(1).find(", the most that its team's quota of 2 leaves it"),
            std::string::npos)
      << scheduler.why(1);
  EXPECT_EQ(scheduler.why(3), "runs on 1 cpu, as many as it asks for");
}

TEST(Scheduler, SaysThatAJobHasTheWholeMachine) {
  Scheduler scheduler(one_machine(2), "ductile", kInterval);
  scheduler.add(demand(1, 1, 2));  // it asked for more, and was cut to what there is
  int32_t held = 0;
  for (int round = 0; round < 10; ++round) {
    for (const Allotment& a : scheduler.decide(round * kInterval)) {
      held = sched::device_count(a.allocation);
      scheduler.holds(a.job, a.allocation, round * kInterval);
    }
    scheduler.measured(1, 100.0 * held);
  }
  EXPECT_EQ(held, 2);
  EXPECT_EQ(scheduler.why(1), "runs on 2 cpu, all that there are");
}

// The first reading on two devices was far too slow, as those of a busy machine are. One that stays
// on what it has is no slower for it; one that gave a device to another is to take it back.
TEST(Scheduler, AJobGrowsAgainByWhatWasMeasuredSinceTheFirstReading) {
  ObedientWorld world(one_machine(2), "ductile");
  world.add(demand(1, 1, 2));
  double on_two = 104;
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      world.decide();
      world.scheduler.measured(1, world.devices(1) == 2 ? on_two : 100);
      world.scheduler.progress(1, 100, 1'000'000);
      world.scheduler.paused(1, 0.1, false);
    }
  };
  rounds(4);
  ASSERT_EQ(world.devices(1), 2);
  on_two = 160;
  rounds(20);
  world.add(demand(2, 1, 1));
  rounds(2);
  ASSERT_EQ(world.devices(1), 1);
  ASSERT_TRUE(world.runs(2));
  EXPECT_NE(world.reasons[1].find("but other jobs would lose more by it"), std::string::npos)
      << world.reasons[1];
  world.remove(2);
  rounds(3);
  EXPECT_EQ(world.devices(1), 2) << world.scheduler.why(1);
  EXPECT_EQ(world.scheduler.why(1), "runs on 2 cpu, all that there are");
}

// Whatever its true speeds are, however far off its readings, and whoever came and went meanwhile.
TEST(Scheduler, WhereDevicesAreFreeAJobGrowsToWhatItsModelSaysIsFaster) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed, 21);
    ObedientWorld world(one_machine(4), "ductile");
    world.add(demand(1, 1, 4));
    const double gain = rng.uniform(0, 1);
    const auto rounds = [&](int count, double noise) {
      for (int i = 0; i < count; ++i) {
        world.decide();
        if (!world.runs(1)) continue;
        const double speed = 100 * std::pow(world.devices(1), gain);
        world.scheduler.measured(1, speed * std::exp(rng.uniform(-noise, noise)));
        world.scheduler.progress(1, 100, 1'000'000);
        world.scheduler.paused(1, 0.1, false);
      }
    };
    rounds(2, 0.3);
    for (JobId other = 2; other < 8; ++other) {
      const auto devices = static_cast<int32_t>(1 + rng.below(4));
      world.add(demand(other, devices, devices));
      rounds(static_cast<int>(1 + rng.below(4)), 0.3);
      world.remove(other);
      rounds(static_cast<int>(rng.below(4)), 0.3);
    }
    rounds(6, 0);
    world.decide();
    ASSERT_TRUE(world.runs(1)) << seed;
    const std::vector<double> model = world.scheduler.modelled_speeds(1);
    ASSERT_EQ(model.size(), 4u) << seed;
    const double now = model[static_cast<size_t>(world.devices(1)) - 1];
    for (int32_t more = 2 * world.devices(1); more <= 4; more *= 2)
      EXPECT_LT(model[static_cast<size_t>(more) - 1], 1.2 * now)
          << seed << ": " << more << ", not " << world.devices(1) << ": " << world.scheduler.why(1);
    EXPECT_EQ(world.scheduler.why(1).find("other jobs"), std::string::npos)
        << seed << ": " << world.scheduler.why(1);
  }
}

// What runs follows its user, too, and the same way under each policy.
TEST(Scheduler, NewBoundsAreObeyedUnderEachPolicy) {
  for (const std::string& policy : sched::policy_names()) {
    Scheduler scheduler(one_machine(4), policy, kInterval);
    scheduler.add(demand(1, 2, 2));
    int round = 0;
    const auto held_after = [&](int rounds) {
      static int32_t held;
      for (int i = 0; i < rounds; ++i, ++round)
        for (const Allotment& a : scheduler.decide(round * kInterval)) {
          held = sched::device_count(a.allocation);
          scheduler.holds(a.job, a.allocation, round * kInterval);
        }
      return held;
    };
    EXPECT_EQ(held_after(2), 2) << policy;
    for (const int32_t wanted : {4, 1, 3}) {
      scheduler.set_bounds(1, wanted, wanted);
      EXPECT_EQ(held_after(2), wanted) << policy << ": " << scheduler.why(1);
    }
  }
}

}  // namespace
}  // namespace ductile::cluster
