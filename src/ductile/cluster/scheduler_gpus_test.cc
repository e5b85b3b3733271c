#include <functional>
#include <map>
#include <optional>
#include <set>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/testing/demands.h"

// Policies know nothing of GPUs.
namespace ductile::cluster {
namespace {

using testing::demand;
using testing::kInterval;
using testing::one_machine;
using testing::some_nodes;

TEST(Scheduler, AJobGoesToANodeThatHasItsGpusUnderEachPolicy) {
  for (const std::string& policy : sched::policy_names()) {
    Scheduler scheduler(some_nodes(3, 2), policy, kInterval);
    scheduler.has_gpus(1, 2);
    JobDemand wants = demand(1, 1, 1, 0, true);
    wants.gpus = 2;
    scheduler.add(wants);
    wants.id = 2;
    scheduler.add(wants);
    spec::Allocation held[3];
    int round = 0;
    const auto decide = [&](int rounds) {
      for (int i = 0; i < rounds; ++i, ++round)
        for (const Allotment& a : scheduler.decide(round * kInterval)) {
          held[a.job] = a.allocation;
          scheduler.holds(a.job, a.allocation, round * kInterval);
        }
    };
    decide(8);
    const JobId first = 1, second = 2;
    ASSERT_EQ(held[first].size(), 1u) << policy << ": " << scheduler.why(first);
    EXPECT_EQ(held[first].front().node, 1) << policy;
    EXPECT_TRUE(held[second].empty()) << policy;
    EXPECT_EQ(scheduler.why(second), "waits for 2 GPUs on one node") << policy;
    scheduler.remove(first);
    decide(8);
    ASSERT_EQ(held[second].size(), 1u) << policy << ": " << scheduler.why(second);
    EXPECT_EQ(held[second].front().node, 1) << policy;
    scheduler.has_gpus(1, 0);
    decide(1);
    EXPECT_EQ(held[second].size(), 1u) << policy << ": GPUs that fail end nobody";
  }
}

TEST(Scheduler, WhoWaitsForGpusIsInNobodysWay) {
  Scheduler scheduler(one_machine(2), "fifo", kInterval);
  JobDemand first = demand(1, 2, 2, 0, true);
  first.gpus = 1;
  scheduler.add(first);
  scheduler.add(demand(2, 2, 2, 1));
  std::vector<JobId> started;
  for (const Allotment& a : scheduler.decide(2)) started.push_back(a.job);
  EXPECT_EQ(started, std::vector<JobId>{2});
  EXPECT_EQ(scheduler.why(1), "waits for 1 GPU on one node");
}

TEST(Scheduler, GpusGoToTheHighestTierAndThenToTheOldest) {
  Scheduler scheduler(one_machine(8), "fifo", kInterval);
  scheduler.has_gpus(0, 1);
  for (const JobId id : {1, 2, 3, 4}) {
    JobDemand wants = demand(id, 1, 1, static_cast<double>(id), true);
    wants.gpus = 1;
    wants.tier = id == 4 ? sched::Tier::premium : sched::Tier::standard;
    scheduler.add(wants);
  }
  std::vector<JobId> order;
  for (int round = 0; round < 20; ++round)
    for (const Allotment& a : scheduler.decide(10 + round * kInterval)) {
      if (a.allocation.empty()) continue;
      order.push_back(a.job);
      scheduler.remove(a.job);
    }
  EXPECT_EQ(order, (std::vector<JobId>{4, 1, 2, 3}));
}

TEST(Scheduler, WhoWaitsForGpusUsesUpNoQuota) {
  Scheduler scheduler(one_machine(4, {{"a", 2}}), "fifo", kInterval);
  JobDemand first = demand(1, 2, 2, 0, true);
  first.gpus = 9;
  first.team = 1;
  scheduler.add(first);
  JobDemand second = demand(2, 2, 2, 1, true);
  second.team = 1;
  scheduler.add(second);
  std::vector<JobId> started;
  for (const Allotment& a : scheduler.decide(2)) started.push_back(a.job);
  EXPECT_EQ(started, std::vector<JobId>{2});
  EXPECT_EQ(scheduler.why(1), "waits for 9 GPUs on one node");
}

TEST(Scheduler, NoGpuIsGrantedTwiceUnderAnyPolicy) {
  for (const std::string& policy : sched::policy_names()) {
    Rng rng(7);
    constexpr int32_t kNodes = 4, kGpus = 3;
    Scheduler scheduler(some_nodes(kNodes, 4), policy, kInterval);
    for (int32_t node = 0; node < kNodes; node += 2) scheduler.has_gpus(node, kGpus);
    std::map<JobId, std::pair<int32_t, spec::Allocation>> jobs;  // what each asks for, and holds
    JobId next = 1;
    int64_t started = 0;
    for (int round = 0; round < 30; ++round) {
      const double now = round * kInterval;
      if (rng.below(2) == 0) {
        JobDemand one = demand(next, 1 + static_cast<int32_t>(rng.below(3)), 3, now, true);
        one.max_devices = one.min_devices;
        one.gpus = static_cast<int32_t>(rng.below(kGpus + 1));
        one.one_node = true;
        scheduler.add(one);
        jobs[next++] = {one.gpus, {}};
      }
      if (rng.below(4) == 0 && !jobs.empty()) {
        scheduler.remove(jobs.begin()->first);
        jobs.erase(jobs.begin());
      }
      for (const Allotment& a : scheduler.decide(now)) {
        jobs.at(a.job).second = a.allocation;
        scheduler.holds(a.job, a.allocation, now);
        started += a.allocation.empty() || jobs.at(a.job).first == 0 ? 0 : 1;
      }
      std::map<int32_t, int32_t> of_node;
      for (const auto& [id, job] : jobs) {
        ASSERT_LE(job.second.size(), 1u) << policy;
        if (!job.second.empty()) of_node[job.second.front().node] += job.first;
      }
      for (const auto& [node, gpus] : of_node)
        EXPECT_LE(gpus, node % 2 == 0 ? kGpus : 0) << policy << ", round " << round;
    }
    EXPECT_GT(started, 0) << policy;
  }
}

TEST(Scheduler, ATeamHoldsNoMoreGpusThanItsQuota) {
  for (const std::string& policy : sched::policy_names()) {
    Scheduler scheduler(one_machine(8, {{"a", 8}}), policy, kInterval);
    scheduler.has_gpus(0, 4);
    scheduler.set_gpu_quotas({{1, 2}});
    for (JobId id = 1; id <= 4; ++id) {
      JobDemand one = demand(id, 1, 1, static_cast<double>(id), true);
      one.gpus = id == 3 ? 0 : 1;
      one.team = 1;
      scheduler.add(one);
    }
    std::set<JobId> runs;
    for (int round = 1; round < 10; ++round)
      for (const Allotment& a : scheduler.decide(round * kInterval)) {
        scheduler.holds(a.job, a.allocation, round * kInterval);
        if (!a.allocation.empty()) runs.insert(a.job);
      }
    EXPECT_EQ(runs, (std::set<JobId>{1, 2, 3})) << policy;
    EXPECT_TRUE(scheduler.over_quota(4)) << policy;
    scheduler.remove(1);
    for (int round = 10; round < 20; ++round)
      for (const Allotment& a : scheduler.decide(round * kInterval)) runs.insert(a.job);
    EXPECT_TRUE(runs.contains(4)) << policy;
  }
}

// Jobs that come each round, and go after some; the round in which the large one, which comes in
// the fifth, was granted something; none: it waited all along.
std::optional<int> round_of_the_large_one(Scheduler& scheduler, const JobDemand& small,
                                          const JobDemand& large, int at_first,
                                          const std::function<int()>& lasts) {
  constexpr int kRounds = 100;
  std::map<JobId, int> runs;  // until which round; 0: it waits
  JobId next = large.id + 1;
  for (int round = 0; round < kRounds; ++round) {
    const double now = round * kInterval;
    for (auto it = runs.begin(); it != runs.end();) {
      const auto here = it++;
      if (here->second == 0 || here->second > round) continue;
      scheduler.remove(here->first);
      runs.erase(here);
    }
    for (int i = round == 0 ? at_first : 1; i > 0; --i) {
      JobDemand one = small;
      one.id = next++;
      one.arrival = now;
      scheduler.add(one);
      runs[one.id] = 0;
    }
    if (round == 5) {
      scheduler.add(large);
    }
    for (const Allotment& a : scheduler.decide(now)) {
      scheduler.holds(a.job, a.allocation, now);
      if (a.job == large.id && !a.allocation.empty()) return round;
      if (a.job != large.id) runs[a.job] = a.allocation.empty() ? 0 : round + lasts();
    }
  }
  return std::nullopt;
}

TEST(Scheduler, WhoWaitsForManyGpusIsNotOvertakenForEver) {
  for (const std::string& policy : sched::policy_names()) {
    Scheduler scheduler(some_nodes(1, 8), policy, kInterval);
    scheduler.has_gpus(0, 4);
    JobDemand small = demand(0, 1, 1, 0, true), large = demand(1, 1, 1, 5 * kInterval, true);
    small.gpus = 1;
    large.gpus = 4;
    int ends = 0;  // one each round
    const auto round =
        round_of_the_large_one(scheduler, small, large, 4, [&] { return 1 + ends++ % 4; });
    ASSERT_TRUE(round) << policy << ": " << scheduler.why(1);
    EXPECT_LE(*round, 5 + Scheduler::kOvertaken / kInterval + 5) << policy;
  }
}

// The policy places the small ones without looking at GPUs, of which some are always free
// elsewhere.
TEST(Scheduler, WhatIsKeptIsNotTakenByThoseWhoFindGpusElsewhere) {
  Scheduler scheduler(some_nodes(2, 8), "fifo", kInterval);
  scheduler.has_gpus(0, 4);
  scheduler.has_gpus(1, 2);
  JobDemand small = demand(0, 1, 1, 0, true), large = demand(1, 1, 1, 5 * kInterval, true);
  small.gpus = 1;
  large.gpus = 4;
  int ends = 0;
  const auto round =
      round_of_the_large_one(scheduler, small, large, 4, [&] { return 4 + ends++ % 4; });
  ASSERT_TRUE(round) << scheduler.why(1);
  EXPECT_LE(*round, 5 + Scheduler::kOvertaken / kInterval + 8);
}

// One device of the node is another one's for ever; all of the other node are free in the end.
TEST(Scheduler, WhoKeepsANodeGoesToAnotherOneThatIsFree) {
  Scheduler scheduler(some_nodes(2, 4), "fifo", kInterval);
  scheduler.has_gpus(0, 1);
  scheduler.has_gpus(1, 2);
  JobDemand stays = demand(1, 1, 1, 0, true), goes = demand(2, 2, 2, 0, true);
  stays.gpus = 1;
  goes.gpus = 2;
  JobDemand waits = demand(3, 4, 4, 1, true);
  waits.one_node = true;
  std::map<JobId, spec::Allocation> held;
  const auto decide = [&](int round) {
    for (const Allotment& a : scheduler.decide(round * kInterval)) {
      held[a.job] = a.allocation;
      scheduler.holds(a.job, a.allocation, round * kInterval);
    }
  };
  scheduler.add(stays);
  scheduler.add(goes);
  decide(0);
  ASSERT_EQ(held[1], (spec::Allocation{{0, 1}}));
  ASSERT_EQ(held[2], (spec::Allocation{{1, 2}}));
  scheduler.add(waits);
  for (int round = 1; round < 20; ++round) decide(round);
  EXPECT_TRUE(held[3].empty());
  scheduler.remove(2);
  decide(20);
  EXPECT_EQ(held[3], (spec::Allocation{{1, 4}}));
}

TEST(Scheduler, WhoHasToBeOnOneNodeIsNotOvertakenForEver) {
  Scheduler scheduler(some_nodes(4, 4), "fifo", kInterval);
  JobDemand large = demand(1, 4, 4, 5 * kInterval, true);
  large.one_node = true;
  Rng rng(7);
  const auto round = round_of_the_large_one(scheduler, demand(0, 1, 1, 0, true), large, 16,
                                            [&] { return 10 + static_cast<int>(rng.below(12)); });
  EXPECT_TRUE(round) << scheduler.why(1);
}

// The others get what it leaves, and it gets no more than it needs.
TEST(Scheduler, WhoKeepsANodeKeepsNoOtherOne) {
  Scheduler scheduler(some_nodes(2, 4), "fifo", kInterval);
  scheduler.has_gpus(0, 2);
  JobDemand holder = demand(1, 1, 1, 0, true), waits = demand(2, 1, 1, 1, true);
  holder.gpus = 1;
  waits.gpus = 2;
  scheduler.add(holder);
  scheduler.add(waits);
  std::map<JobId, spec::Allocation> held;
  const auto decide = [&](double now) {
    for (const Allotment& a : scheduler.decide(now)) {
      held[a.job] = a.allocation;
      scheduler.holds(a.job, a.allocation, now);
    }
  };
  for (int round = 0; round <= 20; ++round) decide(round * kInterval);
  ASSERT_EQ(held[1].size(), 1u);
  for (JobId id = 3; id < 9; ++id) scheduler.add(demand(id, 1, 1, 300, true));
  decide(300);
  int32_t started = 0;
  for (JobId id = 3; id < 9; ++id) started += sched::device_count(held[id]);
  EXPECT_EQ(started, 6) << "one device of its node is kept";
  EXPECT_TRUE(held[2].empty());
  scheduler.remove(1);
  decide(310);
  EXPECT_EQ(held[2], (spec::Allocation{{0, 1}}));
}

}  // namespace
}  // namespace ductile::cluster
