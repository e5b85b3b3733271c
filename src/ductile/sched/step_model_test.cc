#include "ductile/sched/step_model.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace ductile::sched {
namespace {

constexpr PerfParams kPerf = {0.05, 0.002, 0.2, 0.01, 0.05, 0.005, 2};
constexpr BatchLimits kLimits = {128, 4096, 16, 512};
constexpr GradientNoise kNoise = {1, 5};

// What the truth is, if not the formula.
double true_gradient(double local) { return 0.04 + 0.0018 * local + 0.01 * std::sin(local / 40); }
double true_step(int nodes, int replicas, double local) {
  return true_gradient(local) + 0.1 * nodes + 0.002 * replicas;
}
StepSample measured(int nodes, int replicas, int local) {
  return {nodes, replicas, local, true_gradient(local), true_step(nodes, replicas, local)};
}

RC_GTEST_PROP(StepModel, EqualsWhatWasMeasured, ()) {
  std::vector<StepSample> samples;
  const int count = *rc::gen::inRange(1, 12);
  for (int i = 0; i < count; ++i) {
    const int replicas = *rc::gen::inRange(1, 17);
    const StepSample s = measured((replicas + 3) / 4, replicas, *rc::gen::inRange(16, 513));
    bool known = false;
    for (const StepSample& k : samples)
      known = known || (k.replicas == s.replicas && k.local_batch == s.local_batch);
    if (!known) samples.push_back(s);
  }
  const StepModel model(kPerf, samples);
  for (const StepSample& s : samples) {
    RC_ASSERT(std::abs(model.step_seconds(s.nodes, s.replicas, s.local_batch) / s.step_seconds -
                       1) < 1e-9);
    RC_ASSERT(
        std::abs(model.gradient_seconds(s.nodes, s.replicas, s.local_batch) / s.gradient_seconds -
                 1) < 1e-9);
  }
}

TEST(StepModel, WithoutMeasurementsIsTheFormula) {
  const StepModel model(kPerf, {});
  for (int replicas : {1, 2, 4, 8, 32}) {
    const int nodes = (replicas + 3) / 4;
    const BatchChoice a = model.best_batch(kNoise, kLimits, nodes, replicas);
    const BatchChoice b = best_batch(kPerf, kNoise, kLimits, nodes, replicas);
    EXPECT_EQ(a.local_batch, b.local_batch);
    EXPECT_EQ(a.accumulation, b.accumulation);
    EXPECT_DOUBLE_EQ(a.goodput, b.goodput);
  }
}

TEST(StepModel, FarShapesAreCorrectedLess) {
  const std::vector<StepSample> samples = {measured(2, 8, 64)};
  const StepModel model(kPerf, samples);
  const auto off = [&](int nodes, int replicas) {
    return std::log(model.step_seconds(nodes, replicas, 64) /
                    step_seconds(kPerf, nodes, replicas, 64, 0));
  };
  EXPECT_NE(off(2, 8), 0);
  EXPECT_NEAR(off(4, 16) / off(2, 8), std::exp2(-1.1), 1e-9);
  EXPECT_NEAR(off(16, 64) / off(2, 8), std::exp2(-3.1), 1e-9);
  EXPECT_EQ(off(1, 4), 0);  // one node says nothing of several
}

// Measuring what looks best until it has been measured finds a batch nearly as good as the best.
TEST(StepModel, ChoosingAndMeasuringConverges) {
  const int nodes = 2, replicas = 8;
  double best = 0;
  for (int local = 16; local <= 512; ++local) {
    const double whole = replicas * local;
    if (whole < 128 || whole > 4096) continue;
    best = std::max(best, whole / true_step(nodes, replicas, local) *
                              efficiency(kNoise, whole / kLimits.init_batch));
  }
  std::vector<StepSample> samples = {measured(nodes, replicas, 16)};
  for (int i = 0; i < 20; ++i) {
    const BatchChoice c = StepModel(kPerf, samples).best_batch(kNoise, kLimits, nodes, replicas);
    bool known = false;
    for (const StepSample& s : samples) known = known || s.local_batch == c.local_batch;
    if (known) {
      EXPECT_GT(c.goodput, 0.98 * best) << i;
      EXPECT_LT(i, 10);
      return;
    }
    samples.push_back(measured(nodes, replicas, c.local_batch));
  }
  FAIL() << "it goes on measuring";
}

}  // namespace
}  // namespace ductile::sched
