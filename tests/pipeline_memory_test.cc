// The memory that a plan counts for its stages, beside what libtorch's allocator gives them when
// the real executor carries the plan out, a stage on each of several ranks. How many gradients wait
// until others take them depends on these others' speed, and is left out on both sides: messages
// are out before the next task begins. What is left depends on the plan alone, and is held to 5 %.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "ductile/base/files.h"
#include "ductile/base/rng.h"
#include "ductile/base/testing.h"
#include "ductile/comm/inproc.h"
#include "ductile/graph/formats.h"
#include "ductile/nn/operators.h"
#include "ductile/parallel/pipeline.h"
#include "ductile/parallel/tensor_split.h"
#include "ductile/plan/evaluate.h"
#include "ductile/plan/schedule.h"
#include "ductile/train/data_form.h"
#include "ductile/train/environment.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/profile.h"
#include "ductile/train/state.h"

namespace ductile {
namespace {

using parallel::Pipeline;
using parallel::PipelineHost;

constexpr int64_t kShare = 8, kMicroBatches = 4;

spec::JobOptions job_of(const std::string& model, const fs::path& folder) {
  spec::JobOptions job;
  job.model.name = model;
  job.model.hidden = {256, 192, 128};
  job.model.layers = 2;
  job.model.heads = 2;
  job.model.dim = 32;
  job.train.batch_size = kShare;
  job.train.threads = 1;
  job.data.train_limit = 32;
  job.data.test_limit = 8;
  if (model == "gpt") {
    std::vector<uint16_t> tokens(4000);
    Rng rng(1, 2);
    for (uint16_t& t : tokens) t = static_cast<uint16_t>(rng.below(20));
    const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size());
    job.data.format = "tokens";
    for (std::string* path : {&job.data.path, &job.data.test_path}) {
      *path = (folder / (path == &job.data.path ? "train.bin" : "test.bin")).string();
      write_file_atomic(*path, bytes);
    }
    job.data.tokens.sequence_length = 16;
  }
  if (model == "mmt" || model == "dlrm" || model == "candle-uno") {
    job.data.format = "synthetic";
    job.data.synthetic.samples = 32;
    job.data.synthetic.test_samples = 8;
    job.data.synthetic.classes = 4;
    if (model == "mmt") job.data.synthetic.inputs = {"3*tokens:16:11"};
    if (model == "dlrm") job.data.synthetic.inputs = {"2*vector:64", "2*indices:3:20"};
    if (model == "candle-uno") job.data.synthetic.inputs = {"3*vector:64"};
  }
  return job;
}

// Everything that a job is profiled with, and carried out.
struct Subject {
  const spec::JobOptions job;
  train::Ingredients parts;
  train::JobState state;
  const nn::OperatorGraph operators;
  nn::Tensors inputs;
  graph::Graph graph;

  explicit Subject(const spec::JobOptions& options)
      : job(options),
        parts(train::recipe_of(job)()),
        state(*parts.model, job, parts.make_optimizer),
        operators(nn::training_operators(*parts.model, 0)) {
    state.flat.refresh_half_weights();
    parts.model->train(true);
    const auto form = train::DataForm::of(job, parts.train_set->info(), parts.augment);
    inputs = form.blank_inputs(kShare);
    if (form.images() && train::lies_channels_last(job, *parts.model)) {
      inputs[0] = inputs[0].contiguous(at::MemoryFormat::ChannelsLast);
    }
    inputs.push_back(form.tokens ? inputs[0] : at::zeros({kShare}, at::kLong));
    train::ProfileOptions how;
    how.shares = {2, 4, 8};
    how.rounds = 1;
    graph = graph::graph_from_json(train::profile(
        job, how, [](const nlohmann::json&) {}, [] { return false; }));
  }
};

// Equal numbers of operators in each stage; letters of all micro-batches: one forward, one
// backward; all forward before all backward; the same with tasks for weights.
plan::Plan plan_of(const graph::Graph& graph, size_t num_stages, const std::string& kind) {
  plan::Plan plan;
  plan.batch = kShare * kMicroBatches;
  plan.stages.resize(num_stages);
  const size_t n = graph.ops.size();
  for (size_t i = 0; i < n; ++i) {
    plan.stages[i * num_stages / n].ops.push_back(static_cast<int>(i));
  }
  for (size_t s = 0; s < num_stages; ++s) {
    plan::Stage& stage = plan.stages[s];
    stage.micro_batch = kShare;
    stage.devices = {static_cast<int>(s)};
    const auto ahead = std::min<int64_t>(static_cast<int64_t>(num_stages - s), kMicroBatches);
    stage.in_flight = kShare * (kind == "1F1B" ? ahead : kMicroBatches);
    std::string order = "F4B4";
    if (kind == "split") order = "F4B4W4";
    if (kind == "1F1B") {
      order = std::string(static_cast<size_t>(ahead), 'F');
      for (int64_t i = ahead; i < kMicroBatches; ++i) order += "BF";
      order += std::string(static_cast<size_t>(ahead), 'B');
    }
    plan.orders.push_back(order);
  }
  if (kind == "split") plan.schedule = plan::ScheduleKind::zero_bubble;
  return plan;
}

// A step of four micro-batches on real threads, whose parts lie on these ranks. By rank. `settles`:
// no message waits at its sender.
std::vector<parallel::Trace> run(const nn::OperatorGraph& operators, const Pipeline& pipeline,
                                 const nn::Tensors& inputs, const std::vector<int>& hosts,
                                 bool settles) {
  const int num = *std::ranges::max_element(hosts) + 1;
  const auto forms = parallel::tensor_forms(operators, inputs);
  const auto shares = parallel::share_forms(operators, pipeline, inputs);
  comm::InprocOptions keeps;
  if (settles) keeps.eager_bytes = size_t{1} << 20;
  auto transports = comm::make_inproc_transports(num, keeps);
  std::vector<parallel::Trace> traces(static_cast<size_t>(num));
  std::vector<std::string> errors(static_cast<size_t>(num));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < num; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<size_t>(rank);
      try {
        train::prepare_thread();
        std::optional<PipelineHost> host;  // the communicator goes first
        const auto communicator = std::make_unique<comm::Communicator>(std::move(transports[r]));
        PipelineHost::Placement placement;
        placement.hosts = hosts;
        placement.rank = rank;
        placement.communicator = communicator.get();
        placement.forms = forms;
        placement.shares = shares;
        placement.settles = settles;
        host.emplace(operators, pipeline, placement);
        PipelineHost::Step step;
        step.inputs.assign(kMicroBatches, inputs);
        step.trace = &traces[r];
        host->run(step);
        communicator->barrier();
      } catch (const std::exception& e) {
        errors[r] = e.what();
      }
    });
  }
  threads.clear();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return traces;
}

Pipeline pipeline_of(const plan::Plan& plan) {
  Pipeline pipeline;
  pipeline.num_micro_batches = kMicroBatches;
  pipeline.split = plan.schedule == plan::ScheduleKind::zero_bubble;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::Stage& of_plan = plan.stages[s];
    Pipeline::Stage& stage = pipeline.stages.emplace_back();
    stage.ops.assign(of_plan.ops.begin(), of_plan.ops.end());
    stage.recompute.assign(of_plan.recompute.begin(), of_plan.recompute.end());
    stage.order = plan::order_from_letters(plan.orders[s], static_cast<int>(s), 3 * kMicroBatches);
    stage.replicas = of_plan.replicas;
  }
  return pipeline;
}

// By stage, what the executor took: of several replicas the first one. Each has a rank.
std::vector<double> run(const Subject& subject, const plan::Plan& plan) {
  std::vector<int> hosts, first;
  for (const plan::Stage& stage : plan.stages) {
    first.push_back(static_cast<int>(hosts.size()));
    for (int r = 0; r < stage.replicas; ++r) hosts.push_back(first.back() + r);
  }
  std::vector<parallel::Trace> traces =
      run(subject.operators, pipeline_of(plan), subject.inputs, hosts, /*settles=*/true);
  std::vector<double> out;
  for (size_t s = 0; s < first.size(); ++s) {
    parallel::Trace& trace = traces[static_cast<size_t>(first[s])];
    out.push_back(static_cast<double>(trace.memory[static_cast<int>(s)]));
  }
  return out;
}

// What the plan counts beside the state and gradients that wait for others.
std::vector<double> counted(const graph::Graph& graph, const plan::Plan& plan) {
  const int num = plan.num_devices();
  plan::PlanCosts costs = plan::plan_costs(graph, plan::uniform_devices(num, num, {}), plan);
  const plan::Orders orders = plan::make_orders(plan, costs);
  costs.sent = {};  // the judge leaves them out
  std::vector<double> out = plan::evaluate(plan, costs, orders).peak_memory;
  for (size_t s = 0; s < out.size(); ++s) out[s] -= costs.memory[s].fixed;
  return out;
}

// Figures of a graph are whole bytes a sample, rounded up; results of the model, a few numbers for
// each micro-batch, are not counted. These matter where a stage has little.
double rounding(const Subject& subject, double bytes) {
  if (bytes > 256 * 1024) return 0;
  return static_cast<double>(subject.operators.operators().size() * 4 * kShare * kMicroBatches) +
         static_cast<double>(kMicroBatches * 64);
}

void expect_alike(const Subject& subject, const plan::Plan& plan, const std::string& what) {
  const double tolerance = 0.05;
  const std::vector<double> real = run(subject, plan);
  const std::vector<double> by_plan = counted(subject.graph, plan);
  for (size_t s = 0; s < real.size(); ++s) {
    EXPECT_NEAR(by_plan[s], real[s], real[s] * tolerance + rounding(subject, real[s]))
        << fmt::format("{}: stage {} took {:.0f} bytes, the plan counts {:.0f}", what, s, real[s],
                       by_plan[s]);
  }
}

class PipelineMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(PipelineMemory, OfAPlanIsWhatTheExecutorTakes) {
  const TempFolder folder;
  const spec::JobOptions job = job_of(GetParam(), folder.path());
  train::prepare_torch(job);
  const Subject subject(job);
  ASSERT_TRUE(subject.graph.counted);
  for (const size_t num_stages : {size_t{2}, size_t{3}}) {
    for (const char* kind : {"1F1B", "GPipe", "split"}) {
      for (const bool recompute : {false, true}) {
        plan::Plan plan = plan_of(subject.graph, num_stages, kind);
        for (plan::Stage& stage : plan.stages) {
          if (recompute) stage.recompute = stage.ops;
        }
        expect_alike(subject, plan,
                     fmt::format("{}, {} stages, {}{}", GetParam(), num_stages, kind,
                                 recompute ? ", recomputed" : ""));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PipelineMemory,
                         ::testing::Values("mlp", "cnn", "resnet8", "gpt", "mmt", "dlrm",
                                           "candle-uno"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

class UnequalMemory : public ::testing::TestWithParam<const char*> {};

// One of two stages has two replicas, which have half of the samples each.
TEST_P(UnequalMemory, OfAPlanIsWhatAReplicaTakes) {
  const TempFolder folder;
  const spec::JobOptions job = job_of(GetParam(), folder.path());
  train::prepare_torch(job);
  const Subject subject(job);
  for (const char* kind : {"1F1B", "GPipe", "split"}) {
    for (const int first : {2, 1}) {
      for (const bool recompute : {false, true}) {
        plan::Plan plan = plan_of(subject.graph, 2, kind);
        plan.stages[0].replicas = first;
        plan.stages[1].replicas = 3 - first;
        int device = 0;
        for (plan::Stage& stage : plan.stages) {
          stage.devices.clear();
          for (int r = 0; r < stage.replicas; ++r) stage.devices.push_back(device++);
          if (recompute) stage.recompute = stage.ops;
        }
        expect_alike(subject, plan,
                     fmt::format("{}, {} and {} replicas, {}{}", GetParam(), first, 3 - first, kind,
                                 recompute ? ", recomputed" : ""));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, UnequalMemory, ::testing::Values("mlp", "cnn", "resnet8"));

// The plan means another split, whose first part has less: where it counts more than there is, the
// executor has no room either. What it counts too little is said and not known (note_on_split).
TEST(DividedMemory, OfAPlanIsLessThanWhatTheFirstPartTakes) {
  const TempFolder folder;
  const spec::JobOptions job = job_of("mlp", folder.path());
  train::prepare_torch(job);
  Subject subject(job);
  for (graph::Op& op : subject.graph.ops) {
    if (op.cost.parameter_bytes > 0) op.max_split = 2;
  }
  for (const char* kind : {"1F1B", "GPipe", "split"}) {
    plan::Plan plan = plan_of(subject.graph, 2, kind);
    const Pipeline whole = pipeline_of(plan);
    plan.stages[0].tensor = 2;
    plan.stages[0].devices = {0, 1};
    plan.stages[1].devices = {2};
    const parallel::TensorSplit divided =
        parallel::split_tensors(subject.operators, whole, std::vector<int64_t>{2, 1});
    const std::vector<parallel::Trace> traces =
        run(divided.graph, divided.pipeline, subject.inputs, divided.parts, /*settles=*/false);
    parallel::Trace shown;
    for (const parallel::Trace& trace : traces) divided.add_trace(trace, shown);
    const double by_plan = counted(subject.graph, plan)[0];
    const auto real = static_cast<double>(shown.memory.at(0));
    EXPECT_LT(by_plan, real) << kind;
    EXPECT_GT(by_plan, 0) << kind;
  }
}

}  // namespace
}  // namespace ductile
