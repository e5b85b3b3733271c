#include "ductile/plan/baselines/megatron.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/plan/baselines/pace_impl.h"
#include "ductile/plan/baselines/uniform_plans_impl.h"
#include "ductile/plan/sizes_impl.h"

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

void check_megatron(const graph::Graph& graph) { units_of(graph); }

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

namespace {

// The work of each unit with micro-batches of b samples.
std::vector<double> work_of(const std::vector<Unit>& units, const graph::Graph& graph,
                            const UniformShape& shape, int64_t b) {
  std::vector<double> work;
  for (const Unit& u : units) {
    double& sum = work.emplace_back(0);
    for (OpId v : u.ops) {
      const graph::Op& op = graph.ops[v];
      const int t = graph::allows(op, shape.tensor, false) ? shape.tensor : 1;
      const graph::OpCost c = graph::cost_of(op, t, false, 0);
      const double n = static_cast<double>(b) / shape.replicas;
      sum += c.forward.at(n) + c.backward_input.at(n) + c.backward_weight.at(n);
    }
  }
  return work;
}

class MegatronRun {
 public:
  MegatronRun(const graph::Graph& graph, const Devices& devices, const PlannerOptions& options)
      : graph_(graph),
        devices_(devices),
        options_(options),
        units_(units_of(graph)),
        sizes_(sizes_to_try(options)),
        pace_(options.time_limit) {
    for (const Unit& u : units_) order_.insert(order_.end(), u.ops.begin(), u.ops.end());
    if (options.replicas > 0 && devices.size() % options.replicas != 0) {
      fail(ErrorCode::invalid_argument,
           "replicas: {} do not divide the {} devices, of which Megatron-LM uses all alike",
           options.replicas, devices.size());
    }
  }

  BaselineResult run() {
    const auto visit = [this](const UniformShape& s) {
      if (static_cast<size_t>(s.ranks) * static_cast<size_t>(s.parts) > units_.size()) return;
      // The largest first, which have the fewest tasks to carry out.
      for (size_t i = sizes_.size(); i-- > 0 && !pace_.is_late();) consider(s, sizes_[i]);
    };
    for_uniform_shapes("interleaved", graph_, island_of(devices_), options_, visit);
    BaselineResult result;
    result.timed_out = pace_.timed_out();
    if (best_.stages.empty()) result.failure = failure();
    result.plan = std::move(best_);
    return result;
  }

 private:
  std::string failure() const {
    const std::string what = fmt::format(
        "no plan{} that Megatron-LM can run",
        options_.replicas > 0 ? fmt::format(" with --replicas {}", options_.replicas) : "");
    if (pace_.timed_out()) return what + " was found in the time there is (--time-limit)";
    if (pace_.too_many()) {
      return fmt::format(
          "{}, of at most {} micro-batches over all stages, fits the memory of these devices", what,
          kMaxTasks);
    }
    return what + " fits the memory of these devices";
  }

  void consider(const UniformShape& s, int64_t b) {
    const auto parts = static_cast<size_t>(s.ranks * s.parts);
    const int64_t m = options_.batch / b;
    if (b % s.replicas != 0 || !pace_.allows(parts, m)) return;
    std::vector<size_t> ends;
    for (size_t end : lightest_parts(work_of(units_, graph_, s, b), parts)) {
      size_t ops = 0;
      for (size_t i = 0; i < end; ++i) ops += units_[i].ops.size();
      ends.push_back(ops);
    }
    Plan plan = uniform_plan("interleaved", graph_, s, options_, b, order_, ends);
    if (plan.stages.empty()) return;
    plan.planner = "ductile";
    const bool uniform = std::all_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& x) {
      return x.tensor == s.tensor || x.tensor == 1;
    });
    const PlanCosts costs = plan_costs(graph_, devices_, plan);
    double busiest = 0;
    for (const StageTimes& t : costs.times) busiest = std::max(busiest, t.micro_batch());
    if (!uniform || busiest * static_cast<double>(m) >= least_) return;
    const Clock::time_point begun = Clock::now();
    const Timeline line = evaluate(graph_, devices_, plan);
    pace_.took(parts, m, begun);
    if (!line.fits() || line.seconds >= least_) return;
    least_ = plan.predicted_seconds = line.seconds;
    best_ = std::move(plan);
  }

  const graph::Graph& graph_;
  const Devices& devices_;
  const PlannerOptions& options_;
  const std::vector<Unit> units_;
  const std::vector<int64_t> sizes_;
  Pace pace_;
  std::vector<OpId> order_;
  Plan best_;
  double least_ = std::numeric_limits<double>::infinity();
};

}  // namespace

BaselineResult megatron_plan(const graph::Graph& graph, const Devices& devices,
                             const PlannerOptions& options) {
  return MegatronRun(graph, devices, options).run();
}

}  // namespace ductile::plan
