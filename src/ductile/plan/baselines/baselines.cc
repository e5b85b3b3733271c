#include "ductile/plan/baselines/baselines.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/graph/downsets.h"
#include "ductile/plan/baselines/equal_cuts_impl.h"
#include "ductile/plan/baselines/pace_impl.h"
#include "ductile/plan/baselines/sequential_search_impl.h"
#include "ductile/plan/baselines/uniform_plans_impl.h"
#include "ductile/plan/cpu_clock_impl.h"
#include "ductile/plan/sizes_impl.h"
#include "ductile/plan/spaces_impl.h"

namespace ductile::plan {

namespace {

constexpr Baseline kBaselines[] = {
    {"graphpipe", "GraphPipe's partitioner: series-parallel stages, degrees powers of two"},
    {"pipedream", "PipeDream's planner: a chain of stages, any data-parallel degree", true},
    {"piper", "Piper's planner: a chain over downsets, with tensor parallelism and recompute",
     true},
    {"interleaved",
     "Megatron-LM's interleaved 1F1B: equal degrees, several parts of the chain per device", true},
    {"zb-h1", "zero-bubble ZB-H1: a chain of equal degrees, in flight as 1F1B", true},
    {"zb-v", "zero-bubble ZB-V: the chain along the devices and back", true},
    {"equal", "1F1B on a chain cut into equal work, one device per stage", true},
    {"data", "pure data parallelism"},
};

constexpr int64_t kPiperDownsets = 40'000;  // of the published program
// Its states are antichains, that is downsets; with more than these (its own program takes half a
// minute for 1,495), or several sources, its users give it the operators as a chain.
constexpr int64_t kPipeDreamStates = 1'500;
constexpr int64_t kPiperTransitions = 5'000'000;  // of our memory

// The largest first: where time is short, those have the fewest tasks to carry out. Most planners
// of others know nothing of a number of replicas, so it takes no size from them.
std::vector<int64_t> largest_first(PlannerOptions options) {
  options.replicas = 0;
  std::vector<int64_t> sizes = sizes_to_try(options);
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

// The order of operators as one chain, each stage one device, cut where the running sum of work
// passes the next equal share.
Plan equal_plan(const graph::Graph& graph, const Island& island, const PlannerOptions& options,
                int64_t micro_batch) {
  const std::vector<OpId> order = depth_first_order(graph);
  const int num = std::min<int>(island.devices, static_cast<int>(order.size()));
  const std::vector<size_t> ends = equal_parts(graph, order, num, micro_batch);
  Plan plan;
  plan.graph = graph.name;
  plan.batch = options.batch;
  size_t begin = 0;
  for (size_t end : ends) {
    Stage& stage = plan.stages.emplace_back();
    stage.ops.assign(order.begin() + static_cast<long>(begin),
                     order.begin() + static_cast<long>(end));
    std::sort(stage.ops.begin(), stage.ops.end());
    stage.micro_batch = micro_batch;
    const auto left = static_cast<int64_t>(ends.size() + 1 - plan.stages.size());
    stage.in_flight = std::min<int64_t>(options.batch / micro_batch, left) * micro_batch;
    begin = end;
  }
  return plan;
}

Plan data_plan(const graph::Graph& graph, const Island& island, const PlannerOptions& options,
               int64_t micro_batch) {
  Plan plan;
  plan.graph = graph.name;
  plan.batch = options.batch;
  Stage stage;
  for (OpId v = 0; v < static_cast<OpId>(graph.ops.size()); ++v) stage.ops.push_back(v);
  for (int r = 1; r <= island.devices; ++r) {
    if (micro_batch % r == 0) stage.replicas = r;
  }
  stage.micro_batch = micro_batch;
  stage.in_flight = micro_batch;
  plan.stages.push_back(std::move(stage));
  return plan;
}

}  // namespace

Table<Baseline> baselines() { return {"planner", kBaselines}; }

graph::Graph chained(const graph::Graph& graph, const Plan& plan) {
  graph::Graph out = graph;
  const graph::Topology topology(graph);
  const auto by_position = [&](OpId a, OpId b) {
    return topology.position(a) < topology.position(b);
  };
  const int output = unused_output(graph);
  for (size_t i = 0; i + 1 < plan.stages.size(); ++i) {
    const auto& from = plan.stages[i].ops;
    const auto& to = plan.stages[i + 1].ops;
    const OpId last = *std::max_element(from.begin(), from.end(), by_position);
    const OpId first = *std::min_element(to.begin(), to.end(), by_position);
    out.edges.push_back({last, first, output, 0});
  }
  return out;
}

std::vector<graph::Graph> as_chains(const graph::Graph& graph) {
  std::vector<graph::Graph> out;
  for (const std::vector<OpId>& order : search_orders(graph)) {
    out.push_back(in_a_row(graph, order));
  }
  return out;
}

namespace {

// The plans that a baseline offers, one after the other; the judge keeps the fastest.
class BaselineRun {
 public:
  BaselineRun(std::string_view name, const graph::Graph& graph, const Devices& devices,
              const PlannerOptions& options)
      : name_(name),
        graph_(graph),
        devices_(devices),
        options_(options),
        pace_(options.time_limit),
        sizes_(largest_first(options)),
        island_(island_of(devices)) {}

  BaselineResult run() {
    if (name_ == "piper") {
      search_downsets();
    } else if (name_ == "pipedream") {
      search_few_downsets();
    } else if (name_ == "graphpipe") {
      search_series_parallel();
    } else if (name_ == "interleaved" || name_ == "zb-h1" || name_ == "zb-v") {
      try_uniform();
    } else {
      for (int64_t b : sizes_) {
        if (pace_.is_late()) break;
        const bool equal = name_ == "equal";
        consider(equal ? equal_plan(graph_, island_, options_, b)
                       : data_plan(graph_, island_, options_, b),
                 equal);
      }
    }
    if (result_.plan.stages.empty() && result_.failure.empty()) {
      result_.failure = failure();
    }
    result_.timed_out = timed_out();
    return std::move(result_);
  }

 private:
  bool timed_out() const { return search_timed_out_ || pace_.timed_out(); }

  std::string failure() const {
    if (timed_out()) return "out of time";
    if (pace_.too_many()) {
      return fmt::format("no plan whose stages have at most {} micro-batches together fits memory",
                         kMaxTasks);
    }
    return any_ ? "no plan fits memory" : "no plan within its search fits memory";
  }

  void search_downsets() {
    SearchSpace space;
    if (graph::count_downsets(graph::Topology(graph_), kPiperDownsets) > kPiperDownsets) {
      result_.failure = "more than 40,000 downsets, its limit";
    } else if (!SearchSpace::all_downsets(graph_, kPiperTransitions, space)) {
      result_.failure = "too many pairs of downsets to hold";
    } else {
      search_chain(space, true);
    }
  }

  void search_few_downsets() {
    SearchSpace space;
    if (graph::count_downsets(graph::Topology(graph_), kPipeDreamStates) > kPipeDreamStates ||
        !SearchSpace::all_downsets(graph_, kPiperTransitions, space)) {
      space = SearchSpace::of_order(
          graph_, depth_first_order(graph_),
          static_cast<int>(std::min<size_t>(graph_.ops.size() + 1, kPipeDreamStates)));
    }
    search_chain(space, false);
  }

  void search_chain(const SearchSpace& space, bool tensor) {
    for (int64_t b : sizes_) {
      if (pace_.is_late()) break;
      consider(sequential_search(space, island_, options_, b, tensor, pace_.deadline()), true);
    }
  }

  void search_series_parallel() {
    for (int64_t b : sizes_) {
      if (pace_.is_late()) break;
      if ((b & (b - 1)) != 0) continue;  // powers of two
      consider(graphpipe_search(graph_, island_, options_, b, pace_.deadline()), false);
    }
  }

  void try_uniform() {
    for_uniform_shapes(name_, graph_, island_, options_, [&](const UniformShape& shape) {
      const auto stages = static_cast<size_t>(shape.ranks) * static_cast<size_t>(shape.parts);
      if (stages > graph_.ops.size()) return;
      for (int64_t b : sizes_) {
        if (pace_.is_late()) return;
        if (!pace_.allows(stages, options_.batch / b)) continue;
        Plan plan = uniform_plan(name_, graph_, shape, options_, b);
        if (!plan.stages.empty()) consider(std::move(plan), true);
      }
    });
  }

  void consider(SequentialResult found, bool is_chain) {
    search_timed_out_ = search_timed_out_ || found.timed_out;
    if (found.found) consider(std::move(found.plan), is_chain);
  }

  void consider(Plan plan, bool is_chain) {
    const int64_t micro_batches = plan.batch / plan.stages[0].micro_batch;  // of each stage
    if (!pace_.allows(plan.stages.size(), micro_batches)) return;
    any_ = true;
    plan.planner = std::string(name_);
    const Clock::time_point begun = Clock::now();
    if (plan.stages[0].devices.empty()) place(graph_, devices_, plan);
    const graph::Graph judged = is_chain ? chained(graph_, plan) : graph_;
    const PlanCosts costs = plan_costs(judged, devices_, plan);
    // Not carried out where it cannot be better: busy for longer.
    for (size_t i = 0; i < plan.stages.size(); ++i) {
      const double m = static_cast<double>(plan.batch / plan.stages[i].micro_batch);
      if (m * costs.times[i].micro_batch() + costs.times[i].sync >= best_) return;
    }
    check(plan, judged, devices_);
    const Timeline line = evaluate(plan, costs, make_orders(plan, costs));
    pace_.took(plan.stages.size(), micro_batches, begun);
    if (!line.fits() || line.seconds >= best_) return;
    best_ = line.seconds;
    plan.predicted_seconds = line.seconds;
    result_.plan = std::move(plan);
  }

  const std::string_view name_;
  const graph::Graph& graph_;
  const Devices& devices_;
  const PlannerOptions& options_;
  Pace pace_;
  const std::vector<int64_t> sizes_;
  const Island island_;
  BaselineResult result_;
  bool search_timed_out_ = false;
  bool any_ = false;  // some micro-batch size gave a plan
  double best_ = std::numeric_limits<double>::infinity();
};

}  // namespace

BaselineResult run_baseline(std::string_view name, const graph::Graph& graph,
                            const Devices& devices, const PlannerOptions& options) {
  const double start = cpu_now();
  baselines().at(name);  // throws where there is none
  graph::check(graph);
  BaselineResult result = BaselineRun(name, graph, devices, options).run();
  result.cpu_seconds = cpu_now() - start;
  return result;
}

}  // namespace ductile::plan
