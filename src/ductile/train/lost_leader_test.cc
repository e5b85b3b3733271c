// A leader that is lost while the others wait for it: what it left undone, somebody makes up for.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/digest.h"
#include "ductile/run/diary.h"
#include "ductile/run/json_lines.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/testing/local_cluster.h"
#include "ductile/train/testing/sample_optimizer.h"

namespace ductile::train {
namespace {

using testing::LocalCluster;
using Json = nlohmann::json;

spec::JobOptions small_job(bool sharded) {
  spec::JobOptions job;
  job.name = "leader";
  job.data.train_limit = 96;
  job.data.test_limit = 16;
  job.model.name = "mlp";
  job.model.hidden = {12};
  job.loader.threads = 1;
  job.train.epochs = 3;
  job.train.batch_size = 24;
  job.train.virtual_ranks = 8;
  job.train.threads = 1;
  job.train.shard_optimizer = sharded;
  job.checkpoint.every_seconds = 0;
  return job;
}

// The hooks are called by the worker's own thread: when it begins to evaluate a batch, and when its
// optimiser computes the weights to evaluate for the n-th time.
struct Hooks {
  std::function<void()> evaluating;
  std::function<void(int)> asked;
};

class Watched final : public nn::Model {
 public:
  Watched(std::unique_ptr<nn::Model> inner, std::function<void()> evaluating)
      : inner_(std::move(inner)), evaluating_(std::move(evaluating)) {}
  at::Tensor forward(const at::Tensor& x) override {
    if (!training() && evaluating_) evaluating_();
    return inner_->forward(x);
  }
  std::vector<nn::NamedTensor> parameters() override { return inner_->parameters(); }

 private:
  std::unique_ptr<nn::Model> inner_;
  std::function<void()> evaluating_;
};

class WatchedControl final : public optim::RateControl {
 public:
  WatchedControl(std::unique_ptr<optim::RateControl> inner, std::function<void(int64_t)> asked)
      : inner_(std::move(inner)), asked_(std::move(asked)) {}
  optim::Hyper next(const optim::Observed& seen, Json& memory) const override {
    asked_(seen.updates);
    return inner_->next(seen, memory);
  }

 private:
  std::unique_ptr<optim::RateControl> inner_;
  std::function<void(int64_t)> asked_;
};

std::vector<Json> metrics_of(const run::RunFolder& folder) {
  std::vector<Json> out;
  run::for_each_diary_line(folder.metrics_file(), [&](const Json& line) {
    out.push_back(line);
    for (const char* timing : {"time", "seconds", "samples_per_second", "generation"})
      out.back().erase(timing);
  });
  return out;
}

struct Result {
  Json end;
  std::string weights;
  std::vector<Json> metrics;
  int64_t evaluations = 0;  // written down as events
};

Result train_with(const spec::JobOptions& job, const Hooks& hooks) {
  const TempFolder place;
  spec::JobOptions options = job;
  const auto folder = run::RunFolder::create(place.path(), job.name, OptionSet(options).to_toml());
  LocalCluster cluster(folder, job, [job, hooks] {
    Ingredients given = complete({}, job);
    given.model = std::make_unique<Watched>(std::move(given.model), hooks.evaluating);
    given.make_optimizer = [job, hooks](const optim::ParamLayout& layout) {
      return testing::make_halving_optimizer(job, layout, hooks.asked);
    };
    return given;
  });
  cluster.start(3);
  EXPECT_EQ(cluster.finish().phase, control::Phase::finished);
  Result out;
  run::for_each_diary_line(folder.events_file(), [&](const Json& line) {
    if (line.at("kind") == "end") out.end = line;
    out.evaluations += line.at("kind") == "evaluation";
  });
  out.metrics = metrics_of(folder);
  out.weights = read_file(folder.path() / "model.safetensors");
  return out;
}

class LostLeader : public ::testing::TestWithParam<bool> {
 protected:
  void expect_as_undisturbed(const spec::JobOptions& job, const Hooks& hooks) {
    const Result want = train_with(job, {}), got = train_with(job, hooks);
    EXPECT_TRUE(died_) << "nobody was lost";
    EXPECT_EQ(got.weights, want.weights);
    EXPECT_EQ(got.metrics, want.metrics);
    EXPECT_EQ(got.evaluations, want.evaluations);
    for (const char* figure : {"status", "step", "updates", "samples", "final", "best", "digest"}) {
      ASSERT_TRUE(want.end.contains(figure)) << figure;
      EXPECT_EQ(got.end.value(figure, Json()), want.end.at(figure)) << figure;
    }
  }
  void die_once() {
    if (!died_.exchange(true)) LocalCluster::die();
  }

  std::atomic<bool> died_ = false;
};

TEST_P(LostLeader, AnEvaluationThatItLeftUndoneIsMadeUpFor) {
  expect_as_undisturbed(small_job(GetParam()), {.evaluating = [this] { die_once(); }, .asked = {}});
}

// All evaluate nothing any more and know that the job is done: its figures are still missing.
TEST_P(LostLeader, LossBetweenTheLastEvaluationAndTheSummaryLosesNoFigure) {
  spec::JobOptions job = small_job(GetParam());
  job.train.eval_every_epochs = 0;  // the last one alone, then the leader writes the model
  expect_as_undisturbed(job, {.evaluating = {}, .asked = [this](int times) {
                                if (times == 2) die_once();
                              }});
}

// A preemption in the same breath: no generation comes in which another leader could make up for
// it, and what was left undone has to be seen from the checkpoint.
class LostLeaderAndPreemption : public ::testing::Test {
 protected:
  static constexpr int kWorkers = 2;

  // Dies here when all workers have done the step and the job is about to be preempted.
  void die_once() {
    if (died_.exchange(true)) return;
    died_.notify_all();
    for (int n = there_; n < kWorkers; n = there_) there_.wait(n);
    preempted_.wait(false);
    LocalCluster::die();
  }
  // A worker has done the step.
  void arrive() {
    ++there_;
    there_.notify_all();
  }

  // Runs with `lossy`, whose leader dies after `step`, is preempted, and goes on with `sound`.
  void expect_as_undisturbed(const spec::JobOptions& job, int64_t step, const Recipe& lossy) {
    const Recipe sound = recipe_of(job);
    const auto make = [&](const fs::path& place) {
      spec::JobOptions options = job;
      return run::RunFolder::create(place, job.name, OptionSet(options).to_toml());
    };
    const auto train = [&](const run::RunFolder& folder) {
      LocalCluster cluster(folder, job, sound);
      cluster.start(kWorkers);
      EXPECT_EQ(cluster.finish().phase, control::Phase::finished);
    };
    const TempFolder place, other;
    const run::RunFolder got = make(place.path()), want = make(other.path());
    train(want);
    {
      LocalCluster cluster(got, job, lossy);
      cluster.start(kWorkers);
      cluster.run_to(step - 1);
      died_.wait(false);
      preempted_ = true;
      preempted_.notify_all();
      cluster.preempt();
    }
    EXPECT_EQ(ckpt::list(got.checkpoints()).front().step, step);
    train(got);
    EXPECT_EQ(metrics_of(got), metrics_of(want));
    const auto digest_of = [](const run::RunFolder& folder) {
      return ckpt::state_digest(ckpt::open_latest(folder.checkpoints()).checkpoint.value());
    };
    EXPECT_EQ(digest_of(got), digest_of(want));
  }

  std::atomic<bool> died_ = false, preempted_ = false;
  std::atomic<int> there_ = 0;
};

TEST_F(LostLeaderAndPreemption, LoseNoMetricLine) {
  spec::JobOptions job = small_job(false);
  job.train.log_every = 3;
  std::atomic<std::thread::id> leader;  // who evaluates after step 4
  expect_as_undisturbed(job, 6, [&] {
    Ingredients given = complete({}, job);
    given.model = std::make_unique<Watched>(std::move(given.model),
                                            [&] { leader = std::this_thread::get_id(); });
    given.rate_control =
        std::make_unique<WatchedControl>(std::move(given.rate_control), [&](int64_t updates) {
          if (updates != 6) return;
          arrive();
          if (std::this_thread::get_id() == leader.load()) die_once();
        });
    return given;
  });
}

// What is saved of the last step is not saved again.
TEST_F(LostLeaderAndPreemption, LeaveNoResultWithoutItsEvaluation) {
  spec::JobOptions job = small_job(false);
  job.train.eval_every_epochs = 0;  // the last one alone
  expect_as_undisturbed(job, 12, [&] {
    Ingredients given = complete({}, job);
    given.model = std::make_unique<Watched>(std::move(given.model), [&] { die_once(); });
    given.rate_control =
        std::make_unique<WatchedControl>(std::move(given.rate_control), [&](int64_t updates) {
          if (updates == 12) arrive();
        });
    return given;
  });
}

// A line at a time: a leader that is killed has written those of an evaluation as far as it came.
TEST(LostEvents, OfAnEvaluationWhoseMetricsAreThereComeOnce) {
  spec::JobOptions job = small_job(false);
  job.train.eval_every_epochs = 0.25;  // after each step
  const TempFolder place;
  spec::JobOptions options = job;
  const auto folder = run::RunFolder::create(place.path(), job.name, OptionSet(options).to_toml());
  {
    LocalCluster cluster(folder, job, recipe_of(job));
    cluster.start(2);
    cluster.run_to(5);
    cluster.preempt();
  }
  const auto steps_of_evaluations = [&] {
    std::vector<int64_t> steps;
    run::for_each_diary_line(folder.events_file(), [&](const Json& line) {
      if (line.at("kind") == "evaluation") steps.push_back(line.at("step"));
    });
    return steps;
  };
  const int64_t last = steps_of_evaluations().back();
  std::string kept;
  for (const Json& line : run::read_json_lines(folder.events_file())) {
    if (line.at("kind") != "evaluation" || line.at("step") != last) kept += line.dump() + "\n";
  }
  write_file_atomic(folder.events_file(), kept);
  {
    LocalCluster cluster(folder, job, recipe_of(job));
    cluster.start(2);
    EXPECT_EQ(cluster.finish().phase, control::Phase::finished);
  }
  EXPECT_EQ(steps_of_evaluations(), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

INSTANTIATE_TEST_SUITE_P(Jobs, LostLeader, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "spread" : "whole");
});

}  // namespace
}  // namespace ductile::train
