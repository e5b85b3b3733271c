#include "ductile/optim/hyper.h"

#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/base/rng.h"
#include "ductile/optim/optimizer.h"
#include "ductile/optim/rate_control.h"
#include "ductile/optim/schedule.h"

namespace ductile::optim {
namespace {

TEST(Hyper, SurvivesJsonToTheBit) {
  Rng rng(3);
  for (int i = 0; i < 1000; ++i) {
    Hyper hyper;
    for (const HyperField& f : hyper_fields()) hyper.*f.field = rng.normal() * 1e-3;
    hyper.batch_size = static_cast<int64_t>(rng.below(1 << 30));
    hyper.staleness = rng.below(65);
    for (int64_t n = rng.below(4); n > 0; --n)
      hyper.options["optimizer.option" + std::to_string(n)] = rng.normal() * 1e-3;
    const std::string text = to_json(hyper).dump();
    EXPECT_EQ(hyper_from_json(nlohmann::json::parse(text)), hyper) << text;
  }
}

TEST(Hyper, NamesTheFieldThatIsMissingOrWrong) {
  const nlohmann::json whole = to_json(Hyper{});
  for (const auto& [name, value] : whole.items()) {
    nlohmann::json wrong = whole;
    wrong[name] = "much";
    nlohmann::json missing = whole;
    missing.erase(name);
    for (const nlohmann::json& bad : {wrong, missing}) {
      try {
        hyper_from_json(bad);
        ADD_FAILURE() << name;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
        EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
      }
    }
  }
  EXPECT_THROW(hyper_from_json(nullptr), Error);
}

TEST(Hyper, OptionsAreFieldsOrStandByTheirKeysAndAbsentOnesLeaveNoTrace) {
  spec::JobOptions job;
  Hyper hyper = Hyper::of(job);
  EXPECT_FALSE(to_json(hyper).contains("options")) << "as older versions wrote it, and read";
  for (const HyperField& f : hyper_fields()) {
    EXPECT_NE(OptionSet(job).find(f.key), nullptr) << f.key;
    hyper.set(f.key, 0.25);
    EXPECT_EQ(hyper.*f.field, 0.25) << f.key;
  }
  EXPECT_TRUE(hyper.options.empty());
  hyper.set("train.label_smoothing", 0.1);
  EXPECT_EQ(hyper.options.at("train.label_smoothing"), 0.1);
  nlohmann::json bad = to_json(hyper);
  bad["options"]["train.label_smoothing"] = "much";
  EXPECT_THROW(hyper_from_json(bad), Error);
  bad["options"] = nlohmann::json::array();
  EXPECT_THROW(hyper_from_json(bad), Error);
}

TEST(RateControl, TheScheduleIsThePureFunctionAndLeavesTheRestAlone) {
  spec::JobOptions job;
  job.optimizer.momentum = 0.8;
  job.train.batch_size = 96;
  job.train.staleness = 2;
  job.schedule.warmup_epochs = 1;
  const auto control = make_rate_control(job);
  nlohmann::json memory = nlohmann::json::object();
  for (int64_t step = 0; step <= 50; ++step) {
    const auto at = static_cast<double>(step);
    const Hyper hyper = control->next({.position = at, .total = 50, .steps_per_epoch = 10}, memory);
    EXPECT_EQ(hyper.lr, learning_rate(job.schedule, job.optimizer.lr, at, 50, 10));
    EXPECT_EQ(hyper.momentum, 0.8);
    EXPECT_EQ(hyper.batch_size, 96);
    EXPECT_EQ(hyper.staleness, 2);
  }
  EXPECT_TRUE(memory.empty());
}

TEST(RateControl, TheTableMakesEachOfItsRowsAndNamesThemWhereOneIsUnknown) {
  spec::JobOptions job;
  for (const RateControlEntry& entry : rate_controls()) {
    job.train.rate_control = entry.name;
    EXPECT_NE(make_rate_control(job), nullptr);
  }
  job.train.rate_control = "sheddule";
  EXPECT_THROW(make_rate_control(job), Error);
}

using Noises = std::vector<std::optional<noise::GradientNoise>>;

// A run of the control of that name: what it chooses after each of `noises`, as a replica asks it.
std::vector<Hyper> chosen_by_noise(const spec::JobOptions& job, const Noises& noises,
                                   int64_t samples) {
  const auto control = make_rate_control(job);
  nlohmann::json memory = nlohmann::json::object();
  std::vector<Hyper> out;
  Hyper last = Hyper::of(job);
  for (size_t i = 0; i < noises.size(); ++i) {
    Observed seen;
    seen.updates = static_cast<int64_t>(i);
    seen.position = static_cast<double>(i);
    seen.total = 1000;
    seen.steps_per_epoch = samples / job.train.batch_size;
    seen.last = last;
    seen.noise = noises[i];
    out.push_back(last = control->next(seen, memory));
  }
  return out;
}

spec::JobOptions noise_job() {
  spec::JobOptions job;
  job.schedule.name = "constant";
  job.optimizer.lr = 0.1;
  job.train.batch_size = 32;
  job.train.virtual_ranks = 4;
  job.train.rate_control = "noise";
  job.train.noise.patience = 2;
  return job;
}

// The noise scale is 32 var / sqr: 320 samples. AdaScale's gain is written out as in its paper.
TEST(NoiseControl, DoublesTheBatchUpToTheNoiseAndTheRateByAdaScale) {
  const noise::GradientNoise noise{.sqr = 0.1, .var = 1};
  const auto hypers = chosen_by_noise(noise_job(), Noises(10, noise), 1 << 20);
  const std::vector<int64_t> batches{32, 32, 64, 64, 128, 128, 256, 256, 256, 256};
  for (size_t i = 0; i < hypers.size(); ++i) {
    EXPECT_EQ(hypers[i].batch_size, batches[i]) << i;
    const double s = static_cast<double>(batches[i]) / 32;
    EXPECT_DOUBLE_EQ(hypers[i].lr, 0.1 * (1 + 0.1) / (1 / s + 0.1)) << i;
  }
}

TEST(NoiseControl, KeepsItsBounds) {
  const noise::GradientNoise loud{.sqr = 1e-6, .var = 1};
  const auto largest = [&](const spec::JobOptions& job, int64_t samples) {
    return chosen_by_noise(job, Noises(100, loud), samples).back().batch_size;
  };
  spec::JobOptions job = noise_job();
  EXPECT_EQ(largest(job, 1 << 20), 256) << "eight times the first one";
  job.train.noise.max_batch = 100;
  EXPECT_EQ(largest(job, 1 << 20), 64);
  job.train.noise.max_batch = 1 << 20;
  EXPECT_EQ(largest(job, 300), 256) << "an epoch";
  job.train.noise.factor = 1e-6;
  EXPECT_EQ(largest(job, 1 << 20), 32);
  job.train.noise = {.patience = 60};
  EXPECT_EQ(largest(job, 1 << 20), 64);
}

TEST(NoiseControl, WithoutNoiseTheBatchStays) {
  const auto hypers = chosen_by_noise(noise_job(), Noises(10), 1 << 20);
  for (const Hyper& hyper : hypers) {
    EXPECT_EQ(hyper.batch_size, 32);
    EXPECT_EQ(hyper.lr, 0.1);
  }
}

TEST(NoiseControl, OtherRulesThanSgdGoByTheSquareRoot) {
  spec::JobOptions job = noise_job();
  job.optimizer.name = "adamw";
  const auto hypers =
      chosen_by_noise(job, Noises(10, noise::GradientNoise{.sqr = 0.1, .var = 1}), 1 << 20);
  EXPECT_EQ(hypers.back().batch_size, 256);
  EXPECT_DOUBLE_EQ(hypers.back().lr, 0.1 * std::sqrt(8.0));
}

// A change of momentum, decay or betas between two steps is that of the rule with these options.
TEST(Hyper, ComesWithEveryStep) {
  ParamLayout layout;
  layout.add("a.weight", {25, 40}, false);
  const auto size = static_cast<size_t>(layout.total_size());
  for (const OptimizerEntry& entry : optimizers()) {
    spec::OptimizerOptions first{.name = std::string(entry.name)}, second = first;
    second.momentum = 0.5;
    second.weight_decay = 0.02;
    second.adam.beta1 = 0.8;
    second.adam.beta2 = 0.9;
    std::vector<float> gradient(size, 0.5F), one(size, 0.25F), two = one;
    const auto changed = make_optimizer(first, layout), twin = make_optimizer(second, layout);
    const auto start = make_optimizer(first, layout);
    StepInput in{.weights = one, .gradient = gradient, .hyper = Hyper::of(first)};
    changed->step(in);
    // The twin takes over weights and state, and has the other options from the start.
    in.weights = two;
    start->step(in);
    for (size_t i = 0; i < start->state().size(); ++i) {
      std::ranges::copy(start->state()[i].values, twin->state()[i].values.begin());
    }
    std::ranges::copy(start->scalars(), twin->scalars().begin());
    twin->set_num_steps(1);
    in.hyper = Hyper::of(second);
    twin->step(in);
    const std::vector<float> before = one;
    in.weights = one;
    changed->step(in);
    EXPECT_EQ(one, two) << entry.name;
    in.hyper = Hyper::of(first);
    std::vector<float> other = before;
    in.weights = other;
    start->step(in);
    EXPECT_NE(one, other) << entry.name;
  }
}

TEST(Hyper, MomentumThatBeginsInMidRunIsRefusedWhereThereIsNoBufferForIt) {
  ParamLayout layout;
  layout.add("a.weight", {2, 5}, false);
  const auto size = static_cast<size_t>(layout.total_size());
  std::vector<float> weights(size), gradient(size);
  const auto sgd = make_optimizer({.name = "sgd", .momentum = 0}, layout);
  StepInput in{.weights = weights, .gradient = gradient, .hyper = {.lr = 0.1}};
  sgd->step(in);
  in.hyper.momentum = 0.9;
  EXPECT_THROW(sgd->step(in), Error);
}

}  // namespace
}  // namespace ductile::optim
