#include "ductile/sim/controlled_job.h"

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/sim/simulator.h"

namespace ductile::sim {
namespace {

TEST(ControlledJob, FollowsEveryDecision) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed);
    ControlStats stats;
    ControlledJob job("job", 16, seed, stats);
    MessageFaults faults;
    if (seed % 2) faults = {0.2, 0.2, 2};
    for (int change = 0; change < 8; ++change) {
      if (job.workers() > 0 && rng.below(3) == 0)
        job.lose_workers(1 + static_cast<int32_t>(rng.below(static_cast<uint32_t>(job.workers()))),
                         faults);
      const auto next = static_cast<int32_t>(rng.below(17));
      ASSERT_NO_THROW(job.set_workers(next, faults)) << "seed " << seed;
      EXPECT_EQ(job.workers(), next);
    }
    EXPECT_GT(stats.generations, 2);
    EXPECT_EQ(stats.lost + stats.late > 100, seed % 2 == 1);
  }
}

TEST(ControlledJob, SameSeedSameMessages) {
  ControlStats a, b;
  for (ControlStats* stats : {&a, &b}) {
    ControlledJob job("job", 8, 7, *stats);
    for (const int32_t count : {3, 8, 0, 5, 1}) job.set_workers(count, {0.1, 0.1, 1});
  }
  EXPECT_EQ(a.messages, b.messages);
  EXPECT_EQ(a.seconds, b.seconds);
}

// No message arrives at all: that must be said, not waited for.
TEST(ControlledJob, WhatCannotBeCarriedThroughIsNamed) {
  ControlStats stats;
  ControlledJob job("job", 4, 1, stats);
  try {
    job.set_workers(2, {1, 0, 1});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("still not on 2 devices"), std::string::npos) << e.message();
  }
}

TEST(Simulator, ControlChangesNothingOfTheResult) {
  const Catalog catalog = built_in_catalog();
  SyntheticOptions made;
  made.jobs = 12;
  made.hours = 0.5;
  made.services = 1;
  const Workload workload = synthetic_workload(made, catalog);
  SimOptions options;
  options.scenario = parse_scenario(
      "[[fault]]\nkind = \"node_loss\"\nat = 300\nevery = 1200\nfor = 600\n"
      "[[fault]]\nkind = \"lost_messages\"\nat = 0\nprobability = 0.1\n"
      "[[fault]]\nkind = \"late_messages\"\nat = 0\nprobability = 0.1\ndelay = 3\n",
      "s");
  const sched::Cluster cluster = sched::homogeneous_cluster(4, 4);
  std::vector<SimResult> results;
  for (const bool control : {false, true}) {
    options.control = control;
    results.push_back(
        simulate(workload, catalog, cluster, *sched::make_policy("ductile"), options));
  }
  EXPECT_EQ(results[0].control.changes, 0);
  EXPECT_GT(results[1].control.changes, 12);
  EXPECT_GT(results[1].control.lost, 0);
  ASSERT_EQ(results[0].jobs.size(), results[1].jobs.size());
  for (size_t j = 0; j < results[0].jobs.size(); ++j)
    EXPECT_EQ(results[0].jobs[j].finish, results[1].jobs[j].finish);
}

}  // namespace
}  // namespace ductile::sim
