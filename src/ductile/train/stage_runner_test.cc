// train.method = "pipelined": the same bits for every number of workers, killed, resized and
// resumed, and for every cut; the loss of the plain method.
#include "ductile/train/stage_runner.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/base/options.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/nn/operators.h"
#include "ductile/run/diary.h"
#include "ductile/run/folder.h"
#include "ductile/run/trace.h"
#include "ductile/spec/model_identity.h"
#include "ductile/train/data_form.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/planned_model.h"
#include "ductile/train/replica.h"
#include "ductile/train/same_job.h"
#include "ductile/train/testing/local_cluster.h"
#include "ductile/train/testing/stage_jobs.h"

namespace ductile::train {
namespace {

using testing::disturb;
using testing::LocalCluster;
using testing::OneRun;
using testing::run_serial;
using testing::sharded_job;
using testing::small_job;
using testing::weights_of;

TEST(Stages, EveryCutAndScheduleHasTheSameBits) {
  for (const char* model : {"mlp", "cnn"}) {
    const auto whole = weights_of(*run_serial(small_job(model, 1)));
    for (const int64_t stages : {2, 3, 4}) {
      spec::JobOptions job = small_job(model, stages);
      EXPECT_EQ(weights_of(*run_serial(job)), whole) << model << " in " << stages;
      job.train.pipelined.orders.assign(static_cast<size_t>(stages), "F3B3W3");
      EXPECT_EQ(weights_of(*run_serial(job)), whole) << model << " in " << stages << ", split";
    }
  }
}

// A torch::nn::Sequential in a library of the user's, with a layer that draws.
TEST(Stages, AUsersSequentialIsCutBetweenItsChildren) {
  spec::JobOptions job = small_job("custom", 1);
  job.model.library = SEQUENTIAL_MODEL;
  const auto whole = weights_of(*run_serial(job));
  job.train.virtual_ranks = 3;
  using Stages = std::vector<std::string>;
  for (const Stages& stages : {Stages{"flatten hidden", "norm relu", "dropout out"},
                               Stages{"flatten", "hidden norm relu dropout", "out"}}) {
    job.train.pipelined.stages = stages;
    EXPECT_EQ(weights_of(*run_serial(job)), whole) << stages[0];
  }
}

TEST(Stages, ThePlainMethodOnAsManyPartsComesToTheSameLoss) {
  for (const char* model : {"mlp", "cnn"}) {
    spec::JobOptions job = small_job(model, 2);
    const double stages = run_serial(job)->state().loss.value_or(-1);
    job.train.method = "plain";
    job.train.virtual_ranks = 3;
    const double plain = run_serial(job)->state().loss.value_or(-2);
    // The running statistics are those of parts in turn, and not their mean: the loss reads none.
    EXPECT_NEAR(stages, plain, 1e-5 * std::abs(plain)) << model;
  }
}

// A model of several inputs at a size for tests, and what it reads.
spec::JobOptions branched_job(const std::string& model, int64_t stages) {
  spec::JobOptions job = small_job(model.c_str(), stages);
  job.data.format = "synthetic";
  job.data.synthetic.samples = 96;
  job.data.synthetic.test_samples = 16;
  job.data.synthetic.classes = 4;
  job.model.layers = 1;
  job.model.heads = 2;
  job.model.dim = 8;
  if (model == "mmt") job.data.synthetic.inputs = {"3*tokens:6:11"};
  if (model == "dlrm") job.data.synthetic.inputs = {"2*vector:6", "2*indices:3:20"};
  if (model == "candle-uno") job.data.synthetic.inputs = {"3*vector:6"};
  return job;
}

constexpr const char* kBranched[] = {"mmt", "dlrm", "candle-uno"};

// A stage for each branch, and one for what joins them.
std::vector<std::string> stages_of_branches(const spec::JobOptions& job) {
  const Ingredients parts = recipe_of(job)();
  std::map<std::string, std::string> branches;
  std::string rest;
  const nn::OperatorGraph graph = nn::operators_of(*parts.model);
  for (const nn::Operator& op : graph.operators()) {
    const bool branch = op.name.starts_with("branches.");
    std::string& names = branch ? branches[op.name.substr(0, op.name.find('.', 9))] : rest;
    names += (names.empty() ? "" : " ") + op.name;
  }
  std::vector<std::string> out;
  for (const auto& [name, ops] : branches) out.push_back(ops);
  out.push_back(rest);
  return out;
}

TEST(Stages, BranchesInStagesOfTheirOwnHaveTheBitsOfOneStage) {
  for (const char* model : kBranched) {
    const auto whole = weights_of(*run_serial(branched_job(model, 1)));
    spec::JobOptions job = branched_job(model, 1);
    job.train.pipelined.stages = stages_of_branches(job);
    const auto stages = job.train.pipelined.stages.size();
    EXPECT_GE(stages, 4U) << model;
    job.train.virtual_ranks = static_cast<int64_t>(stages);
    EXPECT_EQ(weights_of(*run_serial(job)), whole) << model;
    job.train.pipelined.orders.assign(stages, "F3B3W3");
    EXPECT_EQ(weights_of(*run_serial(job)), whole) << model << ", split";
    const double in_stages = run_serial(job)->state().loss.value_or(-1);
    job.train.pipelined = {};
    job.train.method = "plain";
    job.train.virtual_ranks = 3;
    const double plain = run_serial(job)->state().loss.value_or(-2);
    EXPECT_NEAR(in_stages, plain, 1e-5 * std::abs(plain)) << model;
  }
}

// The labels are a teacher's, so there is something to learn, beyond what is seen.
TEST(Stages, TheLossOfSeveralInputsFallsOnHeldOutSamples) {
  for (const char* model : kBranched) {
    spec::JobOptions job = branched_job(model, 2);
    job.data.train_limit = job.data.test_limit = 0;
    job.data.synthetic.samples = 2400;
    job.data.synthetic.test_samples = 600;
    job.model.hidden = {32};
    job.model.dim = 16;
    job.optimizer.name = "adamw";
    job.optimizer.lr = 0.01;
    job.train.epochs = 8;
    const auto replica = run_serial(job);
    const double loss = replica->evaluate([](int64_t) {}).loss;
    EXPECT_LT(loss, 0.8 * std::log(4.0)) << model;  // of guesses
  }
}

TEST(Stages, NeitherWorkersNorKillsNorResizesChangeABit) {
  const spec::JobOptions job = small_job("cnn", 4);
  constexpr int64_t kSteps = 8;
  const OneRun alone(job);
  LocalCluster undisturbed(alone.folder, job, recipe_of(job));
  undisturbed.start(1);
  ASSERT_EQ(undisturbed.finish().phase, control::Phase::finished);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const OneRun run(job);
    disturb(run, job, kSteps, seed);
    EXPECT_EQ(run.digest(), alone.digest()) << "seed " << seed;
  }
}

// What the stages did is recorded where it is asked for, changes no bit, and is what they were
// ordered to do.
// Tensors lie in the memory that workers share; it goes with the last of them, however they ended.
TEST(Stages, NothingOfAnArenaStaysBehind) {
  const spec::JobOptions job = small_job("cnn", 4);
  const OneRun run(job);
  disturb(run, job, 8, 3);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    EXPECT_EQ(line.find("ductile-arena"), std::string::npos) << line;
}

TEST(Stages, RecordedStepsAreThoseOfTheOrdersAndChangeNoBit) {
  spec::JobOptions job = small_job("cnn", 3);
  job.train.pipelined.orders.assign(3, "F3B3W3");
  const OneRun alone(job);
  alone.go_on(job, 3, 8, /*to_its_end=*/true);
  EXPECT_TRUE(run::read_trace(alone.folder).empty());
  job.train.pipelined.trace_steps = 2;
  for (const int64_t workers : {1, 3}) {
    const OneRun recorded(job);
    recorded.go_on(job, workers, 8, /*to_its_end=*/true);
    EXPECT_EQ(recorded.digest(), alone.digest()) << workers;
    const auto steps = run::read_trace(recorded.folder);
    ASSERT_EQ(steps.size(), 2U) << workers;
    for (size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(steps[s].step, static_cast<int64_t>(3 + s));
      std::map<int, std::string> orders;
      std::map<int, double> ends;
      std::set<int> hosts;
      bool travels = false;
      for (const run::StageInterval& i : steps[s].intervals) {
        if (i.kind == "forward") orders[i.stage] += "F" + std::to_string(i.micro_batch);
        if (i.kind == "backward") orders[i.stage] += "B" + std::to_string(i.micro_batch);
        if (i.kind == "weights") orders[i.stage] += "W" + std::to_string(i.micro_batch);
        travels = travels || i.kind == "transfer";
        hosts.insert(i.worker);
        EXPECT_GE(i.begin, ends[i.stage]) << "intervals of stage " << i.stage << " overlap";
        EXPECT_GE(i.end, i.begin);
        ends[i.stage] = i.end;
      }
      EXPECT_EQ(orders.size(), 3U);
      EXPECT_EQ(steps[s].memory.size(), 3U);
      for (const auto& [stage, bytes] : steps[s].memory) EXPECT_GT(bytes, 0) << "stage " << stage;
      for (const auto& [stage, order] : orders)
        EXPECT_EQ(order, "F0F1F2B0B1B2W0W1W2") << "stage " << stage;
      EXPECT_EQ(travels, workers > 1);
      EXPECT_EQ(static_cast<int64_t>(hosts.size()), workers);
    }
  }
}

// The first step of each generation, and its workers.
std::vector<std::pair<int64_t, int64_t>> generations(const run::RunFolder& folder) {
  std::vector<std::pair<int64_t, int64_t>> out;
  run::for_each_diary_line(folder.events_file(), [&](const nlohmann::json& line) {
    if (line.value("event", "") != "generation") return;
    const auto text = line.at("text").get<std::string>();
    int64_t number = 0, step = 0, workers = 0;
    const int read =
        std::sscanf(text.c_str(), "generation %" SCNd64 " from step %" SCNd64 " with %" SCNd64,
                    &number, &step, &workers);
    ASSERT_EQ(read, 3) << text;
    out.emplace_back(step, workers);
  });
  return out;
}

// Only the step under way is done again, to the same bits. DUCTILE_STAGE_KILLS: how many.
void kill_and_compare(spec::JobOptions job) {
  const char* const wanted = std::getenv("DUCTILE_STAGE_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 8;
  job.train.epochs = 1'000'000;
  job.checkpoint.every_steps = 1'000'000;  // it would hide a loss
  const OneRun run(job);
  LocalCluster cluster(run.folder, job, recipe_of(job));
  Rng rng(1);
  cluster.start(4);
  for (int done = 0; done < kills;) {
    cluster.run_to(cluster.step() + 1 + rng.below(3));
    const auto before = generations(run.folder);
    if (before.empty() || before.back().second < 3) continue;  // the state must outlive the kill
    const int64_t finished = cluster.step();
    cluster.kill_some(rng.below(100));
    ++done;
    cluster.run_to(finished + 2);
    const auto after = generations(run.folder);
    for (size_t g = before.size(); g < after.size(); ++g) {
      EXPECT_GE(after[g].first, finished) << "kill " << done;
    }
  }
  cluster.preempt();
  const auto newest = ckpt::open_latest(run.folder.checkpoints());
  ASSERT_TRUE(newest.checkpoint);
  Replica killed(job), undisturbed(job);
  killed.restore(*newest.checkpoint);
  undisturbed.host_all();
  std::vector<float> sum(static_cast<size_t>(undisturbed.vector_size()));
  while (undisturbed.updates() < killed.updates()) {
    undisturbed.compute(undisturbed.num_ranks(), sum);
    undisturbed.apply(sum);
  }
  EXPECT_EQ(weights_of(killed), weights_of(undisturbed));
  EXPECT_GT(generations(run.folder).size(), static_cast<size_t>(kills));
}

TEST(Stages, AKillCostsNoFinishedStep) { kill_and_compare(small_job("cnn", 4)); }

TEST(Stages, AKillCostsNoFinishedStepWhereTheNextWorkerHasACopyOfTheStagesState) {
  spec::JobOptions job = sharded_job();
  job.train.pipelined.stages = {"fc1", "fc2", "fc3", "fc4"};
  kill_and_compare(job);
}

TEST(Stages, ACheckpointOfOnePlanIsRestoredUnderOthers) {
  spec::JobOptions job = small_job("cnn", 4);
  const OneRun alone(job);
  LocalCluster undisturbed(alone.folder, job, recipe_of(job));
  undisturbed.start(1);
  ASSERT_EQ(undisturbed.finish().phase, control::Phase::finished);
  const OneRun run(job);
  int64_t at = 2;
  const std::vector<std::vector<std::string>> plans = {
      {},
      {"conv1", "pool1 conv2 pool2", "fc1", "fc2"},
      {"conv1 pool1 conv2 pool2 fc1 fc2", "", "", ""},
      {"conv1 pool1", "", "conv2 pool2 fc1", "fc2"}};
  for (const auto& stages : plans) {
    job.train.pipelined.stages = stages;
    if (!stages.empty()) job.train.pipelined.orders.assign(4, at == 4 ? "F3B3W3" : "F3B3");
    run.go_on(job, at / 2, at, &stages == &plans.back());
    at += 2;
  }
  EXPECT_EQ(run.digest(), alone.digest());
  job.train.pipelined.orders.clear();
  job.train.pipelined.micro_batches = 2;
  LocalCluster other(run.folder, job, recipe_of(job));
  other.start(1);
  EXPECT_NE(other.finish().reason.find("train.pipelined.micro_batches"), std::string::npos);
}

TEST(Stages, AResumedRunMayBeCutOtherwise) {
  const auto json = [](std::vector<std::string> stages) {
    spec::JobOptions job;
    job.train.method = "pipelined";
    job.train.virtual_ranks = static_cast<int64_t>(stages.size());
    job.train.pipelined.stages = std::move(stages);
    return OptionSet(job).to_json();
  };
  check_same_job(json({"fc1 fc2", "fc3"}), json({"fc1", "fc2 fc3"}), /*thread_invariant=*/true);
  check_same_job(json({"fc1 fc2", "fc3"}), json({"fc1", "fc2", "fc3"}), true);
}

// What a run was planned anew for says that its result is another one; nobody else may change it.
TEST(Stages, ARunThatWasPlannedAnewGoesOnByAnyPlan) {
  spec::JobOptions saved = small_job("mlp", 4), now = small_job("mlp", 2);
  saved.optimizer.lr = now.optimizer.lr;
  now.train.pipelined.micro_batches = 4;
  const auto check = [&] {
    check_same_job(OptionSet(saved).to_json(), OptionSet(now).to_json(), true);
  };
  EXPECT_THROW(check(), Error);
  now.train.pipelined.replans = 1;
  EXPECT_NO_THROW(check());
  now.optimizer.lr *= 2;
  EXPECT_THROW(check(), Error) << "all else is the same job";
  now.optimizer.lr = saved.optimizer.lr;
  saved.train.pipelined.replans = 1;
  EXPECT_THROW(check(), Error) << "it was planned anew before that checkpoint";
}

TEST(Stages, ACheckpointOfFourStagesIsRestoredByARunThatWasPlannedAnewForTwo) {
  spec::JobOptions job = small_job("mlp", 4);
  job.model.hidden = {12, 9, 7, 5};
  const OneRun run(job);
  run.go_on(job, 4, 4, /*to_its_end=*/false);
  const auto before = run.newest(job);
  spec::JobOptions anew = job;
  anew.train.virtual_ranks = 2;
  anew.train.pipelined.replans = 1;
  EXPECT_EQ(weights_of(*run.newest(anew)), weights_of(*before));
  run.go_on(anew, 2, 8, /*to_its_end=*/true);
  EXPECT_EQ(run.newest(anew)->step(), 8);
}

// Pipelines side by side: each is what a virtual rank of the plain method is, if no operator draws.
TEST(Stages, PipelinesOfOneStageAreVirtualRanksOfThePlainMethod) {
  for (const char* model : {"mlp", "cnn"}) {
    for (const int64_t ranks : {2, 3, 4}) {
      spec::JobOptions job = small_job(model, ranks);
      job.train.pipelined.replicas = ranks;
      job.train.pipelined.micro_batches = 1;
      const auto pipelines = run_serial(job);
      job.train.method = "plain";
      const auto plain = run_serial(job);
      EXPECT_EQ(weights_of(*pipelines), weights_of(*plain)) << model << ", " << ranks;
      EXPECT_FLOAT_EQ(static_cast<float>(pipelines->state().loss.value_or(-1)),
                      static_cast<float>(plain->state().loss.value_or(-2)));
    }
  }
}

// Of so many stages, each with so many replicas.
spec::JobOptions replicated_job(const char* model, int64_t stages, int64_t replicas) {
  spec::JobOptions job = small_job(model, stages * replicas);
  job.train.pipelined.replicas = replicas;
  job.train.pipelined.micro_batches = 2;
  return job;
}

TEST(Stages, EveryCutOfSeveralPipelinesHasTheSameBitsWhereAnyWillDo) {
  for (const char* model : {"mlp", "cnn"}) {
    for (const int64_t replicas : {2, 3}) {
      const auto whole = weights_of(*run_serial(replicated_job(model, 1, replicas)));
      for (const int64_t stages : {2, 3, 4}) {
        spec::JobOptions job = replicated_job(model, stages, replicas);
        if (!spec::any_cut_will_do(job)) continue;
        EXPECT_EQ(weights_of(*run_serial(job)), whole) << model << " in " << stages;
        job.train.pipelined.orders.assign(static_cast<size_t>(stages), "F2B2W2");
        EXPECT_EQ(weights_of(*run_serial(job)), whole) << model << " in " << stages << ", split";
      }
    }
  }
}

// Workers that host a stage of one pipeline and another one of the next take turns without waiting
// for one another in a circle.
TEST(Stages, SeveralPipelinesHaveTheSameBitsOnAnyWorkersThroughKillsAndResizes) {
  for (const auto& [stages, replicas] : {std::pair{2, 2}, {2, 3}, {3, 2}}) {
    const spec::JobOptions job = replicated_job("cnn", stages, replicas);
    const auto whole = weights_of(*run_serial(job));
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const OneRun run(job);
      disturb(run, job, 8, seed);
      EXPECT_EQ(weights_of(*run.newest(job)), whole)
          << stages << " x " << replicas << ", seed " << seed;
    }
  }
}

TEST(Stages, ARunOfSeveralPipelinesKeepsACutThatShapesItsBits) {
  const auto json = [](std::vector<std::string> stages) {
    spec::JobOptions job;
    job.train.method = "pipelined";
    job.train.pipelined.replicas = 2;
    job.train.virtual_ranks = 2 * static_cast<int64_t>(stages.size());
    job.train.pipelined.stages = std::move(stages);
    return OptionSet(job).to_json();
  };
  check_same_job(json({"fc1 fc2", "fc3"}), json({"fc1", "fc2 fc3"}), /*thread_invariant=*/true);
  EXPECT_THROW(check_same_job(json({"fc1 fc2", "fc3", ""}), json({"fc1", "fc2", "fc3"}), true),
               Error);
}

TEST(Stages, APlanThatDoesNotFitTheModelIsRefusedByName) {
  spec::JobOptions job = small_job("mlp", 2);
  const auto refusal = [&] {
    try {
      const Replica replica(job);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  job.train.pipelined.stages = {"fc1 fc2", "fc9"};
  EXPECT_NE(refusal().find("\"fc9\", which the model does not have"), std::string::npos);
  job.train.pipelined.stages = {"fc1", "fc3"};
  EXPECT_NE(refusal().find("operator fc2 is in no stage"), std::string::npos) << refusal();
  job.train.pipelined.stages = {"fc1 fc2", "fc3"};
  EXPECT_EQ(refusal(), "");
  job.train.pipelined.orders = {"F3B3", "FBFB"};
  EXPECT_NE(refusal().find("stage 1: its order has 2 F"), std::string::npos) << refusal();
}

// What this process had resident at most since the last reset, in bytes; 0: the kernel does not
// say.
int64_t most_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::atoll(line.c_str() + 6) * 1024;
  }
  return 0;
}

bool reset_most_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

// `ductile submit --plan` asks on a machine that may have no room for the model.
TEST(Stages, APlanIsLookedAtWithoutTheFirstWeights) {
  spec::JobOptions job = small_job("mlp", 2);
  job.model.hidden.assign(7, 3072);  // 236 MB, in layers that malloc() does not keep
  job.train.pipelined.stages = {"fc1 fc2 fc3 fc4", "fc5 fc6 fc7 fc8"};
  job.train.shard_optimizer = true;
  EXPECT_EQ(fault_of_stages(job), "");  // which makes what libtorch makes once
  if (!reset_most_resident()) GTEST_SKIP() << "no /proc/self/clear_refs here";
  const int64_t before = most_resident();
  EXPECT_EQ(fault_of_stages(job), "");
  const int64_t blank = most_resident() - before;
  job.train.shard_optimizer = false;  // a whole model everywhere
  EXPECT_EQ(fault_of_stages(job), "");
  const int64_t whole = most_resident() - before;
  EXPECT_GT(whole, 200 << 20) << "else this test would see nothing";
  // A copy of all was made once. Some systems give memory to zeros that are only read, too.
  EXPECT_LT(blank, whole - (150 << 20));
  job.train.shard_optimizer = true;
  job.train.pipelined.stages[0] = "fc1 fc2 fc3 fc19";
  EXPECT_NE(fault_of_stages(job).find("fc19"), std::string::npos);
}

// A run that has begun goes on, and comes to the same bits, but nobody wants to begin one.
TEST(Stages, MoreOfThemThanOperatorsAreAFault) {
  spec::JobOptions job = small_job("cnn", 7);
  EXPECT_EQ(fault_of_stages(job), "") << "conv1 pool1 conv2 pool2 fc1 fc2 loss";
  job.train.virtual_ranks = 8;
  EXPECT_NE(fault_of_stages(job).find("8 stages of 7 operators"), std::string::npos)
      << fault_of_stages(job);
}

// The plan of a model whose operators bear the same names would train, or end late.
TEST(Stages, APlanOfAnotherModelIsRefusedByNameBeforeTheFirstStep) {
  spec::JobOptions job = small_job("mlp", 2);
  job.train.pipelined.stages = {"fc1 fc2", "fc3"};
  const auto identity = [](const spec::JobOptions& of) {
    const Ingredients parts = recipe_of(of)();
    return identity_of(of, nn::training_operators(*parts.model, 0),
                       DataForm::of(of, parts.train_set->info(), parts.augment));
  };
  const auto refusal = [](const spec::JobOptions& of) {
    try {
      const Replica replica(of);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return std::string(e.what());
    }
    return std::string();
  };
  job.train.pipelined.model = spec::to_texts(identity(job));
  EXPECT_EQ(refusal(job), "");
  spec::JobOptions wider = job;
  wider.model.hidden[0] += 1;
  const std::string text = refusal(wider);
  EXPECT_NE(
      text.find("the plan is for another model (mlp) than the job's (mlp): its parameters are "
                "6 of "),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("ductile profile"), std::string::npos) << text;
  EXPECT_EQ(text.find("its operators"), std::string::npos) << "these are the same: " << text;
  wider.train.pipelined.model.clear();
  EXPECT_EQ(refusal(wider), "") << "a plan that says nothing";
  // A run may get a plan that says it, or go on with one that does not.
  spec::JobOptions silent = job;
  silent.train.pipelined.model.clear();
  EXPECT_NO_THROW(check_same_job(OptionSet(silent).to_json(), OptionSet(job).to_json(), true));
  EXPECT_NO_THROW(check_same_job(OptionSet(job).to_json(), OptionSet(silent).to_json(), true));
}

}  // namespace
}  // namespace ductile::train
