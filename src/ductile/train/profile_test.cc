// What `ductile profile` says of a model against what is known of it otherwise.
#include "ductile/train/profile.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/nn/model.h"
#include "ductile/nn/operators.h"
#include "ductile/nn/threads.h"
#include "ductile/spec/optimizers.h"
#include "ductile/spec/stage_state.h"
#include "ductile/train/environment.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/state.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

spec::JobOptions job_of(const std::string& model) {
  spec::JobOptions job;
  job.model.name = model;
  job.data.train_limit = 64;
  job.data.test_limit = 16;
  job.train.batch_size = 16;
  job.train.threads = 1;
  prepare_torch(job);
  return job;
}

Json profile_of(const spec::JobOptions& job, ProfileOptions options = {}) {
  options.rounds = 1;
  return profile(
      job, options, [](const Json&) {}, [] { return false; });
}

TEST(FitAffine, FindsALineAndStaysAboveZero) {
  Rng rng(1, 2);
  for (int i = 0; i < 100; ++i) {
    const double fixed = rng.uniform(0, 1), each = rng.uniform(0.01, 1);
    std::vector<MeasuredShare> measured;
    for (const double n : {1.0, 2.0, 8.0, 64.0}) measured.push_back({n, fixed + each * n});
    const AffineFit fit = fit_affine(measured);
    EXPECT_NEAR(fit.fixed, fixed, 1e-9);
    EXPECT_NEAR(fit.per_sample, each, 1e-9);
  }
  const std::vector<MeasuredShare> bent = {{1, 0.5}, {2, 2}, {4, 8}};  // grows faster than a line
  EXPECT_EQ(fit_affine(bent).fixed, 0);
  EXPECT_GT(fit_affine(bent).per_sample, 0);
  const std::vector<MeasuredShare> falls = {{1, 2}, {2, 1}};
  EXPECT_EQ(fit_affine(falls).per_sample, 0);
  EXPECT_GT(fit_affine(falls).fixed, 0);
  const std::vector<MeasuredShare> one = {{4, 2}};
  EXPECT_EQ(fit_affine(one).per_sample, 0.5);
  const std::vector<MeasuredShare> nothing = {{1, 0}, {2, 0}};
  EXPECT_EQ(fit_affine(nothing).at(8), 0);
}

TEST(MostBytes, AreALineOrWhatWasMeasured) {
  const std::vector<MeasuredShare> line = {{1, 1100}, {2, 1200}, {8, 1800}};
  EXPECT_NEAR(most_bytes(line).at("fixed").get<double>(), 1000, 1);
  EXPECT_NEAR(most_bytes(line).at("per_sample").get<double>(), 100, 1);
  std::vector<MeasuredShare> kink;  // one kernel's matrix, and another one's samples
  for (const double n : {1.0, 4.0, 16.0, 64.0}) kink.push_back({n, std::max(1e6 + n, 5e4 * n)});
  const Json found = most_bytes(kink);
  EXPECT_EQ(found.at("samples"), Json::parse("[1.0, 4.0, 16.0, 64.0]"));
  EXPECT_EQ(found.at("bytes").at(1), 1000004.0);
  EXPECT_EQ(found.at("bytes").at(3), 3.2e6);
}

// Names, edges and bytes of weights are those of the model that a job trains.
TEST(Profile, HasTheOperatorsOfTheModel) {
  for (const std::string name : {"mlp", "cnn", "resnet8"}) {
    SCOPED_TRACE(name);
    const spec::JobOptions job = job_of(name);
    const Json graph = profile_of(job);
    const std::unique_ptr<nn::Model> model =
        nn::make_model(job.model, {.channels = 1, .height = 28, .width = 28, .num_classes = 10},
                       job.train.precision, 1);
    const nn::OperatorGraph operators = nn::training_operators(*model, 0);
    ASSERT_EQ(graph.at("ops").size(), operators.operators().size());
    size_t edges = 0;
    for (size_t i = 0; i < operators.operators().size(); ++i) {
      const nn::Operator& op = operators.operators()[i];
      const Json& found = graph.at("ops").at(i);
      EXPECT_EQ(found.at("name"), op.name);
      int64_t weights = 0;
      for (const nn::NamedTensor& p : op.parameters) weights += p.tensor.numel();
      EXPECT_EQ(found.at("parameter_bytes"), 4 * weights) << op.name;
      for (const nn::Source& source : op.inputs) edges += source.op != nn::kModelInput ? 1 : 0;
    }
    EXPECT_EQ(graph.at("edges").size(), edges);
  }
}

// Of an mlp every figure can be counted by hand: a linear layer holds its input and what its
// activation gives.
TEST(Profile, CountsWhatWaitsForTheBackwardPass) {
  spec::JobOptions job = job_of("mlp");
  job.model.hidden = {256, 128};
  const Json graph = profile_of(job);
  std::map<std::string, double> held;
  double sum = 0;
  for (const Json& op : graph.at("ops")) {
    held[op.at("name")] = op.at("activation_bytes");
    sum += op.at("activation_bytes").get<double>();
    EXPECT_LE(op.at("activation_bytes").get<double>(), 5 * 4 * 28 * 28) << op.at("name");
  }
  // The input of 784 floats, and both hidden layers once each as a matrix's result and as the
  // activation's.
  EXPECT_GE(sum, 4 * (784 + 256 + 128));
  EXPECT_LE(sum, 4 * (2 * 784 + 2 * 256 + 2 * 128 + 100)) << graph.dump(1);
}

// What has a matrix waits for its task; a fused layer with what it normalises, at least.
TEST(Profile, CountsBytesPassByPass) {
  const Json graph = profile_of(job_of("resnet8"));
  EXPECT_EQ(graph.at("counted"), true);
  int waiting = 0;
  for (const Json& op : graph.at("ops")) {
    const std::string name = op.at("name");
    const auto each = [](const Json& bytes) {
      return bytes.is_number() ? bytes.get<double>() : bytes.at("per_sample").get<double>();
    };
    EXPECT_EQ(op.contains("waiting_bytes"), op.at("parameter_bytes") > 0) << name;
    for (const char* pass : {"forward", "backward", "backward_input", "backward_weight"}) {
      EXPECT_TRUE(op.at("pass_bytes").contains(pass)) << name;
    }
    if (!op.contains("waiting_bytes")) continue;
    ++waiting;
    if (op.at("kind") != "linear") {
      EXPECT_GT(each(op.at("waiting_bytes")), 0) << name;
    }
  }
  EXPECT_GE(waiting, 8);
}

// Convolutions of the cnn with the pools behind them.
TEST(Profile, SaysWhichNeighboursAreDoneAtOnce) {
  if (std::string(nn::kernels_in_use()) == "none") GTEST_SKIP() << "ATen does all the work";
  std::set<std::string> fused;
  const Json graph = profile_of(job_of("cnn"));
  for (const Json& edge : graph.at("edges")) {
    if (edge.contains("fused")) fused.insert(edge.at("from").get<std::string>());
  }
  EXPECT_EQ(fused, (std::set<std::string>{"conv1", "conv2"}));
}

int64_t arrays_of(const spec::JobOptions& job) {
  const Ingredients parts = recipe_of(job)();
  const JobState state(*parts.model, job, parts.make_optimizer);
  return std::ssize(state.optimizer->state_names());
}

// Without torch it is known how much state a rule keeps: a plan is refused by it.
TEST(StageState, TheArraysOfEachRuleAreThoseThatItKeeps) {
  std::vector<spec::JobOptions> jobs(4, job_of("mlp"));
  jobs[0].optimizer.momentum = 0;
  jobs[1].optimizer.name = "muon";
  jobs[1].optimizer.muon.rest = "sgd";
  jobs[2].optimizer.name = jobs[3].optimizer.name = "nlcg";
  jobs[2].optimizer.nlcg.preconditioner = "none";
  jobs[3].optimizer.nlcg.update = "polak_ribiere";
  for (const std::string& name : spec::optimizers().names()) {
    jobs.push_back(job_of("mlp"));
    jobs.back().optimizer.name = name;
  }
  for (const spec::JobOptions& job : jobs) {
    EXPECT_EQ(spec::optimizer_arrays(job.optimizer), arrays_of(job)) << job.optimizer.name;
  }
}

// An average of the weights and their copies in half precision are state as well.
TEST(Profile, CountsTheStateOfTheJob) {
  spec::JobOptions job = job_of("mlp");
  EXPECT_EQ(profile_of(job).at("state_factor"), 4);
  job.optimizer.name = "adamw";
  job.train.ema_decay = 0.9;
  job.train.precision = "bf16";
  const Json graph = profile_of(job);
  EXPECT_EQ(graph.at("state_factor"), 5.5);
  EXPECT_EQ(graph.at("optimizer_factor"), 2);
  job.train.method = "pipelined";
  job.train.pipeline_exact = true;
  job.train.pipelined.micro_batches = 4;  // 4 and 2 and 1 of them: three sums
  EXPECT_EQ(spec::stage_state_factor(job), 7.5);
}

TEST(Profile, MeasuresTheSharesThatWereAskedFor) {
  const spec::JobOptions job = job_of("mlp");
  ProfileOptions options;
  options.shares = {4, 8, 1000};
  EXPECT_NO_THROW(profile_of(job, options));
  options.shares = {1000};
  try {
    profile_of(job, options);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("16 samples"), std::string::npos) << e.what();
  }
  for (const char* text : {R"({"shares":[0],"rounds":1})", R"({"shares":["a"],"rounds":1})",
                           R"({"shares":[1],"rounds":0})", R"({"shares":1,"rounds":1})"}) {
    EXPECT_THROW(ProfileOptions::from_json(Json::parse(text)), Error) << text;
  }
}

// What a plan is held against: the same for other weights, batches, rules and shares, and another
// one for other shapes of weights or samples.
TEST(Profile, SaysOfWhichModelItIs) {
  spec::JobOptions job = job_of("mlp");
  const Json own = profile_of(job).at("model");
  EXPECT_EQ(own.at("name"), "mlp");
  EXPECT_EQ(own.at("samples"), "float32 1x28x28");
  spec::JobOptions same = job;
  same.seed = 7;
  same.train.batch_size = 8;
  same.optimizer.name = "adamw";
  same.train.label_smoothing = 0.1;
  EXPECT_EQ(profile_of(same).at("model"), own);
  spec::JobOptions wider = job;
  wider.model.hidden.front() += 1;
  const Json other = profile_of(wider).at("model");
  EXPECT_EQ(other.at("operators"), own.at("operators"));
  EXPECT_NE(other.at("parameters"), own.at("parameters"));
  spec::JobOptions smaller = job;
  smaller.augment.crop = 24;
  EXPECT_EQ(profile_of(smaller).at("model").at("samples"), "float32 1x24x24");
  EXPECT_NE(profile_of(job_of("cnn")).at("model").at("operators"), own.at("operators"));
}

TEST(Profile, EndsWhereItIsInterrupted) {
  const spec::JobOptions job = job_of("mlp");
  EXPECT_THROW(profile(
                   job, {}, [](const Json&) {}, [] { return true; }),
               Error);
}

}  // namespace
}  // namespace ductile::train
