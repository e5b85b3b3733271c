#include "ductile/sched/goodput.h"

#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/sched/hetero.h"

namespace ductile::sched {
namespace {

const PerfParams kPerf = {.05, .004, .12, .004, .03, .001, 2};
const BatchLimits kLimits = {128, 4096, 16, 512};

TEST(Goodput, StepTimeFollowsTheFormula) {
  const double grad = .05 + .004 * 64;
  EXPECT_NEAR(step_seconds(kPerf, 1, 1, 64, 0), grad, 1e-6);
  EXPECT_NEAR(step_seconds(kPerf, 1, 4, 64, 0),
              std::sqrt(grad * grad + (.03 + .002) * (.03 + .002)), 1e-12);
  EXPECT_NEAR(step_seconds(kPerf, 2, 8, 64, 3),
              3 * grad + std::sqrt(grad * grad + (.12 + .024) * (.12 + .024)), 1e-12);
}

// Every candidate, one by one, as the definition has it.
BatchChoice slow_best(const GradientNoise& noise, int nodes, int replicas) {
  BatchChoice best;
  const double low = std::max(128.0, 16.0 * replicas);
  for (int i = 0; i < 50; ++i) {
    const double batch = low * std::pow(4096 / low, i / 49.0), local = batch / replicas;
    int s = static_cast<int>(std::ceil(local / 512 - 1e-8)) - 1;
    if (replicas == 1 && local > 128 + 1e-8) s = std::max(s, 1);
    const int m = static_cast<int>(std::ceil(local / (s + 1) - 1e-8));
    if (m < 16 || m > 512) continue;
    const double value = goodput(kPerf, noise, kLimits, nodes, replicas, m, s);
    if (value > best.goodput) best = {value, m, s};
  }
  return best;
}

RC_GTEST_PROP(Goodput, BestBatchIsTheBestOfAll, ()) {
  const int replicas = *rc::gen::inRange(1, 65), nodes = (replicas + 3) / 4;
  const GradientNoise noise = {*rc::gen::inRange(1, 100) / 50.0, *rc::gen::inRange(1, 1000) / 50.0};
  const BatchChoice fast = best_batch(kPerf, noise, kLimits, nodes, replicas),
                    slow = slow_best(noise, nodes, replicas);
  RC_ASSERT(std::abs(fast.goodput - slow.goodput) <= 1e-9 * slow.goodput);
  RC_ASSERT(fast.local_batch == slow.local_batch);
  RC_ASSERT(fast.accumulation == slow.accumulation);
}

RC_GTEST_PROP(Goodput, SplitKeepsTheBatch, ()) {
  const int replicas = *rc::gen::inRange(1, 33), batch = *rc::gen::inRange(128, 4097);
  const BatchChoice split = split_batch(kLimits, replicas, batch);
  const int whole = replicas * split.local_batch * (split.accumulation + 1);
  RC_ASSERT(split.local_batch <= 512);
  RC_ASSERT(whole <= 4096);
  RC_ASSERT(whole + replicas * (split.accumulation + 1) >= batch);
  if (replicas == 1 && batch > 128) RC_ASSERT(split.accumulation >= 1);
}

TEST(Heterogeneous, EstimatesComeFromWhatIsKnown) {
  JobView job;
  job.types.resize(2);
  for (TypeModel& type : job.types) type.limits = kLimits;
  job.types[0].unit_rate = 100;
  job.types[1].unit_rate = 300;
  const int32_t per_node[] = {4, 8};
  // Nothing fitted: perfect scaling of the start-up profile.
  EXPECT_EQ(estimated_goodput(job, 1, 1, 4, per_node), 1200);
  job.noise = GradientNoise{1, 8};
  job.types[0].fitted = true;
  job.types[0].perf = kPerf;
  EXPECT_EQ(estimated_goodput(job, 0, 2, 8, per_node),
            best_batch(kPerf, *job.noise, kLimits, 2, 8).goodput);
  // The other type: the same curve, as much faster as one device is.
  EXPECT_NEAR(estimated_goodput(job, 1, 1, 8, per_node),
              3 * best_batch(kPerf, *job.noise, kLimits, 2, 8).goodput, 1e-9);
  EXPECT_EQ(reference_type(job, 1), 0);
  job.types[1].allowed = false;
  EXPECT_EQ(estimated_goodput(job, 1, 1, 8, per_node), 0);
}

}  // namespace
}  // namespace ductile::sched
