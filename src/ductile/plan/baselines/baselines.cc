#include "ductile/plan/baselines/baselines.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "ductile/base/error.h"
#include "ductile/graph/downsets.h"
#include "ductile/plan/baselines/equal_cuts_impl.h"
#include "ductile/plan/baselines/sequential_search_impl.h"
#include "ductile/plan/baselines/uniform_plans_impl.h"
#include "ductile/plan/cpu_clock_impl.h"

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

// The largest first: where time is short, those have the fewest tasks to carry out.
std::vector<int64_t> sizes_of(const PlannerOptions& options) {
  std::vector<int64_t> sizes = options.micro_batches;
  if (sizes.empty()) {
    for (int64_t b = 1; b <= options.batch; ++b) {
      if (options.batch % b == 0) sizes.push_back(b);
    }
  }
  std::sort(sizes.rbegin(), sizes.rend());
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
  std::vector<int> next_output(graph.ops.size(), 0);
  for (const graph::Edge& e : graph.edges) {
    next_output[e.from] = std::max(next_output[e.from], e.output + 1);
  }
  for (size_t i = 0; i + 1 < plan.stages.size(); ++i) {
    const auto& from = plan.stages[i].ops;
    const auto& to = plan.stages[i + 1].ops;
    const OpId last = *std::max_element(from.begin(), from.end(), by_position);
    const OpId first = *std::min_element(to.begin(), to.end(), by_position);
    graph::Edge edge;
    edge.from = last;
    edge.to = first;
    edge.output = next_output[last];
    out.edges.push_back(edge);
  }
  return out;
}

BaselineResult run_baseline(std::string_view name, const graph::Graph& graph,
                            const Devices& devices, const PlannerOptions& options) {
  const double start = cpu_now();
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(std::clamp(options.time_limit, 1e-3, 1e6)));
  baselines().at(name);  // throws where there is none
  graph::check(graph);
  const Island island = island_of(devices);
  BaselineResult result;
  bool timed_out = false;
  bool any = false;             // some micro-batch size gave a plan
  double seconds_per_task = 0;  // of the judge
  double best = std::numeric_limits<double>::infinity();
  const auto late = [&] {
    if (Clock::now() <= deadline) return false;
    timed_out = true;
    return true;
  };
  const auto consider = [&](Plan plan, bool is_chain) {
    // The judge cannot be stopped: not begun where it would take longer than there is.
    double tasks = 0;
    for (const Stage& s : plan.stages) {
      tasks += static_cast<double>(plan.batch) / static_cast<double>(s.micro_batch);
    }
    const std::chrono::duration<double> left = deadline - Clock::now();
    if (tasks * seconds_per_task > left.count()) {
      timed_out = true;
      return;
    }
    any = true;
    plan.planner = std::string(name);
    const Clock::time_point begun = Clock::now();
    if (plan.stages[0].devices.empty()) place(graph, devices, plan);
    const graph::Graph judged = is_chain ? chained(graph, plan) : graph;
    const PlanCosts costs = plan_costs(judged, devices, plan);
    // Not carried out where it cannot be better: busy for longer.
    for (size_t i = 0; i < plan.stages.size(); ++i) {
      const double m = static_cast<double>(plan.batch / plan.stages[i].micro_batch);
      if (m * costs.times[i].micro_batch() + costs.times[i].sync >= best) return;
    }
    check(plan, judged, devices);
    const Timeline line = evaluate(plan, costs, make_orders(plan, costs));
    const std::chrono::duration<double> taken = Clock::now() - begun;
    seconds_per_task = taken.count() / tasks;
    if (!line.fits() || line.seconds >= best) return;
    best = line.seconds;
    plan.predicted_seconds = line.seconds;
    result.plan = std::move(plan);
  };
  const auto search_chain = [&](const SearchSpace& space, bool tensor) {
    for (int64_t b : sizes_of(options)) {
      if (late()) break;
      const SequentialResult r = sequential_search(space, island, options, b, tensor, deadline);
      timed_out = timed_out || r.timed_out;
      if (r.found) consider(r.plan, true);
    }
  };
  if (name == "piper") {
    SearchSpace space;
    if (graph::count_downsets(graph::Topology(graph), kPiperDownsets) > kPiperDownsets) {
      result.failure = "more than 40,000 downsets, its limit";
    } else if (!SearchSpace::all_downsets(graph, kPiperTransitions, space)) {
      result.failure = "too many pairs of downsets to hold";
    } else {
      search_chain(space, true);
    }
  } else if (name == "pipedream") {
    SearchSpace space;
    if (graph::count_downsets(graph::Topology(graph), kPipeDreamStates) > kPipeDreamStates ||
        !SearchSpace::all_downsets(graph, kPiperTransitions, space)) {
      space = SearchSpace::of_order(
          graph, depth_first_order(graph),
          static_cast<int>(std::min<size_t>(graph.ops.size() + 1, kPipeDreamStates)));
    }
    search_chain(space, false);
  } else if (name == "graphpipe") {
    for (int64_t b : sizes_of(options)) {
      if (late()) break;
      if ((b & (b - 1)) != 0) continue;  // powers of two
      const SequentialResult r = graphpipe_search(graph, island, options, b, deadline);
      timed_out = timed_out || r.timed_out;
      if (r.found) consider(r.plan, false);
    }
  } else if (name == "interleaved" || name == "zb-h1" || name == "zb-v") {
    for_uniform_shapes(name, graph, island, options, [&](const UniformShape& shape) {
      for (int64_t b : sizes_of(options)) {
        if (late()) break;
        Plan plan = uniform_plan(name, graph, shape, options, b);
        if (!plan.stages.empty()) consider(std::move(plan), true);
      }
    });
  } else {
    for (int64_t b : sizes_of(options)) {
      if (late()) break;
      if (name == "equal") {
        consider(equal_plan(graph, island, options, b), true);
      } else {
        consider(data_plan(graph, island, options, b), false);
      }
    }
  }
  if (result.plan.stages.empty() && result.failure.empty()) {
    result.failure = timed_out ? "out of time"
                     : any     ? "no plan fits memory"
                               : "no plan within its search fits memory";
  }
  result.cpu_seconds = cpu_now() - start;
  return result;
}

}  // namespace ductile::plan
