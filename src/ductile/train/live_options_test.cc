// Options that steps bring with them (spec/live_options.h).
#include "ductile/spec/live_options.h"

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/log_softmax.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/writer.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/replica.h"
#include "ductile/train/testing/watched_run.h"

namespace ductile::train {
namespace {

using Options = std::map<std::string, double>;
using ByUpdate = std::function<Options(int64_t updates)>;

// Brings the options that are chosen for the update after so many ones.
class Bringing final : public optim::RateControl {
 public:
  Bringing(const spec::JobOptions& job, ByUpdate options)
      : hyper_(optim::Hyper::of(job)), options_(std::move(options)) {}

  optim::Hyper next(const optim::Observed& observed, nlohmann::json&) const override {
    optim::Hyper hyper = hyper_;
    for (const auto& [key, value] : options_(observed.updates)) hyper.set(key, value);
    return hyper;
  }

 private:
  const optim::Hyper hyper_;
  const ByUpdate options_;
};

Recipe bringing(const spec::JobOptions& job, const ByUpdate& options) {
  return [=] {
    Ingredients given;
    given.rate_control = std::make_unique<Bringing>(job, options);
    return complete(std::move(given), job);
  };
}

ByUpdate from(int64_t update, const Options& options) {
  return [=](int64_t updates) { return updates >= update ? options : Options(); };
}

void advance_to(Replica& run, int64_t updates) {
  run.host_all();
  std::vector<float> sum(static_cast<size_t>(run.vector_size()));
  while (!run.done() && run.updates() < updates) {
    if (run.evaluation_due()) {
      run.record(run.evaluate([](int64_t) {}));
      continue;
    }
    run.compute(run.num_ranks(), sum);
    run.apply(sum);
  }
}

std::vector<float> weights_of(Replica& run) {
  const auto weights = run.state().flat.weights();
  return {weights.begin(), weights.end()};
}

// Three epochs of four updates.
spec::JobOptions short_job() {
  spec::JobOptions job = testing::selection_job("plain");
  job.schedule.name = "constant";
  job.data.train_limit = 96;
  job.train.batch_size = 24;
  job.train.virtual_ranks = 2;
  job.train.epochs = 3;
  job.train.selective.first_epochs = 0;
  return job;
}

// A job that reads the option, with a value of its own.
spec::JobOptions reader_of(const spec::LiveOption& option) {
  spec::JobOptions job = short_job();
  const std::string key(option.key);
  for (const char* rule : {"adam", "lars", "nadamw", "ademamix", "muon", "neumann", "nlcg"}) {
    if (!key.starts_with("optimizer." + std::string(rule) + ".")) continue;
    job.optimizer.name = rule;
    job.optimizer.lr = std::string(rule) == "lars" ? 1 : 0.02;
  }
  for (const char* method : {"selective", "infobatch", "graded"})
    if (key.starts_with("train." + std::string(method) + ".")) job.train.method = method;
  if (key == "optimizer.muon.rest_momentum") job.optimizer.muon.rest = "sgd";
  job.optimizer.nadamw.momentum_decay = 0.004;
  job.optimizer.neumann.warmup_epochs = 0.25;
  job.optimizer.neumann.reset_epochs = 1;
  job.optimizer.nlcg.line_search = "online";
  job.optimizer.nlcg.threshold = 0.001;
  job.train.graded.floor = 0.3;
  job.train.infobatch.end = job.train.graded.end = 1;
  if (key != "model.dropout") return job;
  job.data.format = "synthetic";
  job.data.synthetic.inputs = {"2*tokens:6:20"};
  job.augment.pad = 0;
  job.model.name = "mmt";
  job.model.layers = 1;
  job.model.heads = 2;
  job.model.dim = 8;
  job.model.dropout = 0.1;
  return job;
}

// Another value, which tells in a few updates.
double other_value(std::string_view key) {
  const std::map<std::string_view, double> values = {
      {"optimizer.clip_norm", 0.05},
      {"optimizer.adam.beta1", 0.5},
      {"optimizer.adam.beta2", 0.9},
      {"optimizer.adam.eps", 0.01},
      {"optimizer.lars.trust_coefficient", 0.01},
      {"optimizer.lars.eps", 1},
      {"optimizer.nadamw.momentum_decay", 0.05},
      {"optimizer.ademamix.alpha", 1},
      {"optimizer.ademamix.beta3", 0.9},
      {"optimizer.ademamix.warmup", 0.5},
      {"optimizer.muon.steps", 2},
      {"optimizer.muon.eps", 0.1},
      {"optimizer.muon.rest_lr", 0.3},
      {"optimizer.muon.rest_momentum", 0.2},
      {"optimizer.muon.renormalize_every", 2},
      {"optimizer.neumann.alpha", 0.1},
      {"optimizer.neumann.beta", 0.1},
      {"optimizer.neumann.gamma", 0.5},
      {"optimizer.neumann.mu_start", 0.85},
      {"optimizer.nlcg.threshold", 1000},
      {"train.label_smoothing", 0.2},
      {"train.selective.beta", 3},
      {"train.infobatch.ratio", 0.2},
      {"train.infobatch.end", 0},
      {"train.graded.beta", 5},
      {"train.graded.floor", 0.6},
      {"train.graded.unbias", 0.5},
      {"train.graded.end", 0},
      {"model.dropout", 0.4},
  };
  const auto found = values.find(key);
  if (found == values.end()) ADD_FAILURE() << "no other value of " << key << " here";
  return found == values.end() ? 0 : found->second;
}

TEST(LiveOptions, FromTheirStepOnARunIsThatOfAJobWhichHasThem) {
  constexpr int64_t kBefore = 2;
  for (const spec::LiveOption& option : spec::live_options()) {
    SCOPED_TRACE(option.key);
    const spec::JobOptions job = reader_of(option);
    const Options other = {{std::string(option.key), other_value(option.key)}};
    const spec::JobOptions changed = spec::with_options(job, other);
    Replica run(job, bringing(job, from(kBefore, other)));
    advance_to(run, 1000);
    // The same state, gone on with by the other job.
    Replica plain(job, bringing(job, from(0, {}))), twin(changed, bringing(changed, from(0, {})));
    advance_to(plain, kBefore);
    twin.take(plain.state().fork());
    twin.state().hyper = optim::Hyper::of(changed);
    advance_to(twin, 1000);
    EXPECT_EQ(twin.updates(), run.updates());
    EXPECT_EQ(weights_of(twin), weights_of(run));
    // The test can fail: the option matters.
    advance_to(plain, 1000);
    EXPECT_NE(weights_of(plain), weights_of(run));
  }
}

// Two workers with a virtual rank each, of which the second is another one from the fifth update
// on.
TEST(LiveOptions, TwoWorkersAndAJoinerObeyThemAsOneDoes) {
  for (const spec::LiveOption& option : spec::live_options()) {
    SCOPED_TRACE(option.key);
    const spec::JobOptions job = reader_of(option);
    const Options other = {{std::string(option.key), other_value(option.key)}};
    const Recipe recipe = bringing(
        job, [&](int64_t updates) { return updates >= 2 && updates != 7 ? other : Options(); });
    Replica alone(job, recipe), first(job, recipe);
    auto second = std::make_unique<Replica>(job, recipe);
    const auto host = [&](Replica& run, int worker) {
      run.host({{0, 1, 2}, run.vector_size()}, worker, nullptr);
    };
    host(first, 0);
    host(*second, 1);
    std::vector<float> sum(static_cast<size_t>(first.vector_size())), rest(sum.size());
    bool is_joined = false;
    while (!first.done()) {
      if (first.evaluation_due()) {
        const Evaluation result = first.evaluate([](int64_t) {});
        first.record(result);
        second->record(result);
        continue;
      }
      first.compute(1, sum);
      second->compute(1, rest);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += rest[i];
      first.apply(sum);
      second->apply(sum);
      if (is_joined || first.updates() < 5) continue;
      is_joined = true;
      second = std::make_unique<Replica>(job, recipe);
      second->take(first.state().fork());
      host(*second, 1);
    }
    advance_to(alone, 1000);
    EXPECT_EQ(first.state().digest(), alone.state().digest());
    EXPECT_EQ(second->state().digest(), alone.state().digest());
  }
}

TEST(LiveOptions, WithoutThemTheJobFileHoldsAgain) {
  spec::JobOptions job = short_job();
  job.optimizer.name = "muon";
  const Options other = {{"optimizer.muon.steps", 2}, {"train.label_smoothing", 0.3}};
  const auto middle = [&](int64_t updates) {
    return updates >= 3 && updates < 6 ? other : Options();
  };
  Replica run(job, bringing(job, middle)), twin(job, bringing(job, from(0, {})));
  advance_to(run, 6);
  twin.take(run.state().fork());
  EXPECT_TRUE(run.state().hyper.options.empty());
  EXPECT_EQ(run.state().last_hyper.options, other);
  advance_to(run, 1000);
  advance_to(twin, 1000);
  EXPECT_EQ(twin.state().digest(), run.state().digest());
}

// The loop written out: label smoothing as a mixture of targets, clipping and momentum as their
// formulas.
TEST(LiveOptions, SmoothingAndClippingAreThoseOfALoopByHand) {
  spec::JobOptions job = short_job();
  job.optimizer.name = "sgd";
  job.optimizer.weight_decay = 0;
  job.optimizer.momentum = 0.9;
  job.train.virtual_ranks = 1;
  const ByUpdate options = [](int64_t updates) {
    Options out;
    if (updates >= 3 && updates < 9) out["train.label_smoothing"] = 0.3;
    if (updates >= 5) out["optimizer.clip_norm"] = updates < 7 ? 0.2 : 0.1;
    return out;
  };
  Replica run(job, bringing(job, options));
  advance_to(run, 1000);
  testing::Bench twin(job);
  data::LoaderTask task;
  task.seed = static_cast<uint64_t>(job.seed);
  task.batch_size = job.train.batch_size;
  data::Loader stream(twin.parts.train_set, twin.parts.augment, job.loader, task);
  const std::span<float> weights = twin.state.flat.weights();
  std::vector<float> velocity(weights.size());
  int clipped = 0;
  for (int64_t updates = 0; updates < 12; ++updates) {
    const auto batch = stream.next();
    Options now = options(updates);
    const double share = now["train.label_smoothing"], most = now["optimizer.clip_norm"];
    const at::Tensor logs = at::log_softmax(twin.parts.model->forward(input_of(*batch).clone()), 1);
    const at::Tensor labels = labels_of(*batch).clone();
    const at::Tensor own = logs.gather(1, labels.unsqueeze(1)).squeeze(1);
    const at::Tensor losses = own.mul(-(1 - share)).sub(logs.mean(at::IntArrayRef{1}).mul(share));
    const std::vector<float> gradient = twin.gradient(losses.mean());
    double squares = 0;
    for (const float g : gradient) squares += static_cast<double>(g) * g;
    const double norm = std::sqrt(squares);
    const double factor = most > 0 && norm > most ? most / norm : 1;
    clipped += factor < 1 ? 1 : 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      velocity[i] = static_cast<float>(0.9 * velocity[i] + factor * gradient[i]);
      weights[i] -= static_cast<float>(job.optimizer.lr * velocity[i]);
    }
  }
  EXPECT_GT(clipped, 4) << "there is something to clip";
  EXPECT_EQ(run.updates(), 12);
  testing::expect_same_weights(run, twin);
}

// A checkpoint of the run, of which `change` makes what another version would have written.
void save(
    Replica& run, const fs::path& folder,
    const std::function<void(nlohmann::json&)>& change = [](nlohmann::json&) {}) {
  ckpt::CheckpointWriter writer(folder, ckpt::WriterOptions{});
  nlohmann::json values = run.values();
  change(values);
  writer.save(run.step(), values, run.state().tensors());
  writer.wait();
}

TEST(LiveOptions, AreInTheCheckpointAndObeyedByWhoeverReadsIt) {
  spec::JobOptions job = short_job();
  job.optimizer.name = "adamw";
  job.optimizer.lr = 0.02;
  const Options brought = {{"optimizer.adam.eps", 0.01}, {"train.label_smoothing", 0.2}};
  const auto recipe = bringing(job, from(3, brought));
  Replica run(job, recipe), resumed(job, recipe);
  advance_to(run, 5);
  const nlohmann::json hyper = run.values().at("hyper");
  EXPECT_EQ(hyper.at("options").get<Options>(), brought);
  const TempFolder folder;
  save(run, folder.path());
  resumed.restore(ckpt::Checkpoint::open(folder.path(), run.step()));
  EXPECT_EQ(resumed.state().digest(), run.state().digest());
  advance_to(run, 1000);
  advance_to(resumed, 1000);
  EXPECT_EQ(resumed.state().digest(), run.state().digest());
}

TEST(LiveOptions, ACheckpointOfAnOlderVersionIsOneInWhichNoStepBroughtAny) {
  const spec::JobOptions job = short_job();
  Replica run(job), resumed(job);
  advance_to(run, 5);
  const TempFolder folder;
  save(run, folder.path(), [](nlohmann::json& values) {
    EXPECT_FALSE(values.at("hyper").contains("options")) << "nothing to take out";
    EXPECT_EQ(values["job"]["tune"].erase("options"), 1U);
    for (const char* key : {"convolutions", "later_width"})
      EXPECT_EQ(values["job"]["model"].erase(key), 1U);
  });
  resumed.restore(ckpt::Checkpoint::open(folder.path(), run.step()));
  advance_to(run, 1000);
  advance_to(resumed, 1000);
  EXPECT_EQ(resumed.state().digest(), run.state().digest());
}

TEST(LiveOptions, WhatNoStepMayBringIsRefused) {
  const auto refusal = [](const spec::JobOptions& job, const Options& options) {
    return testing::refusal_of([&] { Replica run(job, bringing(job, from(0, options))); });
  };
  const spec::JobOptions job = short_job();
  EXPECT_NE(refusal(job, {{"train.epochs", 4}}).find("train.epochs"), std::string::npos);
  EXPECT_NE(refusal(job, {{"train.label_smoothing", 2}}).find("between 0 and 1"),
            std::string::npos);
  spec::JobOptions stages = short_job();
  stages.train.method = "pipelined";
  EXPECT_NE(refusal(stages, {{"train.label_smoothing", 0.1}}).find("stages"), std::string::npos);
}

}  // namespace
}  // namespace ductile::train
