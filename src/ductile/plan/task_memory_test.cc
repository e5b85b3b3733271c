// What a stage holds, against blocks of memory that live as long as somebody refers to them.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/graph/builders.h"
#include "ductile/graph/formats.h"
#include "ductile/plan/evaluate.h"
#include "ductile/plan/planner.h"
#include "ductile/plan/testing/counted_graph.h"

namespace ductile::plan {
namespace {

struct Memory {
  double live = 0, most = 0;
  void note(double more = 0) { most = std::max(most, live + more); }
};

class Block {
 public:
  Block(Memory& memory, double bytes) : memory_(memory), bytes_(bytes) {
    memory_.live += bytes;
    memory_.note();
  }
  ~Block() { memory_.live -= bytes_; }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

 private:
  Memory& memory_;
  const double bytes_;
};
using Held = std::shared_ptr<Block>;
using TensorId = std::pair<OpId, int>;

// One micro-batch in one stage, as parallel/stage_executor.cc runs it: each operator's run refers
// to what it reads and makes until its last task. Two that are done at once are one, which makes
// what the second one does.
class SlowStage {
 public:
  SlowStage(const graph::Graph& graph, const Plan& plan, int stage)
      : graph_(graph), stage_(plan.stages[stage]) {
    std::vector<int> stage_of(graph.ops.size());
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      for (const OpId op : plan.stages[s].ops) stage_of[op] = static_cast<int>(s);
    }
    split_ = plan.schedule == ScheduleKind::zero_bubble;
    share_ = static_cast<double>(stage_.micro_batch) / stage_.replicas;
    for (const Stage& other : plan.stages) {
      if (stage_.replicas > 1 && other.replicas != stage_.replicas) reads_whole_ = true;
    }
    ops_ = stage_.ops;
    for (const graph::Edge& e : graph.edges) {
      const bool own = stage_of[e.from] == stage && stage_of[e.to] == stage;
      if (!e.fused || !own || again(e.from) != again(e.to)) continue;
      inner_[e.from] = e;
      std::erase(ops_, e.to);
    }
    for (const graph::Edge& e : graph.edges) {
      if (is_inner(e)) continue;
      const OpId maker = inner_.contains(e.from - 1) ? e.from - 1 : e.from;
      const TensorId id{maker, e.output};
      bytes_[id] = e.bytes * share_;
      if (stage_of[e.from] == stage) outputs_[maker].insert(id);
      if (stage_of[e.to] == stage) {
        inputs_[e.to].insert(id);
        gradient_of_[{e.to, id}] = e.gradient() * share_;
      } else if (stage_of[e.from] == stage) {
        readers_[id].insert(stage_of[e.to]);
      }
      const Stage &from = plan.stages[stage_of[e.from]], &to = plan.stages[stage_of[e.to]];
      const bool in_rows = e.output == 0 && graph.ops[e.from].shape.size() == 1;
      if (from.replicas == to.replicas || in_rows) continue;
      if (stage_of[e.from] == stage) sent_[id].insert(stage_of[e.to]);
      if (stage_of[e.to] == stage) pieces_.insert(id);
    }
  }

  StageMemory run() {
    StageMemory out;
    forward();
    out.forward = memory_.most;
    out.held = memory_.live;
    begin();
    backward();
    out.backward = memory_.most - out.held;
    out.waiting = memory_.live;
    begin();
    weights();
    out.weights = memory_.most - out.waiting;
    EXPECT_NEAR(memory_.live, 0, 1e-6) << "something is never given back";
    return out;
  }

 private:
  struct Run {
    std::vector<Held> inputs, outputs;
    std::map<TensorId, std::vector<Held>> gradients;
    Held saved;
  };

  void begin() { memory_.most = memory_.live; }
  Held block(double bytes) { return std::make_shared<Block>(memory_, bytes); }
  bool is_inner(const graph::Edge& e) const {
    return inner_.contains(e.from) && inner_.at(e.from).to == e.to;
  }
  const graph::OpCost& cost(OpId op) const { return graph_.ops[op].cost; }
  double pass(OpId op, graph::MostBytes graph::PassBytes::*which) const {
    return (cost(op).passes.*which).at(share_);
  }
  // The same without the gradient that passes between two that are done at once.
  double passes(OpId op, graph::MostBytes graph::PassBytes::*which, bool makes_gradients) const {
    if (!inner_.contains(op)) return pass(op, which);
    const graph::Edge& inner = inner_.at(op);
    const double between = makes_gradients ? inner.gradient() * share_ : 0;
    return std::max(pass(op, which), pass(inner.to, which) - between);
  }
  bool waits(OpId op) const {
    return cost(op).waits || (inner_.contains(op) && cost(inner_.at(op).to).waits);
  }
  double samples(OpId op) const {
    const double second = inner_.contains(op) ? cost(inner_.at(op).to).sample_bytes : 0;
    return (cost(op).sample_bytes + second) * share_;
  }
  bool again(OpId op) const {
    return std::binary_search(stage_.recompute.begin(), stage_.recompute.end(), op);
  }
  double alone(OpId op) const {
    return (cost(op).activation_bytes - cost(op).sample_bytes) * share_ + cost(op).activation_fixed;
  }
  double own(OpId op) const {
    if (!inner_.contains(op)) return alone(op);
    return alone(op) - inner_.at(op).bytes * share_ + alone(inner_.at(op).to);
  }
  // Saved for W alone: of the second of two all that it saved.
  double waiting(OpId op) const {
    double bytes = cost(op).waiting_bytes.at(share_);
    if (!inner_.contains(op)) return bytes;
    bytes += cost(inner_.at(op).to).waiting_bytes.at(share_) + alone(inner_.at(op).to);
    for (const TensorId& t : outputs_of(op)) bytes -= bytes_.at(t);
    return bytes;
  }
  double saved(OpId op) const {
    double bytes = own(op);
    for (const TensorId& t : outputs_of(op)) bytes -= bytes_.at(t);
    return bytes;
  }
  std::set<TensorId> outputs_of(OpId op) const {
    return outputs_.contains(op) ? outputs_.at(op) : std::set<TensorId>();
  }
  std::set<TensorId> inputs_of(OpId op) const {
    return inputs_.contains(op) ? inputs_.at(op) : std::set<TensorId>();
  }
  bool is_own(const TensorId& t) const {
    return std::binary_search(stage_.ops.begin(), stage_.ops.end(), t.first);
  }

  void forward() {
    std::map<TensorId, Held> made;
    for (const OpId op : ops_) {
      samples_.push_back(block(samples(op)));
      if (reads_whole_) samples_.push_back(block(samples(op) * stage_.replicas));
      for (const TensorId& t : inputs_of(op)) {
        if (!is_own(t) && !made.contains(t)) made[t] = block(bytes_.at(t));
      }
    }
    // The pieces of one are there beside it until it is put together, whichever is the last.
    for (const TensorId& t : pieces_) memory_.note(bytes_.at(t));
    for (const OpId op : ops_) {
      Run& run = runs_[op];
      for (const TensorId& t : inputs_of(op)) run.inputs.push_back(made.at(t));
      memory_.note(own(op) + passes(op, &graph::PassBytes::forward, false));
      for (const TensorId& t : outputs_of(op)) {
        made[t] = block(bytes_.at(t));
        if (!again(op)) run.outputs.push_back(made[t]);
      }
      if (!again(op)) run.saved = block(saved(op));
    }
    std::vector<Held> sent;  // copies of ranges of samples
    for (const auto& [t, stages] : sent_) {
      for (size_t i = 0; i < stages.size(); ++i) sent.push_back(block(bytes_.at(t)));
    }
  }

  void backward() {
    std::map<TensorId, Held> given;  // to other stages
    for (const auto& [t, stages] : readers_) {
      for (size_t i = 0; i < stages.size(); ++i) {
        runs_.at(t.first).gradients[t].push_back(block(bytes_.at(t)));
      }
    }
    for (const auto& [t, stages] : sent_) memory_.note(bytes_.at(t));  // as in forward()
    for (auto at = ops_.rbegin(); at != ops_.rend(); ++at) {
      const OpId op = *at;
      Run& run = runs_.at(op);
      const auto way = split_ ? &graph::PassBytes::backward_input : &graph::PassBytes::backward;
      double task = passes(op, way, true);
      if (again(op)) {
        task = own(op) + std::max(task, passes(op, &graph::PassBytes::forward, false));
      }
      for (const TensorId& t : inputs_of(op)) {
        if (given.contains(t)) task += bytes_.at(t);
      }
      double sums = 0;
      for (const auto& [t, gradients] : run.gradients) {
        if (gradients.size() > 1) sums += (gradients.size() > 2 ? 2 : 1) * bytes_.at(t);
      }
      memory_.note(sums);
      for (auto& [t, gradients] : run.gradients) {
        if (gradients.size() == 1) continue;
        gradients.clear();
        gradients.push_back(block(bytes_.at(t)));
      }
      memory_.note(task);
      if (split_ && waits(op)) {
        run.saved.reset();
        if (again(op)) {
          for (const TensorId& t : outputs_of(op)) run.outputs.push_back(block(bytes_.at(t)));
        }
        run.saved = block(waiting(op));
      } else {
        runs_.erase(op);
      }
      for (const TensorId& t : inputs_of(op)) {
        const double bytes = gradient_of_.at({op, t});
        if (is_own(t)) {
          runs_.at(t.first).gradients[t].push_back(block(bytes));
        } else if (!given.contains(t)) {
          given[t] = block(bytes);
        }
      }
    }
    std::vector<Held> sent;  // copies of ranges of samples, of gradients
    for (const TensorId& t : pieces_) sent.push_back(block(bytes_.at(t)));
    if (!split_) samples_.clear();
  }

  void weights() {
    for (const OpId op : ops_) {
      if (!runs_.contains(op)) continue;
      memory_.note(passes(op, &graph::PassBytes::backward_weight, false));
      runs_.erase(op);
    }
    samples_.clear();
  }

  const graph::Graph& graph_;
  const Stage& stage_;
  bool split_ = false;
  double share_ = 1;
  std::vector<OpId> ops_;              // without the second ones
  std::map<OpId, graph::Edge> inner_;  // of two that are done at once, by the first
  std::map<TensorId, double> bytes_;
  std::map<OpId, std::set<TensorId>> outputs_, inputs_;
  std::map<std::pair<OpId, TensorId>, double> gradient_of_;
  std::map<TensorId, std::set<int>> readers_;  // other stages
  std::map<TensorId, std::set<int>> sent_;     // of them, those of other numbers of replicas
  std::set<TensorId> pieces_;                  // that come from such
  bool reads_whole_ = false;                   // the model's inputs, of which it copies its part
  Memory memory_;                              // outlives the blocks below
  std::vector<Held> samples_;
  std::map<OpId, Run> runs_;
};

Plan random_cut(const graph::Graph& graph, Rng& rng) {
  Plan plan;
  plan.batch = 8;
  plan.schedule = rng.below(2) == 0 ? ScheduleKind::kfkb : ScheduleKind::zero_bubble;
  const auto n = static_cast<uint32_t>(graph.ops.size());
  const graph::Topology topology(graph);
  plan.stages.resize(1 + rng.below(std::min<uint32_t>(4, n)));
  for (size_t i = 0; i < n; ++i) {
    plan.stages[i * plan.stages.size() / n].ops.push_back(topology.order()[i]);
  }
  for (Stage& stage : plan.stages) {
    std::sort(stage.ops.begin(), stage.ops.end());
    stage.micro_batch = int64_t{2} << rng.below(3);
    stage.replicas = 1 + static_cast<int>(rng.below(2));
    stage.in_flight = stage.micro_batch;
    for (const OpId op : stage.ops) {
      if (rng.below(4) == 0) stage.recompute.push_back(op);
    }
  }
  return plan;
}

TEST(TaskMemory, IsThatOfBlocksThatLiveAsLongAsTheyAreReferredTo) {
  int waiting = 0, above = 0, again = 0, fused = 0, unequal = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 31);
    graph::Graph graph = graph::build_graph(fmt::format("random:{},{},3", 1 + rng.below(10), seed));
    count_bytes(graph, rng);
    for (graph::Op& op : graph.ops) {
      op.shape.assign(rng.below(3), 1 + rng.below(9));  // unknown, rows, images
    }
    const Plan plan = random_cut(graph, rng);
    const auto num = plan.stages.size();
    unequal += static_cast<int>(std::ranges::any_of(plan.stages, [&](const Stage& stage) {
      return stage.replicas != plan.stages[0].replicas;
    }));
    fused += static_cast<int>(std::ranges::count(graph.edges, true, &graph::Edge::fused));
    std::vector<int> units;
    for (size_t s = 0; s < num; ++s) units.push_back(static_cast<int>(s));
    const std::vector<StageMemory> fast =
        task_memory(graph, plan, units, std::vector<double>(num, 7));
    for (size_t s = 0; s < num; ++s) {
      const StageMemory slow = SlowStage(graph, plan, static_cast<int>(s)).run();
      const double about = 1e-9 * (1 + slow.forward);
      EXPECT_EQ(fast[s].fixed, 7);
      EXPECT_NEAR(fast[s].held, slow.held, about);
      EXPECT_NEAR(fast[s].forward, slow.forward, about);
      EXPECT_NEAR(fast[s].backward, slow.backward, about);
      if (plan.schedule == ScheduleKind::kfkb) continue;
      EXPECT_NEAR(fast[s].waiting, slow.waiting, about);
      EXPECT_NEAR(fast[s].weights, slow.weights, about);
      waiting += slow.waiting > 0;
      above += slow.forward > 1.01 * slow.held;
      again += !plan.stages[s].recompute.empty();
    }
  }
  EXPECT_GT(waiting, 500);
  EXPECT_GT(above, 500);
  EXPECT_GT(again, 500);
  EXPECT_GT(fused, 500);
  EXPECT_GT(unequal, 500);
}

// Two operators of one float a sample on two devices, by hand.
TEST(TaskMemory, CountsReceivesAndWhatIsSentOnOtherDevicesAlone) {
  graph::Graph g;
  for (const char* name : {"a", "b"}) {
    graph::Op& op = g.ops.emplace_back();
    op.name = name;
    op.cost.forward.per_sample = op.cost.backward_input.per_sample = 1;
    op.cost.activation_bytes = 10;
    op.cost.passes.backward = {0, 6};
  }
  g.edges = {{0, 1, 0, 4}};
  g.counted = true;
  Plan plan;
  plan.batch = 4;
  plan.stages.resize(2);
  for (int s = 0; s < 2; ++s) {
    plan.stages[s].ops = {s};
    plan.stages[s].in_flight = 2 - s;
  }
  const PlanCosts apart = plan_costs(g, uniform_devices(2, 2, {}), plan);
  EXPECT_EQ(apart.memory[0].held, 10);
  EXPECT_EQ(apart.memory[0].posted_backward, 4);
  EXPECT_EQ(apart.memory[1].held, 14);  // with its copy of the input
  EXPECT_EQ(apart.memory[1].posted_forward, 4);
  EXPECT_EQ(apart.memory[0].backward, 4 + 6);
  EXPECT_EQ(apart.sent.backward, std::vector<double>{4});
  // F F B B at the first: two held, a gradient received, one used, and what B takes.
  EXPECT_EQ(evaluate(g, uniform_devices(2, 2, {}), plan).peak_memory[0], 2 * 10 + 4 + 4 + 6);
  for (Stage& stage : plan.stages) stage.devices = {0};
  const PlanCosts together = plan_costs(g, uniform_devices(2, 2, {}), plan);
  EXPECT_EQ(together.memory[1].held, 10);
  EXPECT_EQ(together.memory[1].posted_forward + together.memory[0].posted_backward, 0);
}

// Two replicas of a and one of b, which has the samples of both, by hand. Rows of numbers are sent
// from where they lie; of images, whose channels may lie together, copies are sent.
TEST(TaskMemory, CountsCopiesBetweenStagesOfOtherNumbersOfReplicas) {
  graph::Graph g;
  for (const char* name : {"a", "b"}) {
    graph::Op& op = g.ops.emplace_back();
    op.name = name;
    op.cost.forward.per_sample = op.cost.backward_input.per_sample = 1;
    op.cost.activation_bytes = 10;
    op.cost.passes.backward = {0, 6};
  }
  g.ops[0].cost.sample_bytes = 3;
  g.edges = {{0, 1, 0, 4}};
  g.counted = true;
  Plan plan;
  plan.batch = 4;
  plan.stages.resize(2);
  for (int s = 0; s < 2; ++s) {
    plan.stages[s].ops = {s};
    plan.stages[s].replicas = 2 - s;
    plan.stages[s].micro_batch = 2;
    plan.stages[s].in_flight = 4 - 2 * s;
  }
  const Devices devices = uniform_devices(3, 3, {});
  for (const bool rows : {true, false}) {
    SCOPED_TRACE(rows);
    g.ops[0].shape = rows ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 1};
    const PlanCosts costs = plan_costs(g, devices, plan);
    // The inputs of one sample, and of the whole micro-batch, whose half it is.
    EXPECT_EQ(costs.memory[0].held, 7 + 3 + 2 * 3);
    EXPECT_EQ(costs.memory[0].posted_backward, 4);
    EXPECT_EQ(costs.memory[0].forward, 7 + 3 + 2 * 3 + (rows ? 0 : 4));
    EXPECT_EQ(costs.memory[1].held, 2 * 10 + 2 * 4);
    EXPECT_EQ(costs.memory[1].posted_forward, 2 * 4);
    EXPECT_EQ(costs.sent.forward, std::vector<double>{rows ? 0.0 : 4.0});
    EXPECT_EQ(costs.sent.backward, std::vector<double>{2 * 4});
    // F F B B: two held, a gradient received, one used, and what B takes.
    EXPECT_EQ(evaluate(g, devices, plan).peak_memory[0], 2 * 16 + 4 + 4 + 6);
  }
  // As many of both are pipelines side by side, each of which reads its own samples.
  plan.stages[1].replicas = 2;
  const PlanCosts equal = plan_costs(g, uniform_devices(4, 4, {}), plan);
  EXPECT_EQ(equal.memory[0].held, 7 + 3);
  EXPECT_EQ(equal.memory[0].forward, 7 + 3);
  EXPECT_EQ(equal.sent.forward, std::vector<double>{0});
}

// A kernel with a matrix of its own takes most for few samples, and another one, which copies them,
// for many: a line through both is wrong by a tenth for either.
TEST(TaskMemory, IsThatOfTheKernelThatTakesMostAtTheStagesSamples) {
  graph::Graph g;
  graph::Op& op = g.ops.emplace_back();
  op.name = "a";
  op.cost.forward.per_sample = op.cost.backward_input.per_sample = 1;
  op.cost.passes.backward.points = {{1, 400}, {8, 400}, {16, 800}};
  g.counted = true;
  const std::vector<std::pair<int64_t, double>> cases = {{2, 400}, {8, 400}, {12, 600}, {32, 1600}};
  for (const auto& [samples, bytes] : cases) {
    Plan plan;
    plan.batch = samples;
    plan.stages.resize(1);
    plan.stages[0].ops = {0};
    plan.stages[0].micro_batch = plan.stages[0].in_flight = samples;
    EXPECT_EQ(plan_costs(g, uniform_devices(1, 1, {}), plan).memory[0].backward, bytes) << samples;
  }
}

// A stage that is far ahead of a reader, which nothing in their orders makes wait: its gradients
// lie with it, whatever the reader is predicted to take.
TEST(TaskMemory, GradientsWaitAsLongAsTheOrdersLetThem) {
  graph::Graph g;
  for (const char* name : {"a", "b"}) {
    graph::Op& op = g.ops.emplace_back();
    op.name = name;
    op.cost.forward.per_sample = op.cost.backward_weight.per_sample = 1;
    op.cost.backward_input.per_sample = name[0] == 'a' ? 1e-3 : 1;  // so a is predicted to wait
    op.cost.activation_bytes = 10;
    op.cost.waits = true;
    op.cost.passes.backward_weight = {0, 100};
  }
  g.edges = {{0, 1, 0, 4}};
  g.counted = true;
  Plan plan;
  plan.batch = 4;
  plan.schedule = ScheduleKind::zero_bubble;
  plan.stages.resize(2);
  for (int s = 0; s < 2; ++s) {
    plan.stages[s].ops = {s};
    plan.stages[s].in_flight = 4;
  }
  const auto peak = [&](const char* first, const char* second) {
    plan.orders = {first, second};
    return evaluate(g, uniform_devices(2, 2, {}), plan).peak_memory[1];
  };
  // While W runs: the inputs of four micro-batches, what it takes, and three gradients, of which
  // one more has a receive.
  EXPECT_EQ(peak("F4B4W4", "F4B4W4"), 4 * 4 + 100 + 3 * 4);
  // Where F of the second depends on B of the first, that has taken all but the last ones. The last
  // B leaves two: the one that is on its way, and the one before it.
  EXPECT_LT(peak("F2BFBFB2W4", "FBFBFBFBW4"), 4 * 4 + 100 + 3 * 4);
}

TEST(TaskMemory, OfAFileIsThatOfTheGraphThatWasWritten) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed, 32);
    graph::Graph graph = graph::build_graph(fmt::format("random:{},{},3", 1 + rng.below(10), seed));
    count_bytes(graph, rng);
    EXPECT_EQ(graph::graph_from_json(graph::to_json(graph)), graph);
  }
}

}  // namespace
}  // namespace ductile::plan
