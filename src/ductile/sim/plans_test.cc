// Jobs that bring several plans: each is a column of its own for the policy, and runs as it says.
#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/rng.h"
#include "ductile/sched/hetero.h"
#include "ductile/sim/metrics.h"
#include "ductile/sim/simulator.h"

namespace ductile::sim {
namespace {

// A model that fits no single device: whole batches of 32, and noise that calls for more later on.
Application planned(const std::string& name, std::vector<PlanProfile> plans) {
  Application app;
  app.name = name;
  app.init_batch = 32;
  app.max_batch = 128;
  app.epochs = 4;
  for (const int32_t batch : {32, 128}) {
    BatchTrace trace;
    trace.batch = batch;
    for (int32_t e = 0; e < 4; ++e) {
      trace.noise.push_back({1, 1.0 + 4 * e});
      trace.progress.push_back(100.0 * (e + 1));
      trace.iteration.push_back(100.0 * (e + 1));
    }
    app.traces.push_back(std::move(trace));
  }
  app.plans = std::move(plans);
  return app;
}

// Few devices: a pipeline of two stages; many: sharded data-parallel, which needs four.
const std::vector<PlanProfile> kPipelines{
    {"pipeline", "t4", 2, 32, 2.0}, {"pipeline", "t4", 4, 32, 1.3}, {"pipeline", "t4", 8, 32, 1.0}};
const std::vector<PlanProfile> kSharded{{"sharded", "t4", 4, 32, 1.6},
                                        {"sharded", "t4", 8, 32, 0.7},
                                        {"sharded", "t4", 8, 128, 2.0},
                                        {"sharded", "t4", 16, 128, 1.0}};

Catalog catalog_with(std::vector<PlanProfile> plans) {
  Catalog catalog;
  catalog.rules.restart = 30;
  catalog.applications.emplace("large", planned("large", std::move(plans)));
  return catalog;
}

Workload jobs(int count, double apart) {
  Workload out;
  out.name = "w";
  for (int i = 0; i < count; ++i)
    out.jobs.push_back({.name = "j" + std::to_string(i),
                        .application = "large",
                        .time = i * apart,
                        .devices = 4,
                        .work = 1 + 0.5 * (i % 3)});
  return out;
}

double mean_jct(const Catalog& catalog, const Workload& workload, const std::string& policy,
                std::optional<double> budget = 1.0) {
  SimOptions options;
  options.check = true;
  options.budget = budget;
  const sched::Cluster cluster = sched::homogeneous_cluster(4, 4);
  const auto decider = sched::make_policy(policy);
  const SimResult result = simulate(workload, catalog, cluster, *decider, options);
  return summarise(result, workload, catalog, cluster).mean;
}

std::vector<PlanProfile> both() {
  std::vector<PlanProfile> out = kPipelines;
  out.insert(out.end(), kSharded.begin(), kSharded.end());
  return out;
}

TEST(Plans, TheBestForTheseDevicesIsThatOfTheHighestGoodput) {
  Rng rng(5, 0x91a5);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<sched::JobPlan> plans;
    for (uint32_t i = 0; i < 1 + rng.below(12); ++i)
      plans.push_back({static_cast<int32_t>(rng.below(2)), 1 << rng.below(3),
                       static_cast<int32_t>(32 << rng.below(3)), rng.uniform(1, 50)});
    const sched::GradientNoise noise{1, rng.uniform(0, 8)};
    const auto type = static_cast<int32_t>(rng.below(2));
    const int32_t devices = 1 << rng.below(3);
    const int32_t best = sched::best_plan(plans, type, devices, noise, 32);
    double most = 0;
    for (const sched::JobPlan& p : plans)
      if (p.type == type && p.devices == devices)
        most = std::max(most, p.samples_per_second * (noise.var + noise.sqr) /
                                  (noise.var + noise.sqr * p.batch / 32.0));
    ASSERT_EQ(best < 0, most == 0);
    if (best < 0) continue;
    EXPECT_NEAR(sched::goodput(plans[static_cast<size_t>(best)], noise, 32), most, 1e-9 * most);
  }
}

TEST(Plans, AJobAloneTakesWhatItsPlanSays) {
  const Catalog catalog = catalog_with({{"pipeline", "t4", 2, 32, 2.0}});
  const Workload one = jobs(1, 0);
  // It is seen a round after it came; then a start, and 400 steps of M0 of 2 s.
  EXPECT_NEAR(mean_jct(catalog, one, "ductile"), 30 + 800, 61);
  EXPECT_NEAR(mean_jct(catalog, one, "ductile", std::nullopt), 30 + 800, 61);
}

// Beside whichever single kind turns out to be the better one for a workload, which nobody knows
// before, several are as good; beside pipelines they are better. A policy that does not know the
// future may be worse off in one workload or another.
TEST(Plans, SeveralAreAsGoodAsTheBestOneKindInHindsight) {
  Rng rng(11, 0x91a5);
  double beside_best = 0, worst = 0, beside_pipelines = 0, beside_sharded = 0;
  constexpr int kTrials = 60;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Workload workload =
        jobs(4 + static_cast<int32_t>(rng.below(16)), std::exp(rng.uniform(2.5, 6.5)));
    const double all = mean_jct(catalog_with(both()), workload, "ductile");
    const double pipelines = mean_jct(catalog_with(kPipelines), workload, "ductile");
    const double sharded = mean_jct(catalog_with(kSharded), workload, "ductile");
    const double ratio = all / std::min(pipelines, sharded);
    beside_best += ratio / kTrials;
    beside_pipelines += all / pipelines / kTrials;
    beside_sharded += all / sharded / kTrials;
    worst = std::max(worst, ratio);
  }
  EXPECT_LE(beside_best, 1.01);
  EXPECT_LE(worst, 1.15);
  EXPECT_LE(beside_pipelines, 0.85);
  EXPECT_LE(beside_sharded, 1.01);
}

TEST(Plans, APolicyThatDoesNotKnowThemRunsTheBestForWhatIsAskedFor) {
  const Workload workload = jobs(3, 10);
  for (const char* policy : {"sia", "gavel", "tiresias", "fifo", "srtf"}) {
    SCOPED_TRACE(policy);
    const double seconds = mean_jct(catalog_with(both()), workload, policy);
    EXPECT_GT(seconds, 400 * 1.3);  // 4 devices: the pipeline, at 1.3 s a step
    EXPECT_LT(seconds, 2 * 400 * 1.3 + 600);
  }
  Workload odd = workload;
  odd.jobs[1].devices = 3;
  try {
    mean_jct(catalog_with(both()), odd, "sia");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(e.message().find("j1"), std::string::npos) << e.message();
    EXPECT_NE(e.message().find("3 devices"), std::string::npos) << e.message();
  }
}

TEST(Plans, AreReadFromTheirFile) {
  const fs::path folder = fs::path(::testing::TempDir()) / "ductile_plans_test";
  const fs::path app = folder / "large";
  fs::remove_all(folder);
  fs::create_directories(app);
  write_file_atomic(app / "validation-32.csv",
                    "progress,iteration,grad_sqr,grad_var\n100,100,1,4\n");
  write_file_atomic(app / "plans.csv",
                    "plan,type,devices,batch,seconds\npipeline,t4,2,32,2\nsharded,t4,8,128,1.5\n");
  const Catalog catalog = read_catalog(folder);
  const Application& read = catalog.find("large");
  ASSERT_EQ(read.plans.size(), 2u);
  EXPECT_EQ(read.plans[1].name, "sharded");
  EXPECT_EQ(read.plans[1].devices, 8);
  EXPECT_EQ(read.plans[1].batch, 128);
  EXPECT_EQ(read.plans[1].seconds, 1.5);
  EXPECT_EQ(read.unit("t4"), 1);
  EXPECT_EQ(read.unit("rtx"), 0);
  write_file_atomic(app / "plans.csv", "plan,type,devices,batch,seconds\npipeline,t4,0,32,2\n");
  try {
    read_catalog(folder);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("devices"), std::string::npos) << e.message();
  }
  fs::remove(app / "plans.csv");
  EXPECT_THROW(read_catalog(folder), Error);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace ductile::sim
