#include "ductile/sched/job_agent.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"

namespace ductile::sched {
namespace {

using nlohmann::json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
const PerfParams kTruth{0.05, 0.002, 0.3, 0.01, 0.05, 0.002, 1.6};
const PolicyTraits kPublished{}, kMeasures{.measures = true};

AgentFacts two_types() {
  AgentFacts facts;
  facts.application = "net";
  facts.requested_replicas = 4;
  facts.requested_batch = 256;
  facts.types = {{"t4", 1, {128, 4096, 16, 512}, 100}, {"a100", 1, {128, 4096, 16, 1024}, 400}};
  return facts;
}

StepSample reading(int32_t nodes, int32_t replicas, int32_t local, double factor = 1) {
  return {nodes, replicas, local, factor * gradient_seconds(kTruth, local),
          factor * step_seconds(kTruth, nodes, replicas, local, 0)};
}

// The next of a random sequence: a few shapes and batches, each reading off by some noise.
void observe_something(JobAgent& agent, Rng& rng) {
  const int32_t replicas = 1 << rng.below(4), nodes = replicas > 2 ? 1 + rng.below(2) : 1;
  const int32_t local = 32 << rng.below(4);
  double factor = std::exp(0.1 * rng.normal());
  if (rng.below(10) == 0) factor *= 3;  // a straggler
  agent.observe(static_cast<int32_t>(rng.below(2)), reading(nodes, replicas, local, factor));
  if (rng.below(3) == 0) agent.observe({0.01, 5 * std::exp(0.3 * rng.normal())});
}

std::string seen(JobAgent& agent) {
  JobView view;
  agent.describe(view);
  agent.models(view);
  json out = {{"state", agent.state()}};
  if (view.noise) out["noise"] = {view.noise->sqr, view.noise->var};
  for (int32_t t = 0; t < 2; ++t) {
    const TypeModel& type = view.types[t];
    out["models"].push_back({type.fitted, type.max_profiled, type.perf.alpha_c, type.perf.beta_n});
    if (type.steps) out["models"].push_back(type.steps->step_seconds(2, 3, 48));
    for (const int32_t replicas : {1, 3, 8}) {
      const BatchChoice choice = agent.choose_batch({t, replicas > 4 ? 2 : 1, replicas});
      out["choices"].push_back({choice.goodput, choice.local_batch, choice.accumulation});
    }
  }
  return dump_json(out);
}

TEST(JobAgent, WhatCannotBeTrueIsRefusedAndChangesNothing) {
  for (const PolicyTraits& traits : {kPublished, kMeasures}) {
    FitCache fits;
    AgentFacts facts = two_types();
    facts.types.push_back({"none", 0, {1, 1, 1, 1}, 0});
    JobAgent clean(facts, traits, fits), plagued(facts, traits, fits);
    const StepSample good = reading(1, 2, 64);
    std::vector<StepSample> bad;
    for (const double v : {kNan, kInf, -kInf, -1.0, 0.0, 1e300, -1e300, 1e-300, 2e6}) {
      bad.push_back(good), bad.back().step_seconds = v;
      bad.push_back(good), bad.back().gradient_seconds = v;
      bad.push_back(good), bad.back().gradient_seconds = bad.back().step_seconds = v;
    }
    for (const int32_t n : {0, -1, INT32_MIN, INT32_MAX}) {
      bad.push_back(good), bad.back().nodes = n;
      bad.push_back(good), bad.back().replicas = n;
      bad.push_back(good), bad.back().local_batch = n;
    }
    int64_t refusals = 0;
    Rng a(1), b(1);
    for (int i = 0; i < 60; ++i) {
      observe_something(clean, a);
      observe_something(plagued, b);
      for (const StepSample& sample : bad)
        EXPECT_EQ(plagued.observe(i % 2, sample), Observed::refused) << sample.step_seconds;
      for (const int32_t type : {-1, 2, 3, INT32_MAX, INT32_MIN})
        EXPECT_EQ(plagued.observe(type, good), Observed::refused) << type;
      for (const double v : {kNan, kInf, -1.0, 1e300})
        for (const GradientNoise& noise : {GradientNoise{v, 1}, GradientNoise{1, v}})
          EXPECT_EQ(plagued.observe(noise), Observed::refused) << v;
      refusals += static_cast<int64_t>(bad.size()) + 5 + 8;
    }
    EXPECT_EQ(clean.refused(), 0);
    EXPECT_EQ(plagued.refused(), refusals);
    json healthy = clean.state(), after = plagued.state();
    healthy.erase("refused"), after.erase("refused");
    EXPECT_EQ(dump_json(after), dump_json(healthy));
    for (int32_t t = 0; t < 2; ++t)
      EXPECT_EQ(plagued.choose_batch({t, 1, 2}).local_batch,
                clean.choose_batch({t, 1, 2}).local_batch);
  }
}

TEST(JobAgent, ARestoredAgentGoesOnToTheBit) {
  for (const PolicyTraits& traits : {kPublished, kMeasures})
    for (const bool share : {false, true})
      for (uint64_t cut = 0; cut < 24; ++cut) {
        SCOPED_TRACE(fmt::format("cut {}, measures {}, shared {}", cut, traits.measures, share));
        FitCache fits, other_fits;
        SharedMeasurements all, others;
        JobAgent agent(two_types(), traits, fits, share ? &all : nullptr);
        Rng rng(cut);
        for (uint64_t i = 0; i < 2 * cut; ++i) {
          observe_something(agent, rng);
          // Models are made now and then: what was not yet looked at is saved, too.
          if (i % 3 == 0) agent.choose_batch({0, 1, 2});
        }
        JobAgent restored(two_types(), traits, other_fits, share ? &others : nullptr);
        others.restore(parse_json(dump_json(all.state()), "s", ErrorCode::data_loss), "s");
        restored.restore(parse_json(dump_json(agent.state()), "s", ErrorCode::data_loss), "s");
        EXPECT_EQ(dump_json(restored.state()), dump_json(agent.state()));
        Rng same = rng;
        for (int i = 0; i < 10; ++i) {
          EXPECT_EQ(seen(restored), seen(agent));
          observe_something(agent, rng);
          observe_something(restored, same);
        }
        EXPECT_EQ(dump_json(others.state()), dump_json(all.state()));
      }
}

TEST(JobAgent, ItsMemoryIsBounded) {
  FitCache fits;
  for (const PolicyTraits& traits : {kPublished, kMeasures}) {
    JobAgent agent(two_types(), traits, fits);
    size_t size = 0;
    for (int32_t i = 1; i <= 4000; ++i) {
      EXPECT_EQ(agent.observe(0, reading(1, 1 + i % 4, i)), Observed::fresh);
      if (i == 2000) size = dump_json(agent.state()).size();
    }
    EXPECT_LE(agent.state()["types"][0]["samples"].size(), Measurements::kMostSamples);
    EXPECT_LE(dump_json(agent.state()).size(), size + size / 10);
    // The newest are those that it keeps.
    EXPECT_EQ(agent.observe(0, reading(1, 1 + 4000 % 4, 4000)), Observed::known);
    EXPECT_EQ(agent.observe(0, reading(1, 1 + 1 % 4, 1)), Observed::fresh);
  }
}

// The published agent, as slowly as can be: the first reading of each configuration counts, and
// everything is computed anew for each answer.
TEST(JobAgent, ChoosesAsATwinThatRemembersNothingElse) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    FitCache fits;
    JobAgent agent(two_types(), kPublished, fits);
    std::vector<StepSample> first[2];
    std::optional<GradientNoise> noise;
    Rng rng(seed);
    for (int i = 0; i < 25; ++i) {
      const auto type = static_cast<int32_t>(rng.below(2));
      const int32_t nodes = 1 + rng.below(2), local = 32 << rng.below(3);
      const StepSample now = reading(nodes, 2 * nodes, local, std::exp(0.2 * rng.normal()));
      agent.observe(type, now);
      bool known = false;
      for (const StepSample& s : first[type])
        known = known || (s.nodes == nodes && s.local_batch == local);
      if (!known) first[type].push_back(now);
      if (rng.below(4) == 0) noise = GradientNoise{0.01, 2 + static_cast<double>(i)};
      if (noise) agent.observe(*noise);
      for (int32_t t = 0; t < 2; ++t) {
        const BatchLimits& limits = agent.facts().types[t].limits;
        BatchChoice wanted = split_batch(limits, 3, 128);
        if (noise && !first[t].empty())
          wanted = best_batch(fit_perf(first[t]).perf, *noise, limits, 1, 3);
        const BatchChoice chosen = agent.choose_batch({t, 1, 3});
        EXPECT_EQ(chosen.goodput, wanted.goodput);
        EXPECT_EQ(chosen.local_batch, wanted.local_batch);
        EXPECT_EQ(chosen.accumulation, wanted.accumulation);
      }
    }
  }
}

TEST(JobAgent, ReadingsOfOneConfigurationAreAveragedByTheirLogarithms) {
  FitCache fits;
  JobAgent agent(two_types(), kMeasures, fits);
  Rng rng(3);
  double sum = 0;
  for (int n = 1; n <= 40; ++n) {
    const double factor = std::exp(0.05 * rng.normal());
    sum += std::log(factor);
    agent.observe(0, reading(1, 2, 64, factor));
    agent.observe(0, reading(1, 2, 64, 5));  // a straggler's: left out
    const double mean = agent.state()["types"][0]["samples"][0][4];
    EXPECT_NEAR(std::log(mean / reading(1, 2, 64).step_seconds), sum / n, 1e-12);
  }
}

TEST(JobAgent, EndsAtABatchThatItHasMeasuredAndThatIsBest) {
  for (const int32_t replicas : {2, 4, 8}) {
    FitCache fits;
    JobAgent agent(two_types(), kMeasures, fits);
    const GradientNoise noise{0.01, 4};
    agent.observe(noise);
    const int32_t nodes = replicas > 4 ? 2 : 1;
    BatchChoice choice;
    int tries = 0;
    do {
      choice = agent.choose_batch({0, nodes, replicas});
      ASSERT_LT(++tries, 12);
    } while (agent.observe(0, reading(nodes, replicas, choice.local_batch)) == Observed::fresh);
    const BatchLimits& limits = agent.facts().types[0].limits;
    const double best = best_batch(kTruth, noise, limits, nodes, replicas).goodput;
    EXPECT_GT(
        goodput(kTruth, noise, limits, nodes, replicas, choice.local_batch, choice.accumulation),
        0.97 * best);
  }
}

TEST(JobAgent, AGradientThatNoiseHidesStaysNoisy) {
  FitCache fits;
  JobAgent agent(two_types(), kMeasures, fits);
  for (int i = 0; i < 5; ++i) agent.observe({0, 5});
  EXPECT_NEAR(agent.noise()->var, 5, 1e-9);
}

TEST(JobAgent, JobsOfOneApplicationShareWhatTheyMeasure) {
  FitCache fits;
  SharedMeasurements all;
  AgentFacts other = two_types();
  other.application = "other";
  AgentFacts nameless = two_types();
  nameless.application = "";
  JobAgent first(two_types(), kMeasures, fits, &all), second(two_types(), kMeasures, fits, &all);
  JobAgent stranger(other, kMeasures, fits, &all), loner(nameless, kMeasures, fits, &all);
  JobAgent published(two_types(), kPublished, fits, &all);
  first.observe(0, reading(1, 2, 64));
  const auto fitted = [](JobAgent& agent) {
    JobView view;
    agent.describe(view);
    agent.models(view);
    EXPECT_FALSE(view.types[1].fitted);
    return view.types[0].fitted;
  };
  EXPECT_TRUE(fitted(first));
  EXPECT_TRUE(fitted(second));
  EXPECT_FALSE(fitted(stranger));
  EXPECT_FALSE(fitted(loner));
  EXPECT_FALSE(fitted(published));
}

// Every part of a state replaced by something else is either refused as data_loss, and then nothing
// has changed, or is a state that works.
TEST(JobAgent, ADamagedStateIsRefusedByName) {
  FitCache fits;
  JobAgent source(two_types(), kMeasures, fits);
  Rng rng(9);
  for (int i = 0; i < 12; ++i) observe_something(source, rng);
  source.choose_batch({0, 1, 2});
  source.choose_batch({1, 1, 2});
  const json good = source.state();
  const json flat = good.flatten();
  ASSERT_GT(flat.size(), 30u);
  int refused = 0, accepted = 0;
  const auto attempt = [&](const json& damaged) {
    JobAgent agent(two_types(), kMeasures, fits);
    agent.observe(0, reading(1, 2, 48));
    const std::string before = dump_json(agent.state());
    try {
      agent.restore(damaged, "job 7's agent");
      ++accepted;
      agent.choose_batch({0, 2, 8});
      agent.observe(0, reading(2, 8, 32));
      agent.choose_batch({1, 1, 1});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data_loss) << e.what();
      EXPECT_TRUE(e.message().starts_with("job 7's agent")) << e.what();
      EXPECT_EQ(dump_json(agent.state()), before);
      ++refused;
    }
  };
  for (const auto& [path, value] : flat.items())
    for (const json& other : {json(nullptr), json("text"), json(-1), json(1e300), json(0.5),
                              json::array(), json::object()}) {
      json damaged = good;
      damaged[json::json_pointer(path)] = other;
      attempt(damaged);
    }
  EXPECT_GT(refused, 300);
  EXPECT_GT(accepted, 0);
  refused = accepted = 0;
  for (const auto& [key, value] : good.items()) {
    json damaged = good;
    damaged.erase(key);
    attempt(damaged);
    damaged[key + "_"] = value;
    attempt(damaged);
  }
  for (const json& damaged : {json(), json(5), json::array(), json::object()}) attempt(damaged);
  EXPECT_EQ(accepted, 1);  // without the noise, of which there may be none
  SharedMeasurements all;
  for (const json& damaged : {json(), json::object(), json({1}), json({{"a", "b", 3}})})
    EXPECT_THROW(all.restore(damaged, "measurements"), Error);
}

TEST(JobAgent, APipelineIsWhatThePolicyCanScale) {
  AgentFacts facts = two_types();
  facts.pipeline_batch = 16;
  facts.requested_replicas = 2;
  facts.types[0].unit = 8;
  facts.types[1].unit = 2;
  FitCache fits;
  JobView rigid, free;
  JobAgent(facts, kPublished, fits).describe(rigid);
  JobAgent(facts, {.scales_pipelines = true}, fits).describe(free);
  EXPECT_EQ(rigid.scaling, Scaling::rigid);
  EXPECT_EQ(rigid.requested_devices, 4);  // where it takes the fewest
  EXPECT_EQ(rigid.min_devices, 4);
  EXPECT_EQ(rigid.max_devices, 4);
  EXPECT_FALSE(rigid.types[0].allowed);
  EXPECT_TRUE(rigid.types[1].allowed);
  EXPECT_EQ(free.scaling, Scaling::adaptive);
  EXPECT_EQ(free.min_devices, 1);
  EXPECT_TRUE(free.types[0].allowed);
  EXPECT_EQ(free.types[0].unit, 8);
  EXPECT_EQ(JobAgent(facts, kPublished, fits).choose_batch({1, 1, 2}).local_batch, 16);
}

}  // namespace
}  // namespace ductile::sched
