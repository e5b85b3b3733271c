#include "ductile/plan/baselines/megatron.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/plan/baselines/uniform_plans_impl.h"

namespace ductile::plan {

namespace {

// What Megatron-LM moves as one, by its letter in a layout.
struct Unit {
  char letter;  // E: embedding, t: transformer layer, L: output and loss
  std::vector<OpId> ops;
};

std::string layer_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

// In the order of the chain.
std::vector<Unit> units_of(const graph::Graph& graph) {
  const graph::Topology topology(graph);
  std::vector<Unit> out;
  for (OpId v : topology.order()) {
    const graph::Op& op = graph.ops[v];
    const bool continues = !out.empty() && out.back().letter == 't' &&
                           layer_of(graph.ops[out.back().ops.front()].name) == layer_of(op.name);
    if (op.kind == "embedding" && out.empty()) {
      out.push_back({'E', {v}});
    } else if (op.kind == "transformer_layer" || op.kind == "attention") {
      out.push_back({'t', {v}});
    } else if (op.kind == "linear" && continues) {
      out.back().ops.push_back(v);
    } else if (op.kind == "linear" && topology.successors(v).empty()) {
      out.push_back({'L', {v}});
    } else {
      fail(ErrorCode::invalid_argument,
           "operator \"{}\" ({}): a layout of Megatron-LM has an embedding, transformer layers and "
           "a head in a row, and nothing else",
           op.name, op.kind);
    }
  }
  return out;
}

// "Et*3"
std::string run_lengths(const std::string& letters) {
  std::string out;
  for (size_t i = 0; i < letters.size();) {
    const size_t end = std::min(letters.find_first_not_of(letters[i], i), letters.size());
    out +=
        end - i > 2 ? fmt::format("{}*{}", letters[i], end - i) : std::string(end - i, letters[i]);
    i = end;
  }
  return out;
}

std::string layout(const std::vector<std::string>& stages) {
  std::string out;
  for (size_t i = 0; i + 1 < stages.size();) {
    size_t end = i;
    while (end + 1 < stages.size() && stages[end] == stages[i]) ++end;
    const std::string one = run_lengths(stages[i]) + "|";
    out += end - i > 1 ? fmt::format("({})*{}", one, end - i) : one;
    i = end;
  }
  return out + run_lengths(stages.back());
}

// Ends of `parts` parts of the units, the busiest as light as can be.
std::vector<size_t> lightest_parts(const std::vector<double>& work, size_t parts) {
  const auto cut = [&](double most) {
    std::vector<size_t> ends;
    double sum = 0;
    for (size_t i = 0; i < work.size(); ++i) {
      // Enough must be left for the other parts to have one each.
      const bool must = i > 0 && work.size() - i < parts - ends.size();
      if (i > 0 && (sum + work[i] > most || must)) {
        ends.push_back(i);
        sum = 0;
      }
      sum += work[i];
    }
    ends.push_back(work.size());
    return ends;
  };
  double low = *std::max_element(work.begin(), work.end()), high = 0;
  for (double w : work) high += w;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (cut(middle).size() <= parts ? high : low) = middle;
  }
  return cut(high);
}

}  // namespace

std::string megatron_options(const graph::Graph& graph, const Plan& plan) {
  const std::vector<Unit> units = units_of(graph);
  std::vector<int> stage_of(graph.ops.size(), -1);
  const StageGraph stages = stage_graph(graph, plan);
  const Stage& first = plan.stages.front();
  std::vector<int> place(plan.stages.size());
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const int s = stages.order[i];
    place[s] = static_cast<int>(i);
    const Stage& stage = plan.stages[s];
    for (OpId v : stage.ops) stage_of[v] = place[s];
    if (stage.num_devices() != first.num_devices() || stage.micro_batch != first.micro_batch) {
      fail(ErrorCode::invalid_argument,
           "stage {}: has other degrees or another micro-batch than stage 0; Megatron-LM has the "
           "same everywhere. Without --plan, the best plan that it can run is looked for",
           s);
    }
  }
  for (const StageEdge& e : stages.edges) {
    if (e.bytes > 0 && place[e.to] != place[e.from] + 1) {
      fail(ErrorCode::invalid_argument, "stages {} and {}: Megatron-LM runs chains of stages alone",
           e.from, e.to);
    }
  }
  std::vector<std::string> letters(plan.stages.size());
  int64_t layers = 0, recomputed = 0;
  for (const Unit& u : units) {
    for (OpId v : u.ops) {
      if (stage_of[v] != stage_of[u.ops.front()]) {
        fail(ErrorCode::invalid_argument, "operator \"{}\": its layer is cut in two",
             graph.ops[v].name);
      }
    }
    letters[stage_of[u.ops.front()]] += u.letter;
    layers += u.letter == 't';
  }
  int tensor = 1;
  for (const Stage& s : plan.stages) {
    recomputed += static_cast<int64_t>(s.recompute.size());
    tensor = std::max(tensor, s.tensor);
  }
  const int ranks = plan.num_devices() / first.num_devices();
  std::string out = fmt::format(
      "--tensor-model-parallel-size {} --pipeline-model-parallel-size {} --num-layers {} "
      "--micro-batch-size {} --global-batch-size {} --pipeline-model-parallel-layout \"{}\"",
      tensor, ranks, layers, first.micro_batch * tensor / first.num_devices(), plan.batch,
      layout(letters));
  if (recomputed > 0) {
    out += " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1";
  }
  if (first.shard_optimizer) out += " --use-distributed-optimizer";
  return out;
}

Plan megatron_plan(const graph::Graph& graph, const Devices& devices,
                   const PlannerOptions& options) {
  const std::vector<Unit> units = units_of(graph);
  std::vector<OpId> order;
  for (const Unit& u : units) order.insert(order.end(), u.ops.begin(), u.ops.end());
  Plan best;
  best.predicted_seconds = std::numeric_limits<double>::infinity();
  for_uniform_shapes("interleaved", graph, island_of(devices), options, [&](const UniformShape& s) {
    const auto parts = static_cast<size_t>(s.ranks * s.parts);
    if (parts > units.size()) return;
    for (int64_t b = options.batch; b >= 1; --b) {
      if (options.batch % b != 0 || b % s.replicas != 0) continue;
      if (!options.micro_batches.empty() && b != options.micro_batches.front()) continue;
      std::vector<double> work;
      for (const Unit& u : units) {
        double& sum = work.emplace_back(0);
        for (OpId v : u.ops) {
          const graph::Op& op = graph.ops[v];
          const int t = graph::allows(op, s.tensor, false) ? s.tensor : 1;
          const graph::OpCost c = graph::cost_of(op, t, false, 0);
          const double n = static_cast<double>(b) / s.replicas;
          sum += c.forward.at(n) + c.backward_input.at(n) + c.backward_weight.at(n);
        }
      }
      std::vector<size_t> ends;
      for (size_t end : lightest_parts(work, parts)) {
        size_t ops = 0;
        for (size_t i = 0; i < end; ++i) ops += units[i].ops.size();
        ends.push_back(ops);
      }
      Plan plan = uniform_plan("interleaved", graph, s, options, b, order, ends);
      if (plan.stages.empty()) continue;
      plan.planner = "ductile";
      const bool uniform = std::all_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& x) {
        return x.tensor == s.tensor || x.tensor == 1;
      });
      const PlanCosts costs = plan_costs(graph, devices, plan);
      double busiest = 0;
      for (const StageTimes& t : costs.times) busiest = std::max(busiest, t.micro_batch());
      const double least = busiest * static_cast<double>(options.batch / b) * s.parts;
      if (!uniform || least / s.parts >= best.predicted_seconds) continue;
      const Timeline line = evaluate(graph, devices, plan);
      if (!line.fits() || line.seconds >= best.predicted_seconds) continue;
      plan.predicted_seconds = line.seconds;
      best = std::move(plan);
    }
  });
  return best;
}

}  // namespace ductile::plan
