#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "ductile/base/rng.h"
#include "ductile/comm/communicator.h"
#include "ductile/comm/inproc.h"
#include "ductile/graph/graph.h"
#include "ductile/nn/compat.h"
#include "ductile/nn/operator_model.h"
#include "ductile/nn/operators.h"
#include "ductile/parallel/message_memory.h"
#include "ductile/parallel/pipeline.h"
#include "ductile/plan/cost.h"
#include "ductile/plan/evaluate.h"
#include "ductile/plan/plan.h"

// Models, plans and placements drawn at random, and what they come to by several ways.
namespace ductile::parallel {
using nn::Source;
using nn::Tensors;

inline constexpr int64_t kWidth = 8, kClasses = 5;

inline nn::ModelArgs args_of(uint64_t seed) {
  nn::ModelArgs args;
  args.seed = seed;
  args.info = {1, 1, kWidth, kClasses, 0};
  return args;
}

// A graph of operators drawn from a seed: chains and branches, tensors with several readers, sums,
// norms, tied weights, dropout, two inputs of the model. In every other model no order of additions
// is left open (one_order).
class RandomModel : public nn::OperatorModel {
 public:
  explicit RandomModel(uint64_t seed, bool dropout) : OperatorModel(args_of(seed)) {
    Rng rng(seed, 1);
    const nn::Linear tied = add_linear("tied", kWidth, kWidth);
    std::vector<Source> made = {
        add_dense("first", add_linear("first", kWidth, kWidth), input(), true)};
    const auto number = static_cast<int>(3 + rng.below(9));
    const bool ordered = seed % 2 == 1;
    std::vector<int> reads{0};  // of each that was made
    bool tied_is_held = false;
    const auto any = [&](int times = 1) {
      reads.resize(made.size(), 0);
      for (;;) {
        const auto reach = std::min<uint32_t>(static_cast<uint32_t>(made.size()), 1 + rng.below(4));
        const size_t i = made.size() - 1 - rng.below(reach);
        if (ordered && reads[i] + times > 2) continue;
        reads[i] += times;
        return made[i];
      }
    };
    for (int i = 0; i < number; ++i) {
      const std::string name = fmt::format("op{}", i);
      const uint32_t kind = rng.below(6);
      switch (kind == 2 && ordered && tied_is_held ? 0 : kind) {
        case 0:
        case 1:
          made.push_back(add_dense(name, add_linear(name, kWidth, kWidth), any(), true));
          break;
        case 2:
          tied_is_held = true;
          made.push_back(add(name, "linear", {any()}, {tied.weight, tied.bias},
                             [tied](Inputs x) { return tied(x[0]).tanh(); }));
          break;
        case 3: {
          const at::Tensor scale = add_norm_parameter(name + ".scale", at::ones({kWidth}));
          made.push_back(add(name, "norm", {any(2)}, {scale}, [scale](Inputs x) {
            return x[0] * scale / (x[0].pow(2).mean(1, true) + 1).sqrt();
          }));
          break;
        }
        case 4:
          made.push_back(
              add(name, "add", {any(), any()}, {}, [](Inputs x) { return x[0] + x[1] * 0.5; }));
          break;
        default:
          made.push_back(add(
              name, "dropout", {any()}, {},
              [this, dropout](Inputs x) {
                return dropout ? at::dropout(x[0], 0.25, training()) : x[0].sin();
              },
              dropout));
      }
    }
    reads.resize(made.size(), 0);
    Source all = made.back();
    for (size_t i = 0; i + 1 < made.size(); ++i) {
      if (ordered ? reads[i] > 0 : i % 2 == 1) continue;
      all = add(fmt::format("join{}", i), "add", {all, made[i]}, {},
                [](Inputs x) { return x[0] + x[1]; });
    }
    finish(add_dense("head", add_linear("head", kWidth, kClasses), all, false));
  }
};

inline std::vector<Tensors> inputs_of(uint64_t seed, int64_t micro_batches, int64_t share) {
  at::manual_seed(seed);
  std::vector<Tensors> out;
  for (int64_t m = 0; m < micro_batches; ++m) {
    out.push_back({at::randn({share, kWidth}), at::randint(kClasses, {share}, at::kLong)});
  }
  return out;
}

// The graph that a planner would see.
inline graph::Graph graph_of(const nn::OperatorGraph& operators, Rng& rng) {
  graph::Graph out;
  out.name = "random";
  for (size_t i = 0; i < operators.operators().size(); ++i) {
    const nn::Operator& o = operators.operators()[i];
    graph::Op op;
    op.name = o.name;
    op.kind = o.kind;
    op.recomputable = true;
    op.cost.forward = {0.1, rng.uniform(0.1, 2.0)};
    op.cost.backward_input = {0.1, rng.uniform(0.1, 2.0)};
    op.cost.backward_weight = {0, o.parameters.empty() ? 0 : rng.uniform(0.1, 2.0)};
    op.cost.activation_bytes = 1;
    out.ops.push_back(op);
    std::set<Source> read(o.inputs.begin(), o.inputs.end());
    for (const Source& s : read) {
      if (s.op != nn::kModelInput) out.edges.push_back({s.op, static_cast<int>(i), s.output, 4});
    }
  }
  return out;
}

// Stages, kFkB or zero-bubble, orders by the planner's own rules.
inline plan::Plan random_plan(const graph::Graph& graph, int64_t micro_batches, int64_t share,
                              Rng& rng) {
  plan::Plan plan;
  plan.graph = graph.name;
  plan.batch = micro_batches * share;
  plan.schedule = rng.below(2) == 0 ? plan::ScheduleKind::kfkb : plan::ScheduleKind::zero_bubble;
  const auto most = static_cast<int>(1 + rng.below(5));
  std::vector<int> stage(graph.ops.size(), 0);
  std::vector<std::vector<int>> ops(static_cast<size_t>(most));
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    int lowest = 0;  // edges only go to equal or later stages, so there is no cycle
    for (const graph::Edge& e : graph.edges) {
      if (static_cast<size_t>(e.to) == i)
        lowest = std::max(lowest, stage[static_cast<size_t>(e.from)]);
    }
    stage[i] = std::min(most - 1, lowest + static_cast<int>(rng.below(3) == 0) +
                                      (lowest == 0 ? static_cast<int>(rng.below(2)) : 0));
    ops[static_cast<size_t>(stage[i])].push_back(static_cast<int>(i));
  }
  for (auto& of_stage : ops) {
    if (of_stage.empty()) continue;
    plan::Stage s;
    s.ops = of_stage;
    for (const int op : s.ops) {
      if (rng.below(5) == 0) s.recompute.push_back(op);
    }
    s.micro_batch = share;
    s.k = static_cast<int>(1 + rng.below(3));
    plan.stages.push_back(s);
  }
  const std::vector<int64_t> held = plan::in_flight_samples(plan::stage_graph(graph, plan), plan);
  for (size_t s = 0; s < held.size(); ++s) plan.stages[s].in_flight = held[s];
  return plan;
}

inline plan::Orders random_orders(const graph::Graph& graph, const plan::Plan& plan, Rng& rng) {
  plan::DeviceGroup group;
  const auto n = static_cast<int>(plan.stages.size());
  const plan::Devices devices = plan::uniform_devices(n, n, group);
  const plan::PlanCosts costs = plan::plan_costs(graph, devices, plan);
  if (plan.schedule == plan::ScheduleKind::kfkb) return plan::kfkb_orders(plan);
  return plan::zero_bubble_orders(plan, costs, rng.below(6));
}

using Gradients = std::map<std::string, at::Tensor>;

// The plan on the model. `graph` is what the plan was made for; its operators are the model's, by
// name. One device for each stage, and equal micro-batches.
inline Pipeline pipeline_of(const plan::Plan& plan, const plan::Orders& orders,
                            const graph::Graph& graph, const nn::OperatorGraph& operators) {
  Pipeline out;
  out.split = plan.schedule == plan::ScheduleKind::zero_bubble;
  out.num_micro_batches = plan.batch / plan.stages.at(0).micro_batch;
  const auto number = [&](graph::OpId op) {
    return operators.find(graph.ops.at(static_cast<size_t>(op)).name);
  };
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    Pipeline::Stage& stage = out.stages.emplace_back();
    for (const graph::OpId op : plan.stages[i].ops) stage.ops.push_back(number(op));
    for (const graph::OpId op : plan.stages[i].recompute) stage.recompute.push_back(number(op));
    stage.order = orders.at(i);
  }
  check(out, operators);
  return out;
}

struct Outcome {
  std::vector<Tensors> results;
  Gradients gradients;
};

inline Outcome run_serial(nn::Model& model, const nn::OperatorGraph& operators,
                          const Pipeline& pipeline, const PipelineHost::Step& step) {
  model.train(true);
  PipelineHost::Placement all;
  all.hosts.assign(pipeline.stages.size(), 0);
  all.forms = tensor_forms(operators, step.inputs[0]);
  PipelineHost host(operators, pipeline, all);
  Outcome out;
  out.results = host.run(step);
  out.gradients = host.gradients();
  return out;
}

struct RankOutcome {
  Outcome outcome;
  std::string error;
};

using Communicators = std::vector<std::unique_ptr<comm::Communicator>>;

inline Communicators inproc_communicators(int num_ranks) {
  Communicators out;
  for (auto& transport : comm::make_inproc_transports(num_ranks)) {
    out.push_back(std::make_unique<comm::Communicator>(std::move(transport)));
  }
  return out;
}

// By rank; empty: what comes lies in libtorch's memory.
using Memories = std::vector<std::shared_ptr<MessageMemory>>;

// Each stage on its rank; the ranks are threads that send messages. `lost`, if it is one of them,
// gets the inputs of the first micro-batch alone, and leaves in the middle of the step.
inline std::vector<RankOutcome> run_threads(const nn::OperatorGraph& operators,
                                            const Pipeline& pipeline,
                                            const PipelineHost::Step& step,
                                            const std::vector<int>& hosts,
                                            Communicators communicators, int lost = -1,
                                            const Memories& memories = {}) {
  std::vector<RankOutcome> out(communicators.size());
  const auto forms = tensor_forms(operators, step.inputs[0]);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < static_cast<int>(communicators.size()); ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<size_t>(rank);
      try {
        std::optional<PipelineHost> host;  // the communicator goes first
        const std::unique_ptr<comm::Communicator> communicator = std::move(communicators[r]);
        PipelineHost::Placement placement{hosts, rank, communicator.get(), forms};
        if (!memories.empty()) placement.memory = memories[r];
        host.emplace(operators, pipeline, std::move(placement));
        PipelineHost::Step own = step;
        if (rank == lost) {
          for (size_t m = 1; m < own.inputs.size(); ++m) own.inputs[m].clear();
        }
        out[r].outcome.results = host->run(own);
        out[r].outcome.gradients = host->gradients();
        communicator->barrier();
      } catch (const std::exception& e) {
        out[r].error = e.what();
      }
    });
  }
  threads.clear();
  return out;
}

// What all ranks have together.
inline Outcome run_ranks(const nn::OperatorGraph& operators, const Pipeline& pipeline,
                         const PipelineHost::Step& step, const std::vector<int>& hosts,
                         Communicators communicators, const Memories& memories = {}) {
  Outcome out;
  for (RankOutcome& of_rank : run_threads(operators, pipeline, step, hosts,
                                          std::move(communicators), /*lost=*/-1, memories)) {
    EXPECT_EQ(of_rank.error, "");
    if (!of_rank.outcome.results.empty()) out.results = of_rank.outcome.results;
    for (const auto& [name, value] : of_rank.outcome.gradients) {
      const auto [place, is_new] = out.gradients.try_emplace(name, value);
      EXPECT_TRUE(is_new || at::equal(place->second, value)) << name << " differs among holders";
    }
  }
  return out;
}

// Autograd over the whole model on each micro-batch.
inline Outcome run_plain(nn::Model& model, const PipelineHost::Step& step) {
  Outcome out;
  for (const Tensors& in : step.inputs) {
    const nn::LossOutput loss =
        model.loss(nn::forward(model, std::span(in).first(in.size() - 1)), in.back(), 0);
    out.results.push_back({loss.losses.detach()});
    Tensors leaves;
    std::vector<std::string> names;
    for (const nn::NamedTensor& p : model.parameters()) {
      if (!p.tensor.requires_grad()) continue;
      leaves.push_back(p.tensor);
      names.push_back(p.name);
    }
    const Tensors found = torch::autograd::grad({loss.losses.mean()}, leaves, {}, nn::kNone, false,
                                                /*allow_unused=*/true);
    for (size_t i = 0; i < found.size(); ++i) {
      if (!found[i].defined()) continue;
      at::Tensor& sum = out.gradients[names[i]];
      sum = sum.defined() ? sum + found[i] : found[i];
    }
  }
  return out;
}

inline void expect_equal(const Outcome& a, const Outcome& b, const std::string& what) {
  ASSERT_EQ(a.results.size(), b.results.size()) << what;
  for (size_t m = 0; m < a.results.size(); ++m) {
    EXPECT_TRUE(at::equal(a.results[m][0], b.results[m][0])) << what << ", losses of " << m;
  }
  ASSERT_EQ(a.gradients.size(), b.gradients.size()) << what;
  for (const auto& [name, value] : a.gradients) {
    EXPECT_TRUE(at::equal(value, b.gradients.at(name))) << what << ", gradient of " << name;
  }
}

// What cuts between three or more readers and weights of several operators may change.
inline void expect_near(const Outcome& a, const Outcome& b, const std::string& what) {
  for (size_t m = 0; m < a.results.size(); ++m) {
    EXPECT_TRUE(at::equal(a.results[m][0], b.results[m][0])) << what << ", losses of " << m;
  }
  ASSERT_EQ(a.gradients.size(), b.gradients.size()) << what;
  for (const auto& [name, value] : a.gradients) {
    const at::Tensor other = b.gradients.at(name);
    const double scale = std::max(1e-6, value.abs().max().item<double>());
    EXPECT_LE((value - other).abs().max().item<double>(), 1e-5 * scale) << what << ", " << name;
  }
}

// Whether no order of additions is left open: no tensor has more than two readers, and no weight
// more than one operator. Where autograd runs over the whole model, an operator that reads a tensor
// twice inside is two readers of it; by itself it is one, whose two gradients are added first.
inline bool one_order(const nn::OperatorGraph& operators, bool whole_model) {
  std::map<Source, int> readers;
  std::map<std::string, int> holders;
  for (const nn::Operator& op : operators.operators()) {
    for (const Source& s : op.inputs) readers[s] += whole_model && op.kind == "norm" ? 2 : 1;
    for (const nn::NamedTensor& p : op.parameters) ++holders[p.name];
  }
  return std::ranges::all_of(readers, [](const auto& r) { return r.second <= 2; }) &&
         std::ranges::all_of(holders, [](const auto& h) { return h.second == 1; });
}

inline Pipeline two_stages(const nn::OperatorGraph& operators, int cut, int64_t micro_batches) {
  Pipeline out;
  out.num_micro_batches = micro_batches;
  out.stages.resize(2);
  const auto number = static_cast<int>(operators.operators().size());
  for (int i = 0; i < number; ++i) out.stages[i < cut ? 0 : 1].ops.push_back(i);
  for (int64_t m = 0; m < micro_batches; ++m) {
    for (Pipeline::Stage& s : out.stages) s.order.push_back(plan::Task::forward);
  }
  for (int64_t m = 0; m < micro_batches; ++m) {
    for (Pipeline::Stage& s : out.stages) s.order.push_back(plan::Task::backward);
  }
  return out;
}

inline Pipeline split(Pipeline pipeline) {
  pipeline.split = true;
  for (Pipeline::Stage& s : pipeline.stages) {
    for (int64_t m = 0; m < pipeline.num_micro_batches; ++m) {
      s.order.push_back(plan::Task::backward_weight);
    }
  }
  return pipeline;
}

// A model drawn from a seed, in random stages and orders, and a step of it. A test draws on from
// `rng`, of this stream.
struct RandomCase {
  // As many micro-batches as one of these numbers, and those between.
  struct MicroBatches {
    int64_t least = 1, most = 1;
  };

  RandomCase(uint64_t seed, uint64_t stream, bool dropout, MicroBatches number, int64_t samples = 8)
      : rng(seed, stream), model(seed, dropout), operators(nn::training_operators(model, 0)) {
    const graph::Graph graph = graph_of(operators, rng);
    const int64_t micro_batches =
        number.least + rng.below(static_cast<uint32_t>(number.most - number.least + 1));
    const plan::Plan plan = random_plan(graph, micro_batches, samples, rng);
    pipeline = pipeline_of(plan, random_orders(graph, plan, rng), graph, operators);
    step.inputs = inputs_of(seed, micro_batches, samples);
    step.seed = seed;
  }

  int num_stages() const { return static_cast<int>(pipeline.stages.size()); }

  Rng rng;
  RandomModel model;
  nn::OperatorGraph operators;
  Pipeline pipeline;
  PipelineHost::Step step;
};

// y = scale(x, w), w being `width` ones, and the losses of y.
inline nn::OperatorGraph scaled_and_lost(
    int64_t width, const std::function<at::Tensor(const at::Tensor& x, const at::Tensor& w)>& scale,
    const std::function<at::Tensor(const at::Tensor& y)>& losses, bool random = false) {
  const at::Tensor w = at::ones({width}).requires_grad_();
  nn::OperatorGraph out;
  nn::Operator scaled, lost;
  scaled.name = "scale";
  scaled.inputs = {{nn::kModelInput, 0}};
  scaled.parameters.push_back({.name = "w", .tensor = w});
  scaled.random = random;
  scaled.run = [w, scale](std::span<const at::Tensor> in) { return Tensors{scale(in[0], w)}; };
  lost.name = "loss";
  lost.inputs = {{out.add(scaled), 0}};
  lost.run = [losses](std::span<const at::Tensor> in) { return Tensors{losses(in[0])}; };
  out.set_results({{out.add(lost), 0}});
  return out;
}

}  // namespace ductile::parallel
