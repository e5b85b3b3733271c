#include "ductile/train/online_tuner.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/train/replica.h"
#include "ductile/train/testing/watched_run.h"

namespace ductile::train {
namespace {

spec::JobOptions small_job() {
  spec::JobOptions job;
  job.data.train_limit = 512;
  job.data.test_limit = 128;
  job.model.name = "mlp";
  job.model.hidden = {16};
  job.loader.threads = 1;
  job.schedule.name = "constant";
  job.optimizer.momentum = 0;
  job.train.epochs = 6;
  job.train.batch_size = 16;
  job.train.virtual_ranks = 4;
  job.train.threads = 1;
  return job;
}

// Trials of so few samples are noisy: one seed may end with a rate that is ten times off.
TEST(OnlineTuner, TrainsFromALearningRateThatIsFarOff) {
  constexpr int64_t kSeeds = 4;
  double sum = 0;
  for (int64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    spec::JobOptions job = small_job();
    job.seed = seed;
    job.optimizer.lr = 1e-5;
    Replica untuned(job);
    testing::run_to_end(untuned);
    job.tune.online = true;
    job.tune.lr = {1e-5, 10};
    job.tune.budget = 1;
    Replica tuned(job);
    testing::run_to_end(tuned);
    EXPECT_LT(untuned.last()->accuracy, 0.3);
    EXPECT_GT(tuned.last()->accuracy, 0.4);
    sum += tuned.last()->accuracy;
    EXPECT_GT(tuned.hyper().lr, 1e-3);
    EXPECT_TRUE(tuned.state().branches().empty());
    // Trials are steps, but the job ends where it was to end; their samples are counted.
    EXPECT_EQ(tuned.updates(), untuned.updates());
    EXPECT_GT(tuned.step(), tuned.updates());
    EXPECT_EQ(tuned.state().counters.samples_backward, tuned.step() * 16);
  }
  EXPECT_GT(sum / kSeeds, 0.6);
}

// A method that looks at samples, or skips some, comes further with an update than it trains: a
// trial is as long as it was to be in epochs of the run.
TEST(OnlineTuner, CountsTrialsInEpochsOfTheRunForEveryMethod) {
  for (const char* method : {"selective", "infobatch", "graded"}) {
    spec::JobOptions job = small_job();
    job.optimizer.lr = 0.02;
    job.train.method = method;
    job.train.selective.first_epochs = 0;
    job.train.selective.beta = 3;
    job.tune.online = true;
    job.tune.budget = 0.5;
    job.tune.retunings = 0;
    Replica replica(job);
    std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
    replica.host_all();
    double until = 0;
    while (replica.state().extras().at(std::string(kTunerPart)).values.at("policy") != nullptr) {
      until = replica.state().extras().at(std::string(kTunerPart)).values.at("until");
      replica.compute(replica.num_ranks(), sum);
      replica.apply(sum);
    }
    // The winner's work is kept: at most the longest trial, and what is looked at for one update.
    EXPECT_GT(replica.epoch(), 0) << method;
    EXPECT_LE(replica.epoch(), until + 0.3) << method;
  }
}

// Where batches are tuned, too: what of an epoch a sample is depends on the batch, and trials begin
// with what their root had waiting. Neither takes a trial back.
TEST(OnlineTuner, CountsTrialsOfOtherBatchesInSamples) {
  for (const int64_t seed : {1, 2, 3}) {
    for (const char* method : {"plain", "selective", "stale_selective"}) {
      SCOPED_TRACE(std::string(method) + " " + std::to_string(seed));
      spec::JobOptions job = small_job();
      job.seed = seed;
      job.data.train_limit = 500;
      job.data.test_limit = 50;
      job.train.epochs = 8;
      job.train.batch_size = 64;
      job.train.virtual_ranks = 2;
      job.train.method = method;
      job.tune.online = true;
      job.tune.lr = {};
      job.tune.batch_size = {16, 64};
      Replica replica(job);
      testing::run_to_end(replica);
      EXPECT_NEAR(replica.epoch(), 8, 1e-9);
    }
  }
}

TEST(OnlineTuner, KeepsTheJobsOwnSettingWhereAllTrialsDiverge) {
  spec::JobOptions job = small_job();
  job.optimizer.lr = 0.05;
  job.tune.online = true;
  job.tune.lr = {1e5, 1e6};
  Replica replica(job);
  testing::run_to_end(replica);
  EXPECT_EQ(replica.hyper().lr, 0.05);
  EXPECT_GT(replica.last()->accuracy, 0.5);
}

const nlohmann::json& memory_of(const Replica& replica) {
  return replica.state().extras().at(std::string(kTunerPart)).values;
}

// A trial has ten clocks, of a batch each, and the loss before any training is that of the first.
TEST(OnlineTuner, ATrialWhoseLossIsTenTimesWhatItWasIsOver) {
  spec::JobOptions job = small_job();
  job.tune.online = true;
  job.tune.lr = {1e5, 1e6};
  job.tune.retunings = 0;
  Replica replica(job);
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  replica.host_all();
  int lost = 0;
  while (memory_of(replica).at("policy") != nullptr) {
    replica.compute(replica.num_ranks(), sum);
    replica.apply(sum);
    const nlohmann::json& memory = memory_of(replica);
    if (!memory.contains("event")) continue;
    for (const nlohmann::json& move : memory.at("event").at("moves")) {
      if (move.at("what") != "diverged") continue;
      ++lost;
      EXPECT_LE(move.at("epochs").get<double>(), 3.01 * 16 / 512);
    }
  }
  EXPECT_GT(lost, 3);
}

TEST(OnlineTuner, BeginsWithTheJobsOwnSettingAndOthersAroundItsRate) {
  spec::JobOptions job = small_job();
  job.tune.online = true;
  job.tune.momentum = {0.5, 0.9};
  job.optimizer.lr = 0.05;
  const auto first = [](const spec::JobOptions& tuned) {
    return memory_of(Replica(tuned)).at("first");
  };
  const nlohmann::json five = first(job);
  ASSERT_EQ(five.size(), 4U) << "a hundred times as much is not in the space";
  EXPECT_EQ(five[0], nlohmann::json({0.05, 0.5})) << "a momentum of 0 is moved into the space";
  EXPECT_EQ(five[1], nlohmann::json({0.5, 0.5}));
  EXPECT_EQ(five[2], nlohmann::json({0.05 * 0.1, 0.5}));
  EXPECT_EQ(Replica(job).state().hyper.lr, 0.05);
  job.optimizer.lr = 10;
  EXPECT_EQ(first(job)[0][0], 1) << "a tenth of it is the first that is in the space";
  job.tune.lr = {};
  EXPECT_EQ(first(job).size(), 1U);
}

TEST(OnlineTuner, SaysHowFastALossFellWhoseTrialWasDropped) {
  spec::JobOptions job = small_job();
  job.optimizer.lr = 0.02;
  job.tune.online = true;
  job.tune.budget = 0.5;
  job.tune.retunings = 0;
  Replica replica(job);
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  replica.host_all();
  int dropped = 0;
  while (memory_of(replica).at("policy") != nullptr) {
    replica.compute(replica.num_ranks(), sum);
    replica.apply(sum);
    if (!memory_of(replica).contains("event")) continue;
    for (const nlohmann::json& move : memory_of(replica).at("event").at("moves")) {
      if (move.at("what") != "dropped") continue;
      EXPECT_TRUE(move.at("why").get<std::string>().starts_with("its loss fell by ")) << move;
      ++dropped;
    }
  }
  EXPECT_GT(dropped, 0);
}

// As a task of a user's own may be.
TEST(OnlineTuner, JudgesAJobWithoutAnAccuracyByItsLoss) {
  for (const double factor : {0.9, 1.1}) {
    spec::JobOptions job = small_job();
    job.optimizer.lr = 0.05;
    job.train.epochs = 12;
    job.train.eval_every_epochs = 0.25;
    job.tune.online = true;
    job.tune.patience = 2;
    job.tune.budget = 0.1;
    Replica replica(job);
    replica.host_all();
    std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
    Evaluation result;
    result.loss = 4;
    result.accuracy = NAN;
    while (!replica.done()) {
      if (replica.evaluation_due()) {
        replica.record(result);
        result.loss *= factor;
        continue;
      }
      replica.compute(replica.num_ranks(), sum);
      replica.apply(sum);
    }
    EXPECT_EQ(memory_of(replica).at("searches"), factor < 1 ? 1 : 2);
  }
}

TEST(OnlineTuner, SearchesAgainFromAPlateauAndKeepsTheWork) {
  spec::JobOptions job = small_job();
  job.optimizer.lr = 0.05;
  job.train.epochs = 12;
  job.train.eval_every_epochs = 0.25;
  job.tune.online = true;
  job.tune.patience = 2;
  job.tune.budget = 0.1;
  Replica replica(job);
  testing::run_to_end(replica);
  EXPECT_EQ(memory_of(replica).at("searches"), 2);
  EXPECT_TRUE(replica.state().branches().empty());
  EXPECT_GT(replica.best()->accuracy, 0.7);
  job.tune.retunings = 0;
  Replica once(job);
  testing::run_to_end(once);
  EXPECT_EQ(memory_of(once).at("searches"), 1);
}

// Each trial keeps the earlier weights that its own bound needs, and the winner goes on with its.
TEST(OnlineTuner, TriesEveryStalenessAndKeepsOne) {
  spec::JobOptions job = small_job();
  job.optimizer.lr = 0.05;
  job.train.staleness = 1;
  job.tune.online = true;
  job.tune.lr = {};
  job.tune.staleness = {0, 1, 3};
  job.tune.budget = 1;
  job.tune.retunings = 0;
  Replica replica(job);
  replica.host_all();
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  std::set<int64_t> tried, reached;
  while (replica.updates() < replica.total_updates()) {
    tried.insert(replica.state().hyper.staleness);
    replica.compute(replica.num_ranks(), sum);
    replica.apply(sum);
    const auto part = replica.state().extras().find("staleness");
    const int64_t kept =
        part == replica.state().extras().end() ? 0 : std::ssize(part->second.arrays);
    const int64_t bound = replica.state().last_hyper.staleness;
    ASSERT_LE(kept, bound == 0 ? 0 : bound + 1) << "step " << replica.step();
    if (kept == bound + 1) reached.insert(bound);
  }
  EXPECT_EQ(tried, (std::set<int64_t>{0, 1, 3}));
  EXPECT_EQ(reached, (std::set<int64_t>{1, 3}));
  EXPECT_EQ(replica.hyper().staleness, memory_of(replica).at("setting").at("staleness"));
  EXPECT_TRUE(memory_of(replica).at("policy").is_null());
}

// Trains to the end, and calls `after` for each step with the moves that the tuner told of it.
void watch_moves(Replica& replica, const std::function<void(const nlohmann::json& moves)>& after) {
  replica.host_all();
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  while (!replica.done()) {
    if (replica.evaluation_due()) {
      replica.record(replica.evaluate([](int64_t) {}));
      continue;
    }
    replica.compute(replica.num_ranks(), sum);
    replica.apply(sum);
    const auto told = memory_of(replica).find("event");
    after(told == memory_of(replica).end() ? nlohmann::json::array() : told->at("moves"));
  }
}

// Once the samples are learnt, a batch's loss may be ten times another one's by itself.
TEST(OnlineTuner, ARateThatMovesNothingNeverDiverges) {
  spec::JobOptions job = small_job();
  job.data.train_limit = 200;
  job.train.epochs = 60;
  job.train.batch_size = 8;
  job.train.virtual_ranks = 1;
  job.optimizer.lr = 0.1;
  job.optimizer.momentum = 0.9;
  job.tune.online = true;
  job.tune.lr = {1e-6, 1e-5};
  job.tune.budget = 0.2;
  job.tune.patience = 3;
  job.tune.retunings = 4;
  Replica replica(job);
  int64_t still = 0, diverged = 0;
  watch_moves(replica, [&](const nlohmann::json& moves) {
    if (memory_of(replica).at("searches") < 2) return;
    for (const nlohmann::json& move : moves) {
      const auto setting = move.find("setting");
      if (setting == move.end() || !setting->is_object() || setting->value("lr", 1.0) > 1.1e-5)
        continue;
      still += move.at("what") == "ran" ? 1 : 0;
      diverged += move.at("what") == "diverged" ? 1 : 0;
    }
  });
  EXPECT_GT(still, 5);
  EXPECT_EQ(diverged, 0);
}

// At the milestone the rate becomes a million times as large.
TEST(OnlineTuner, GoesBackAndSearchesBelowTheRateThatDiverged) {
  spec::JobOptions job = small_job();
  job.optimizer.lr = 0.05;
  job.schedule.name = "step";
  job.schedule.step.milestones = {3};
  job.schedule.step.gamma = 1e6;
  job.tune.online = true;
  job.tune.lr = {1e-6, 1};
  job.tune.budget = 0.1;
  job.tune.retunings = 20;
  job.tune.patience = 1000;
  Replica replica(job);
  std::map<int64_t, double> epochs;  // by the step after which it was
  int64_t times_back = 0;
  watch_moves(replica, [&](const nlohmann::json& moves) {
    epochs[replica.step()] = replica.epoch();
    for (const nlohmann::json& move : moves) {
      if (move.at("what") != "went_back") continue;
      ++times_back;
      EXPECT_LT(move.at("step"), replica.step());
      EXPECT_EQ(epochs.at(move.at("step")), replica.epoch());
    }
  });
  EXPECT_GT(times_back, 0);
  const nlohmann::json& memory = memory_of(replica);
  EXPECT_GT(memory.at("searches"), 1);
  EXPECT_LT(memory.at("largest_lr"), 1);
  EXPECT_LE(memory.at("setting").at("lr"), memory.at("largest_lr"));
  EXPECT_TRUE(std::isfinite(replica.last()->loss));
  EXPECT_TRUE(replica.state().branches().empty());
  job.tune.retunings = 0;
  Replica once(job);
  const std::string text = testing::refusal_of([&] { testing::run_to_end(once); });
  EXPECT_NE(text.find("the run diverged; try a smaller largest learning rate in tune.lr"),
            std::string::npos)
      << text;
}

TEST(OnlineTuner, AWarmUpDoesNotScaleTheRatesOfTrials) {
  spec::JobOptions job = small_job();
  job.schedule.warmup_epochs = 3;
  job.optimizer.lr = 0.05;
  job.tune.online = true;
  Replica replica(job);
  EXPECT_EQ(replica.state().hyper.lr, 0.05);
  bool is_after_search = false;
  replica.host_all();
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  while (!is_after_search && replica.updates() < replica.total_updates()) {
    replica.compute(replica.num_ranks(), sum);
    replica.apply(sum);
    const nlohmann::json& memory = memory_of(replica);
    const double lr = replica.state().hyper.lr;
    is_after_search = memory.at("policy").is_null();
    if (is_after_search) {
      EXPECT_LT(lr, memory.at("setting").at("lr")) << "the run itself is warmed up";
    } else {
      ASSERT_EQ(lr, memory.at("setting").at("lr")) << "step " << replica.step();
    }
  }
  EXPECT_TRUE(is_after_search);
}

TEST(OnlineTuner, ATrialThatReachesTheEndOfTheRunIsOver) {
  spec::JobOptions job = small_job();
  job.train.epochs = 1;
  job.tune.online = true;
  job.tune.clock_epochs = 0.1;  // the first trial is as long as the run
  job.tune.budget = 1;
  Replica replica(job);
  testing::run_to_end(replica);
  EXPECT_EQ(replica.updates(), 512 / 16);
  EXPECT_TRUE(memory_of(replica).at("policy").is_null());
  EXPECT_TRUE(replica.state().branches().empty());
}

TEST(OnlineTuner, ARunThatIsShorterThanATrialIsRefused) {
  spec::JobOptions job = small_job();
  job.train.epochs = 1;
  job.train.batch_size = 128;
  job.tune.online = true;
  try {
    Replica replica(job);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("train.epochs"), std::string::npos) << e.what();
  }
}

TEST(OnlineTuner, WarnsOfABudgetInWhichNoThreeTrialsAreCompared) {
  spec::JobOptions job = small_job();
  EXPECT_EQ(Replica(job).search_warning(), "") << "it does not tune";
  job.tune.online = true;
  EXPECT_EQ(Replica(job).search_warning(), "");
  job.train.epochs = 2;
  const std::string text = Replica(job).search_warning();
  for (const char* part : {"tune.budget = 0.25", "0.5 epochs", "1.6 of", "train.epochs"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  job.train.epochs = 1;  // the shortest trial has ten batches, 0.3125 epochs
  EXPECT_NE(Replica(job).search_warning().find("0.8 of"), std::string::npos);
  job.train.epochs = 2;
  job.tune.budget = 100;  // more than there is
  job.tune.clock_epochs = 0.08;
  EXPECT_NE(Replica(job).search_warning().find("2.5 of"), std::string::npos);
  job.tune.clock_epochs = 0.06;
  EXPECT_EQ(Replica(job).search_warning(), "");
}

TEST(OnlineTuner, FindsASeedForEverySearchOfTheLargestSeed) {
  spec::JobOptions job = small_job();
  job.seed = INT64_MAX;
  job.optimizer.lr = 0.05;
  job.tune.online = true;
  Replica replica(job);
  const nlohmann::json& seed = memory_of(replica).at("policy").at("searcher").at("seed");
  EXPECT_EQ(seed, 0) << "one after the largest";
}

// The shortest trial has ten batches.
TEST(OnlineTuner, AStalenessThatATrialHardlyReachesIsRefused) {
  spec::JobOptions job = small_job();
  job.tune.online = true;
  job.tune.staleness = {0, 4};
  Replica reached(job);
  job.tune.staleness = {0, 5};
  EXPECT_NE(testing::refusal_of([&] { Replica replica(job); }).find("leave 5 out"),
            std::string::npos);
  job.tune.clock_epochs = 0.04;
  Replica longer(job);
}

// An option that stands in the hyperparameters, one that steps bring, and a whole number.
TEST(OnlineTuner, TriesLiveOptionsAndKeepsThoseOfTheBestTrial) {
  spec::JobOptions job = small_job();
  job.optimizer.name = "muon";
  job.optimizer.lr = 0.02;
  job.tune.online = true;
  job.tune.lr = {};
  job.tune.options = {"optimizer.clip_norm:0.1:10", "optimizer.muon.steps:2:6",
                      "optimizer.muon.rest_lr:0.1:10"};
  job.tune.budget = 1;
  job.tune.retunings = 0;
  Replica replica(job);
  replica.host_all();
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  std::set<double> clips, rates, steps;
  while (replica.updates() < replica.total_updates()) {
    const optim::Hyper& hyper = replica.state().hyper;
    const nlohmann::json& setting = memory_of(replica).at("setting");
    if (!setting.is_null()) {
      EXPECT_EQ(hyper.clip_norm, setting.at("optimizer.clip_norm").get<double>());
      for (const char* key : {"optimizer.muon.steps", "optimizer.muon.rest_lr"})
        EXPECT_EQ(hyper.options.at(key), setting.at(key).get<double>()) << key;
      EXPECT_EQ(hyper.options.size(), 2U);
      rates.insert(hyper.options.at("optimizer.muon.rest_lr"));
      steps.insert(hyper.options.at("optimizer.muon.steps"));
    }
    clips.insert(hyper.clip_norm);
    replica.compute(replica.num_ranks(), sum);
    replica.apply(sum);
  }
  EXPECT_GE(clips.size(), 3U);
  EXPECT_GE(rates.size(), 3U);
  for (const double count : steps) EXPECT_EQ(count, std::round(count));
  EXPECT_TRUE(clips.contains(10))
      << "the job does not clip, and the largest norm is nearest to that";
  for (const double clip : clips) EXPECT_TRUE(clip == 0 || (clip >= 0.1 && clip <= 10)) << clip;
  EXPECT_TRUE(rates.contains(1)) << "the job's own is the first";
  EXPECT_TRUE(memory_of(replica).at("policy").is_null());
}

// The shortest trial has ten clocks.
TEST(OnlineTuner, WhatIsReadAsAnEpochBeginsNeedsTrialsOfTwo) {
  spec::JobOptions job = small_job();
  job.train.method = "graded";
  job.tune.online = true;
  job.tune.options = {"train.graded.beta:1:4"};
  EXPECT_NE(testing::refusal_of([&] { Replica replica(job); }).find("tune.clock_epochs = 0.2"),
            std::string::npos);
  job.tune.clock_epochs = 0.2;
  job.tune.budget = 0.5;
  Replica long_enough(job);
}

TEST(OnlineTuner, KnowsEverySearcher) {
  spec::JobOptions job;
  EXPECT_EQ(OptionSet(job).find("tune.searcher")->choices, tune::searchers().names());
}

TEST(OnlineTuner, BranchesHoldTheWholeState) {
  spec::JobOptions job = small_job();
  job.train.ema_decay = 0.9;
  job.optimizer.name = "adamw";
  job.optimizer.lr = 0.01;
  Replica replica(job);
  replica.host_all();
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  const auto step = [&] {
    replica.compute(replica.num_ranks(), sum);
    replica.apply(sum);
  };
  for (int i = 0; i < 3; ++i) step();
  const auto before = replica.state().digest();
  JobState& state = replica.state();
  state.save_branch("a", "tuner");
  const int64_t at = state.counters.step;
  for (int i = 0; i < 4; ++i) step();
  EXPECT_NE(replica.state().digest(), before);
  state.take_branch("a", "tuner");
  EXPECT_EQ(state.counters.step, at + 4);  // protocol steps go on
  EXPECT_EQ(state.counters.updates, 3);
  // What is equal is shared: a second branch at the same place has nothing of its own.
  state.save_branch("b", "tuner");
  EXPECT_EQ(state.branches().at("b").own_bytes(), 0U);
  state.drop_branches();
  state.counters.step = at;
  state.counters.samples_forward = state.counters.samples_backward = 3 * 16;
  state.counters.flops = state.counters.flops * 3 / 7;
  // Everything else is as it was. The metric window belongs to no branch.
  Replica again(job);
  again.host_all();
  std::vector<float> other(sum.size());
  for (int i = 0; i < 3; ++i) {
    again.compute(again.num_ranks(), other);
    again.apply(other);
  }
  again.state().window = state.window = {};
  EXPECT_EQ(nlohmann::json(state.values()).dump(), nlohmann::json(again.state().values()).dump());
  const auto here = state.tensors(), there = again.state().tensors();
  ASSERT_EQ(here.size(), there.size());
  for (size_t i = 0; i < here.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(here[i].bytes, there[i].bytes)) << here[i].name;
}

}  // namespace
}  // namespace ductile::train
