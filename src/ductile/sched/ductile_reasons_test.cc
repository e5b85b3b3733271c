#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/sched/ductile_policy.h"
#include "ductile/sched/waiting_claims_impl.h"

namespace ductile::sched {
namespace {

// The twin looks at every claim.
TEST(WaitingClaims, ThoseBeforeAClaimAreAllThatAreWorthMoreOrAsMuchAndOlder) {
  Rng rng(14);
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<std::pair<WaitingClaims::Turn, int32_t>> all;
    WaitingClaims claims;
    const uint32_t count = rng.below(40);
    for (uint32_t i = 0; i < count; ++i) {
      // Many are worth the same, and some came at one moment.
      all.push_back(
          {{rng.below(8) / 4.0, rng.below(5) / 1.0, i}, static_cast<int32_t>(1 + rng.below(16))});
      claims.add(all.back().first, all.back().second);
    }
    claims.sort();
    for (const auto& [own, of_own] : all) {
      WaitingClaims::Before slow;
      for (const auto& [other, devices] : all) {
        const bool older =
            other.arrival != own.arrival ? other.arrival < own.arrival : other.job < own.job;
        if (other.worth < own.worth || (other.worth == own.worth && !older)) continue;
        ++slow.jobs;
        slow.devices += devices;
      }
      EXPECT_EQ(claims.before(own), slow) << turn << ": " << own.worth << ", " << own.arrival;
    }
  }
}

TEST(WaitingClaims, WhereNobodyWaitsNobodyIsBefore) {
  WaitingClaims claims;
  EXPECT_EQ(claims.before({}), WaitingClaims::Before());
  claims.sort();
  EXPECT_EQ(claims.before({}), WaitingClaims::Before());
}

JobView trained(JobId id, double milliseconds_a_sample) {
  JobView job;
  job.id = id;
  job.name = "job-" + std::to_string(id);
  job.max_devices = 2;
  job.remaining = 1e5;
  job.restart_seconds = 1;
  TypeModel type;
  type.fitted = true;
  type.max_profiled = 2;
  type.limits = {128, 8192, 16, 512};
  type.perf = {0.05, milliseconds_a_sample / 1000, 0.02, 0.001, 0.01, 0.001, 2};
  job.types = {type};
  job.noise = GradientNoise{1, 20};
  return job;
}

JobView idle_service(JobId id) {
  JobView job;
  job.id = id;
  job.name = "service-" + std::to_string(id);
  job.tier = Tier::premium;
  job.service = ServiceView{0, 0, 0.5, 0.99, 1, {20}};
  job.types.resize(1);
  return job;
}

TEST(DuctileReasons, AJobBesideServicesThatHoldEverythingSaysWhoHoldsIt) {
  const Cluster cluster = homogeneous_cluster(1, 2);
  DuctilePolicy policy;
  const std::vector<JobView> jobs{idle_service(1), idle_service(2), trained(3, 1)};
  policy.decide({0, 60, cluster, jobs});
  const std::string why = policy.explain(3);
  EXPECT_TRUE(
      why.starts_with("waits: it can start on 1 t4. None of 2 are free: service-1 holds 1 "
                      "and service-2 holds 1. It starts when 1 more is free"))
      << why;
}

// It runs on one device of two: the other one was somebody's until now, and the readings by which
// it would gain nothing there turn out to be wrong.
TEST(DuctileReasons, AJobThatIsAloneNeitherSpeaksOfOthersNorStaysSmall) {
  const Cluster cluster = homogeneous_cluster(1, 2);
  DuctilePolicy policy;
  std::vector<JobView> jobs{trained(1, 1)};
  jobs[0].scaling = Scaling::strong;
  jobs[0].requested_batch = 128;
  jobs[0].allocation = {{0, 1}};
  const PerfParams fast = jobs[0].types[0].perf;
  jobs[0].types[0].perf = {0.2, 0.00001, 0.02, 0.001, 0.01, 0.001, 2};
  jobs[0].speeds_version = 1;
  EXPECT_TRUE(policy.decide({0, 60, cluster, jobs}).changes.empty());
  EXPECT_EQ(policy.explain(1).find("other jobs"), std::string::npos) << policy.explain(1);
  jobs[0].types[0].perf = fast;
  jobs[0].speeds_version = 2;
  const Decisions grown = policy.decide({60, 60, cluster, jobs});
  ASSERT_EQ(grown.changes.size(), 1u) << policy.explain(1);
  EXPECT_EQ(device_count(grown.changes[0].allocation), 2);
}

}  // namespace
}  // namespace ductile::sched
