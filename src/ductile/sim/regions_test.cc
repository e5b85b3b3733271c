// Jobs over regions: where they run, what a move costs, and that it pays.
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/sched/regional_policy.h"
#include "ductile/sim/metrics.h"
#include "ductile/sim/simulator.h"
#include "ductile/sim/testing/checked_run.h"

namespace ductile::sim {
namespace {

using testing::mean_jct;

sched::Cluster regions(int32_t count, int32_t nodes) {
  sched::Cluster cluster;
  for (int32_t r = 0; r < count; ++r)
    cluster.add_nodes("t4", nodes, 4, "main", fmt::format("region-{}", r));
  return cluster;
}

Workload short_jobs(uint64_t seed, int64_t jobs, double hours) {
  SyntheticOptions made;
  made.seed = seed;
  made.jobs = jobs;
  made.hours = hours;
  Workload workload = synthetic_workload(made, built_in_catalog());
  for (Submission& job : workload.jobs) {
    job.work *= job.application == "imagenet" ? 0.005 : 0.2;
    job.devices = std::min(job.devices, 8);
  }
  return workload;
}

SimResult play(const Workload& workload, const sched::Cluster& cluster, sched::Policy& policy,
               const std::string& faults = "") {
  SimOptions options;
  options.check = true;
  options.scenario = parse_scenario(faults, "s.toml");
  return simulate(workload, built_in_catalog(), cluster, policy, options);
}

SimResult play(const Workload& workload, const sched::Cluster& cluster, const std::string& policy,
               const std::string& faults = "") {
  return play(workload, cluster, *sched::make_policy(policy, {0, 60}), faults);
}

TEST(Regions, OneRegionIsThePolicyAloneToTheByte) {
  const char* faults = "[[fault]]\nkind = \"node_loss\"\nat = 300\nfor = 400\nevery = 900\n";
  for (const uint64_t seed : {1, 2, 3}) {
    const Workload workload = short_jobs(seed, 20, 1);
    SimResult alone = play(workload, regions(1, 4), "ductile", faults),
              regional = play(workload, regions(1, 4), "regional", faults);
    regional.policy = alone.policy;
    EXPECT_TRUE(to_json(alone).dump() == to_json(regional).dump()) << seed;
  }
}

// No job holds devices of two regions at once, and those that may not move never do.
TEST(Regions, AJobIsNeverInTwoAndOneThatMayNotMoveStays) {
  const sched::Cluster cluster = regions(3, 2);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Workload workload = short_jobs(seed, 20, 0.5);
    for (size_t i = 0; i < workload.jobs.size(); ++i) {
      workload.jobs[i].region = "region-0";
      workload.jobs[i].movable = i % 3 != 0;
    }
    const SimResult result = play(workload, cluster, "regional");
    std::set<int32_t> used;
    for (const Segment& s : result.timeline) {
      const int32_t first = s.allocation.front().node / 2;
      for (const sched::NodeShare& share : s.allocation) EXPECT_EQ(share.node / 2, first);
      if (s.job % 3 == 0) {
        EXPECT_EQ(first, 0) << s.job;
      }
      used.insert(first);
    }
    EXPECT_EQ(used.size(), 3u) << "nothing moved";
  }
}

// A job whose home is taken goes on elsewhere after its restart and the transfer.
TEST(Regions, AMoveCostsTheRestartAndTheTransferAndNoMore) {
  const char* gone = "[[fault]]\nkind = \"node_loss\"\nnodes = [0]\nat = 600\n";
  double finish[3] = {};
  const double transfers[] = {0, 100, 400};
  for (int i = 0; i < 3; ++i) {
    Workload workload;
    workload.jobs.push_back({.name = "a",
                             .application = "cifar10",
                             .devices = 4,
                             .batch = 512,
                             .scaling = sched::Scaling::rigid,
                             .region = "region-0",
                             .transfer = transfers[i]});
    const SimResult result = play(workload, regions(2, 1), "regional", gone);
    EXPECT_EQ(result.jobs[0].restarts, 1);
    EXPECT_EQ(result.jobs[0].paused, 30 + 30 + transfers[i]);
    EXPECT_EQ(result.timeline.back().allocation.front().node, 1);
    finish[i] = result.jobs[0].finish;
  }
  // Epochs are rounded to seconds.
  EXPECT_NEAR(finish[1] - finish[0], 100, 1);
  EXPECT_NEAR(finish[2] - finish[0], 400, 1);
}

// A policy that knows no regions pays for the transfers, and every job comes to its end.
TEST(Regions, PoliciesThatKnowNoneGoThroughWithStartsThatTakeLong) {
  for (const char* policy : {"ductile", "sia", "pollux", "tiresias", "gavel"}) {
    Workload workload = short_jobs(1, 12, 0.5);
    for (size_t i = 0; i < workload.jobs.size(); ++i) {
      workload.jobs[i].region = fmt::format("region-{}", i % 3);
      workload.jobs[i].transfer = 600;
    }
    const SimResult result = play(workload, regions(3, 4), policy);
    for (const JobResult& job : result.jobs) EXPECT_GT(job.finish, job.start) << job.name;
  }
}

// Takes the one job to and fro between two nodes.
class Restless : public sched::Policy {
 public:
  std::string_view name() const override { return "restless"; }
  sched::PolicyTraits traits() const override { return {}; }
  std::string explain(sched::JobId) const override { return "to and fro"; }
  sched::Decisions decide(const sched::Round& round) override {
    sched::Decisions out;
    node_ = 1 - node_;
    for (const sched::JobView& job : round.jobs)
      out.changes.push_back({job.id, {{node_, 4}}, "for no reason"});
    return out;
  }

 private:
  int32_t node_ = 0;
};

TEST(Regions, WhereNobodyComesFurtherTheSimulationEndsAndSaysSo) {
  Workload workload;
  workload.jobs.push_back({.name = "a", .application = "cifar10", .devices = 4, .batch = 512});
  workload.jobs[0].region = "region-0";
  workload.jobs[0].transfer = 100;
  Restless restless;
  try {
    play(workload, regions(2, 1), restless);
    ADD_FAILURE() << "it ended";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("none of 1 jobs has come further"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("to and fro"), std::string::npos);
  }
}

TEST(Regions, ARegionThatVanishesLosesNoJob) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Workload workload = short_jobs(seed, 16, 0.5);
    for (size_t i = 0; i < workload.jobs.size(); ++i) {
      workload.jobs[i].region = fmt::format("region-{}", i % 2);
      workload.jobs[i].transfer = 60;
    }
    const SimResult result = play(workload, regions(2, 2), "regional",
                                  "[[fault]]\nkind = \"node_loss\"\nnodes = [0, 1]\nat = 900\n");
    for (const JobResult& job : result.jobs) EXPECT_GT(job.finish, job.start) << job.name;
    for (const Segment& s : result.timeline) {
      if (s.to > 900) {
        EXPECT_GE(s.allocation.front().node, 2);
      }
    }
  }
}

// Each of these splits binds every job to a region beforehand; the best of them, of all of many
// worlds, is not better than moving for nothing.
TEST(Regions, MovingForNothingIsNoWorseThanTheBestFixedSplit) {
  constexpr int kSplits = 6, kSeeds = 8;
  double free = 0, split[kSplits] = {};
  int behind = 0;  // worlds in which one of the splits, known afterwards, was better
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Workload workload = short_jobs(seed, 24, 0.7);
    const sched::Cluster cluster = regions(2, 2);
    const double moving = mean_jct(play(workload, cluster, "regional"));
    double best = HUGE_VAL;
    for (int k = 0; k < kSplits; ++k) {
      Workload bound = workload;
      Rng rng(seed, 0x5b11, static_cast<uint64_t>(k));
      for (size_t i = 0; i < bound.jobs.size(); ++i) {
        Submission& job = bound.jobs[i];
        const bool other = k == 0   ? i % 2 == 1
                           : k == 1 ? job.devices > 2
                           : k == 2 ? job.application < "c"
                                    : rng.below(2) == 1;
        job.region = fmt::format("region-{}", other ? 1 : 0);
        job.movable = false;
      }
      const double mean = mean_jct(play(bound, cluster, "regional"));
      split[k] += mean / kSeeds;
      best = std::min(best, mean);
    }
    free += moving / kSeeds;
    behind += moving > best;
    RecordProperty(fmt::format("world_{}", seed), fmt::format("{:.0f} {:.0f}", moving, best));
    std::printf("world %d: %.0f s moving, %.0f s in the best split\n", static_cast<int>(seed),
                moving, best);
  }
  for (const double mean : split) EXPECT_LE(free, mean);
  EXPECT_LE(behind, kSeeds / 2);
}

TEST(Regions, AreNamedWhereTheyAreWrong) {
  Workload workload = short_jobs(1, 1, 1);
  workload.jobs[0].region = "atlantis";
  EXPECT_THROW(play(workload, regions(2, 1), "regional"), Error);
  workload.jobs[0].region = "region-1";
  workload.jobs[0].movable = false;
  EXPECT_THROW(play(workload, regions(2, 1), "ductile"), Error);
}

// Quotas hold over all regions (check_decisions does not know them).
TEST(Regions, ATeamsQuotaHoldsOverAllOfThem) {
  sched::Cluster cluster = regions(2, 2);
  cluster.teams = {{.id = 0, .quota = 5}};
  Workload workload = short_jobs(3, 10, 0.1);
  for (Submission& job : workload.jobs) job.devices = std::min(job.devices, 4);
  const SimResult result = play(workload, cluster, "regional");
  std::map<double, int32_t> change;
  for (const Segment& s : result.timeline) {
    change[s.from] += sched::device_count(s.allocation);
    change[s.to] -= sched::device_count(s.allocation);
  }
  int32_t held = 0;
  for (const auto& [at, by] : change) EXPECT_LE(held += by, 5) << at;
}

}  // namespace
}  // namespace ductile::sim
