// Jobs by stages: each policy gives them whole pipelines, and nothing takes a part of one.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/testing/demands.h"
#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {
namespace {

using testing::demand;
using testing::kInterval;
using testing::one_machine;
using testing::some_nodes;

// `seconds` of a step with devices for all pipelines; 0: nobody knows.
JobDemand staged(JobId id, int32_t devices, int32_t pipelines, double seconds, int32_t least,
                 int32_t most, double arrival = 0) {
  JobDemand out = demand(id, least, most, arrival);
  out.plans = {{devices, pipelines, seconds}};
  return out;
}

bool scales(const std::string& policy, bool timed) {
  const sched::PolicyTraits traits = sched::make_policy(policy)->traits();
  return traits.scales_pipelines || (traits.sees_plans && timed);
}

// Rounds, with what jobs hold after each.
class Rounds {
 public:
  Rounds(const spec::Cluster& cluster, const std::string& policy)
      : scheduler(cluster, policy, kInterval), policy_(policy) {}

  void run(int count) {
    for (int i = 0; i < count; ++i) {
      now += kInterval;
      for (const Allotment& a : scheduler.decide(now)) {
        EXPECT_FALSE(a.reason.empty());
        reason[a.job] = a.reason;
        held[a.job] = a.allocation;
        const int32_t devices = sched::device_count(a.allocation);
        const std::vector<int32_t> sizes = scheduler.whole_sizes(a.job);
        if (devices > 0 && !sizes.empty()) {
          EXPECT_TRUE(std::ranges::binary_search(sizes, devices))
              << policy_ << " gives job " << a.job << " " << devices << " devices: " << a.reason;
        }
        scheduler.holds(a.job, a.allocation, now);
        scheduler.paused(a.job, 0.1, true);
      }
      for (const auto& [id, allocation] : held)
        if (const int32_t devices = sched::device_count(allocation); devices > 0)
          scheduler.measured(id, 50.0 * devices);
    }
  }
  int32_t devices(JobId id) { return sched::device_count(held[id]); }

  Scheduler scheduler;
  std::map<JobId, spec::Allocation> held;
  std::map<JobId, std::string> reason;
  double now = 0;

 private:
  std::string policy_;
};

TEST(Pipelines, AJobAloneHasWholePipelinesUnderEachPolicy) {
  for (const std::string& policy : sched::policy_names())
    for (const double seconds : {0.0, 2.0}) {
      Rounds rounds(one_machine(8), policy);
      rounds.scheduler.add(staged(1, 2, 4, seconds, 1, 8));
      rounds.run(8);
      const int32_t held = rounds.devices(1);
      EXPECT_GE(held, 2) << policy << ": " << rounds.scheduler.why(1);
      if (!scales(policy, seconds > 0)) {
        EXPECT_EQ(held, 2) << policy;
      }
      EXPECT_NE(rounds.reason[1].find(
                    fmt::format("room for {} of its 4 pipelines of 2 devices", held / 2)),
                std::string::npos)
          << rounds.reason[1];
    }
}

// Three of four pipelines at once take as many turns as two. A number of devices is known before
// it was tried, whatever is usual.
TEST(Pipelines, TimesMakeEachUsefulNumberAPlanOfItsOwn) {
  Rounds four(one_machine(8), "ductile");
  four.scheduler.add(staged(1, 2, 4, 1, 1, 8));
  EXPECT_EQ(four.scheduler.whole_sizes(1), (std::vector<int32_t>{2, 4, 8}));
  four.run(1);
  EXPECT_EQ(four.devices(1), 8);
  Rounds three(one_machine(8), "ductile");
  three.scheduler.add(staged(1, 3, 2, 1, 1, 8));
  EXPECT_EQ(three.scheduler.whole_sizes(1), (std::vector<int32_t>{3, 6}));
  three.run(1);
  EXPECT_EQ(three.devices(1), 6);
  Rounds fixed(one_machine(8), "fifo");
  fixed.scheduler.add(staged(1, 3, 2, 1, 4, 8));
  EXPECT_EQ(fixed.scheduler.whole_sizes(1), (std::vector<int32_t>{6}));
}

// On four workers, five pipelines of two stages would lie so that some worker has parts of two.
TEST(Pipelines, NumbersThatTearPipelinesApartAreLeftOut) {
  Scheduler scheduler(one_machine(10), "ductile", kInterval);
  scheduler.add(staged(1, 2, 5, 0, 1, 10));
  EXPECT_EQ(scheduler.whole_sizes(1), (std::vector<int32_t>{2, 6, 8, 10}));
  scheduler.add(staged(2, 2, 5, 0, 3, 5));
  EXPECT_EQ(scheduler.whole_sizes(2), std::vector<int32_t>{4}) << "it may have no other";
  scheduler.add(staged(3, 2, 100, 0, 1, 10));  // 200 virtual ranks
  EXPECT_EQ(scheduler.whole_sizes(3), (std::vector<int32_t>{2, 4, 6, 10}));
}

// Without times a pipeline is a replica that is tried.
TEST(Pipelines, WithoutTimesAJobGrowsByWhatWasMeasured) {
  Rounds rounds(one_machine(8), "ductile");
  rounds.scheduler.add(staged(1, 2, 4, 0, 1, 8));
  EXPECT_EQ(rounds.scheduler.whole_sizes(1), (std::vector<int32_t>{2, 4, 6, 8}));
  rounds.run(1);
  EXPECT_EQ(rounds.devices(1), 2);
  rounds.run(12);
  EXPECT_EQ(rounds.devices(1), 8);
  const std::vector<double> speeds = rounds.scheduler.modelled_speeds(1);
  ASSERT_EQ(speeds.size(), 8u);
  EXPECT_EQ(speeds[0], 0);
  EXPECT_GT(speeds[1], 0);
  EXPECT_EQ(speeds[2], speeds[1]);
  EXPECT_GT(speeds[7], speeds[3]);
}

// One device is missing: a pipeline goes, and comes back when there is room for all of it.
TEST(Pipelines, AHigherTierTakesWholePipelines) {
  for (const std::string& policy : sched::policy_names()) {
    if (!scales(policy, true)) continue;
    Rounds rounds(one_machine(8), policy);
    rounds.scheduler.add(staged(1, 2, 4, 1, 1, 8));
    rounds.run(8);
    const int32_t before = rounds.devices(1);
    JobDemand other = demand(2, 9 - before, 9 - before, rounds.now, true);
    other.tier = sched::Tier::premium;
    rounds.scheduler.add(other);
    rounds.run(6);
    EXPECT_EQ(rounds.devices(2), 9 - before) << policy << ": " << rounds.scheduler.why(2);
    EXPECT_LT(rounds.devices(1), before) << policy;
    rounds.scheduler.remove(2);
    rounds.held.erase(2);
    rounds.run(8);
    EXPECT_GE(rounds.devices(1), 2) << policy << ": " << rounds.scheduler.why(1);
    if (policy == "ductile") {
      EXPECT_EQ(before, 8);
      EXPECT_EQ(rounds.devices(1), 8);
    }
  }
}

TEST(Pipelines, WhatALostNodeLeavesOfAPipelineIsGivenUp) {
  Rounds rounds(some_nodes(2, 3), "ductile");
  rounds.scheduler.add(staged(1, 2, 3, 1, 1, 6));
  rounds.run(2);
  ASSERT_EQ(rounds.devices(1), 6);
  rounds.scheduler.drain(1, true, "node1 is drained");
  rounds.run(2);
  EXPECT_EQ(rounds.held[1], (spec::Allocation{{0, 2}}));
  rounds.scheduler.drain(1, false);
  rounds.run(4);
  EXPECT_EQ(rounds.devices(1), 6);
}

// With fewer devices than one pipeline has, stages take turns, as many as its user says.
TEST(Pipelines, BoundsAreThoseOfWholePipelinesWhereOneFits) {
  for (const std::string& policy : sched::policy_names())
    for (const double seconds : {0.0, 1.0}) {
      Rounds rounds(one_machine(4), policy);
      rounds.scheduler.add(staged(1, 2, 2, seconds, 2, 2));
      rounds.run(2);
      EXPECT_EQ(rounds.devices(1), 2) << policy;
      for (const int32_t wanted : {4, 1, 3, 2}) {
        rounds.scheduler.set_bounds(1, wanted, wanted);
        rounds.run(2);
        const int32_t given = wanted == 3 ? 2 : wanted;  // one pipeline
        EXPECT_EQ(rounds.devices(1), given) << policy << ": " << rounds.scheduler.why(1);
        EXPECT_EQ(rounds.scheduler.whole_sizes(1).empty(), wanted == 1) << policy;
      }
      rounds.scheduler.set_bounds(1, 3, 4);
      EXPECT_EQ(rounds.scheduler.whole_sizes(1), std::vector<int32_t>{4}) << policy;
    }
}

// Its user may ask for more than the plan by which it was begun has room for.
TEST(Pipelines, NobodyHasMoreDevicesThanVirtualRanks) {
  for (const char* const policy : {"ductile", "fifo"}) {
    JobDemand job = staged(1, 2, 1, 1, 1, 4);
    job.plans.push_back({2, 2, 0.4});
    Rounds rounds(one_machine(8), policy);
    rounds.scheduler.add(job);
    rounds.scheduler.keep_plan(1, 0);
    rounds.run(2);
    EXPECT_EQ(rounds.devices(1), 2) << policy;
    for (const int32_t wanted : {3, 8}) {
      rounds.scheduler.set_bounds(1, wanted, wanted);
      EXPECT_EQ(rounds.scheduler.least_of_stages(1), 2) << policy;
      rounds.run(2);
      EXPECT_EQ(rounds.devices(1), 2) << policy;
    }
  }
}

TEST(Pipelines, NumbersThatAreNoWholePipelinesGiveAsManyAsTheyHave) {
  for (const char* const policy : {"ductile", "regional", "fifo", "sia", "pollux"}) {
    Rounds rounds(one_machine(8), policy);
    rounds.scheduler.add(staged(1, 2, 4, 1, 1, 8));
    const std::vector<std::pair<int32_t, int32_t>> cases{{3, 2}, {5, 4}, {2, 2}, {8, 8}};
    for (const auto& [wanted, given] : cases) {
      rounds.scheduler.set_bounds(1, wanted, wanted);
      EXPECT_EQ(rounds.scheduler.least_of_stages(1), given) << policy << " " << wanted;
      EXPECT_EQ(rounds.scheduler.whole_sizes(1), std::vector<int32_t>{given}) << policy;
    }
    rounds.scheduler.set_bounds(1, 1, 1);
    EXPECT_TRUE(rounds.scheduler.whole_sizes(1).empty()) << policy << ": its stages take turns";
  }
}

// A job that waits for more devices stays where it is.
TEST(Pipelines, WhatIsThereOfAGrantIsTakenByWholePipelines) {
  Scheduler scheduler(some_nodes(2, 4), "ductile", kInterval);
  scheduler.add(staged(1, 4, 2, 1, 1, 8));
  const spec::Allocation now{{0, 2}, {1, 2}}, granted{{0, 4}, {1, 4}};
  EXPECT_EQ(scheduler.next_whole(1, now, granted, {{0, 4}, {1, 2}}), now);
  EXPECT_EQ(scheduler.next_whole(1, now, granted, granted), granted);
  EXPECT_EQ(scheduler.next_whole(1, {}, granted, {{0, 4}, {1, 2}}), (spec::Allocation{{0, 4}}));
  EXPECT_EQ(scheduler.next_whole(1, now, {{0, 4}}, {{0, 4}}), (spec::Allocation{{0, 4}}));
  EXPECT_EQ(scheduler.next_whole(1, now, {{0, 3}}, {{0, 3}}), spec::Allocation());
  EXPECT_EQ(scheduler.next_whole(2, now, granted, {{0, 3}}), (spec::Allocation{{0, 3}}))
      << "nobody's stages";
}

// What was measured counts, and scales what was not; a service that takes over knows it.
TEST(Pipelines, TimesAreCorrectedByWhatIsMeasured) {
  const JobDemand job = staged(1, 2, 4, 1, 1, 8);
  Scheduler scheduler(one_machine(8), "ductile", kInterval);
  scheduler.add(job);
  scheduler.holds(1, {{0, 4}}, 0);
  EXPECT_TRUE(scheduler.modelled_speeds(1).empty()) << "nothing was measured";
  scheduler.measured(1, 16);  // half of what was predicted
  const std::vector<double> half{0, 8, 8, 16, 16, 16, 16, 32};
  EXPECT_EQ(scheduler.modelled_speeds(1), half);
  const nlohmann::json learnt = scheduler.state();
  scheduler.holds(1, {{0, 2}}, 1);
  scheduler.measured(1, 16);  // a second pipeline is of no use
  EXPECT_EQ(scheduler.modelled_speeds(1), (std::vector<double>{0, 16, 16, 16, 16, 16, 16, 64}));
  Scheduler next(one_machine(8), "ductile", kInterval);
  next.add(job);
  next.restore(learnt, 2);
  next.holds(1, {{0, 4}}, 2);
  EXPECT_EQ(next.modelled_speeds(1), half);
}

// Both pipelines at once are slower here than one after the other.
TEST(Pipelines, ThePolicyGoesByWhatIsMeasured) {
  Scheduler scheduler(one_machine(4), "ductile", kInterval);
  scheduler.add(staged(1, 2, 2, 1, 1, 4));
  int32_t held = 0;
  double now = 0;
  const auto decide = [&] {
    now += kInterval;
    for (const Allotment& a : scheduler.decide(now)) {
      held = sched::device_count(a.allocation);
      scheduler.holds(1, a.allocation, now);
      scheduler.paused(1, 0.1, true);
    }
  };
  decide();
  ASSERT_EQ(held, 4);
  scheduler.holds(1, {{0, 2}}, ++now);
  scheduler.measured(1, 32);
  scheduler.holds(1, {{0, 4}}, ++now);
  scheduler.measured(1, 16);
  scheduler.progress(1, 100, 100'000);
  for (int round = 0; round < 4; ++round) decide();
  EXPECT_EQ(held, 2) << scheduler.why(1);
}

TEST(Pipelines, OfSeveralPlansTheOneForItsDevicesIsKept) {
  JobDemand job = staged(1, 2, 1, 1, 1, 4);
  job.plans.push_back({4, 1, 0.4});
  job.plans.push_back({1, 4, 0.5});
  Rounds rounds(one_machine(4), "ductile");
  rounds.scheduler.add(job);
  EXPECT_EQ(rounds.scheduler.whole_sizes(1), (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(rounds.scheduler.best_plan(1, {{0, 1}}), 2u);
  EXPECT_EQ(rounds.scheduler.best_plan(1, {{0, 2}}), 0u) << "two of four take two turns of 0.5 s";
  EXPECT_EQ(rounds.scheduler.best_plan(1, {{0, 4}}), 1u);
  Scheduler blind(one_machine(4), "fifo", kInterval);
  blind.add(job);
  EXPECT_EQ(blind.whole_sizes(1), std::vector<int32_t>{2});
  EXPECT_EQ(blind.best_plan(1, {{0, 2}}), 0u) << "the first one";
  EXPECT_EQ(rounds.scheduler.best_plan(1, {{0, 3}}), 2u);
  EXPECT_EQ(rounds.scheduler.best_plan(1, {{0, 5}}), 0u) << "no plan has so many virtual ranks";
  rounds.run(1);
  EXPECT_EQ(rounds.devices(1), 4);
  rounds.scheduler.keep_plan(1, 1);
  EXPECT_EQ(rounds.scheduler.whole_sizes(1), std::vector<int32_t>{4});
  rounds.run(3);
  EXPECT_EQ(rounds.devices(1), 4);
}

// The second plan is the faster one on two devices, whose workers have no memory for its stages.
TEST(Pipelines, APlanIsNotForFewerDevicesThanHaveMemoryForIt) {
  JobDemand job = staged(1, 1, 4, 2, 1, 4);
  job.plans.push_back({2, 2, 0.2, 4});
  Rounds rounds(one_machine(4), "ductile");
  rounds.scheduler.add(job);
  EXPECT_EQ(rounds.scheduler.least_of_stages(1), 1);
  EXPECT_EQ(rounds.scheduler.best_plan(1, {{0, 2}}), 0u);
  EXPECT_EQ(rounds.scheduler.best_plan(1, {{0, 3}}), 0u);
  EXPECT_EQ(rounds.scheduler.best_plan(1, {{0, 4}}), 1u);
  rounds.scheduler.keep_plan(1, 1);
  EXPECT_EQ(rounds.scheduler.least_of_stages(1), 4) << "that of the plan that it has";
  EXPECT_EQ(rounds.scheduler.whole_sizes(1), std::vector<int32_t>{4});
  rounds.scheduler.set_bounds(1, 1, 2);
  EXPECT_EQ(rounds.scheduler.least_of_stages(1), 1) << "its user wants it so";
}

TEST(Pipelines, WhereNoWholePipelineHasDevicesTheMemoryOfThePlanStillCounts) {
  for (const char* const policy : {"ductile", "fifo"}) {
    JobDemand job = staged(1, 4, 1, 1, 1, 3);
    job.plans.front().least = 2;
    Scheduler scheduler(one_machine(4), policy, kInterval);
    scheduler.add(job);
    EXPECT_TRUE(scheduler.whole_sizes(1).empty()) << policy;
    EXPECT_EQ(scheduler.least_of_stages(1), 2) << policy;
  }
}

TEST(Pipelines, AServiceThatTakesOverDecidesAsTheOneBefore) {
  for (const char* const policy : {"ductile", "regional", "fleet", "sia"}) {
    const std::vector<JobDemand> jobs{staged(1, 2, 4, 1, 1, 8), staged(2, 2, 2, 0, 1, 4, 1),
                                      demand(3, 1, 8, 2)};
    Rounds before(some_nodes(2, 4), policy), after(some_nodes(2, 4), policy);
    for (const JobDemand& job : jobs) before.scheduler.add(job);
    before.run(6);
    for (const JobDemand& job : jobs) after.scheduler.add(job);
    after.scheduler.restore(before.scheduler.state(), before.now);
    for (const auto& [id, allocation] : before.held)
      if (!allocation.empty()) after.scheduler.holds(id, allocation, before.now);
    after.held = before.held;
    after.now = before.now;
    for (int round = 0; round < 4; ++round) {
      before.run(1);
      after.run(1);
      EXPECT_EQ(before.held, after.held) << policy << ", round " << round;
    }
    EXPECT_EQ(before.scheduler.modelled_speeds(1), after.scheduler.modelled_speeds(1)) << policy;
  }
}

TEST(Pipelines, WhySaysThatAJobIsGivenWholePipelines) {
  WhyFacts facts;
  facts.job.id = 2;
  facts.job.submission.max_devices = 8;
  NodeRecord node{"here", "cpu"};
  node.state = NodeState::up;
  node.devices = 4;
  facts.nodes = {node};
  facts.holders = {{1, "one", "", "standard", "here", 3}};
  facts.staged = StagedFigures{2, 3, 2, 1};
  const auto says = [&](const std::string& part) {
    const std::string text = why(facts);
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" in: " << text;
  };
  says("It asks for 2 devices, and 1 of 4 are free: job 1 (one) holds 3; it starts when 1 more");
  says("whole pipelines alone: its plan has 3 of 2 devices each.");
  facts.job.submission.min_devices = facts.job.submission.max_devices = 3;
  says("each. It asks for 3 devices, which give 1 pipeline of 2.");
  facts.job.submission.min_devices = 1;
  facts.job.submission.max_devices = 8;
  facts.staged = StagedFigures{2, 3, 2, 4};
  says("by one of 4 plans, which is chosen when it begins");
  facts.staged = StagedFigures{6, 1, 0, 1};
  says("It asks for 1 device, and 1 of 4 are free");
  says("each pipeline of its plan has 6 devices, more than it may have: its stages take turns.");
  facts.job.phase = Phase::running;
  facts.job.reason = "It was alone.";
  facts.holders = {{2, "two", "", "standard", "here", 4}};
  says("It runs on 4 devices of 1 to 8: It was alone. It trains by stages");
  facts.staged = StagedFigures{2, 3, 2, 1};
  facts.job.submission.min_devices = facts.job.submission.max_devices = 3;
  facts.holders.front().devices = 2;
  says("It runs on 2 devices: It was alone. It asks for 3 devices, which give 1 pipeline of 2.");
}

TEST(Pipelines, ManyJobsOnNodesThatComeAndGoHaveWholePipelines) {
  for (const std::string& policy : sched::policy_names()) {
    const int count = policy == "pollux" ? 8 : 60;  // it looks at 10,000 allocations in each
    Rng rng(23, 9);
    Rounds rounds(some_nodes(3, 5), policy);
    JobId next = 1;
    bool drained = false;
    for (int round = 0; round < count && !HasFailure(); ++round) {
      if (rounds.held.size() < 6 && rng.below(2) == 0) {
        const auto devices = static_cast<int32_t>(1 + rng.below(4));
        const auto pipelines = static_cast<int32_t>(1 + rng.below(3));
        const auto least = static_cast<int32_t>(1 + rng.below(4));
        JobDemand one = staged(next, devices, pipelines, rng.below(2) == 0 ? 0 : 1, least,
                               least + static_cast<int32_t>(rng.below(9)), rounds.now);
        if (rng.below(3) == 0) one.plans.clear();
        one.tier = static_cast<sched::Tier>(rng.below(3));
        rounds.scheduler.add(one);
        rounds.held[next++] = {};
      }
      if (!rounds.held.empty() && rng.below(8) == 0) {
        rounds.scheduler.remove(rounds.held.begin()->first);
        rounds.held.erase(rounds.held.begin());
      }
      if (rng.below(6) == 0) {
        drained = !drained;
        rounds.scheduler.drain(2, drained);
      }
      rounds.run(1);
    }
  }
}

}  // namespace
}  // namespace ductile::cluster
