#include <algorithm>
#include <limits>

#include "ductile/base/error.h"
#include "ductile/plan/stage_cost_impl.h"

namespace ductile::plan {

std::string_view to_string(Objective objective) {
  switch (objective) {
    case Objective::time:
      return "time";
    case Objective::throughput:
      return "throughput";
    case Objective::zero_bubble:
      return "zero-bubble";
  }
  return "";
}

Objective objective_from(std::string_view name) {
  if (name == "time") return Objective::time;
  if (name == "throughput") return Objective::throughput;
  fail(ErrorCode::invalid_argument, "objective \"{}\" is unknown; time or throughput", name);
}

double formula_seconds(const graph::Graph& graph, const Devices& devices, const Plan& plan,
                       Objective objective) {
  const Island all = island_of(devices);
  const std::vector<Island> islands = islands_of(devices);
  const std::vector<int> island_of_group = island_numbers(devices);
  // The island that a stage was placed on, if it is one.
  const auto island_of_stage = [&](const Stage& stage) -> const Island& {
    if (stage.devices.empty() || islands.size() == 1) return all;
    const auto number = [&](int device) { return island_of_group[devices.group_index(device)]; };
    for (int d : stage.devices) {
      if (number(d) != number(stage.devices[0])) return all;
    }
    return islands[number(stage.devices[0])];
  };
  const StageGraph stages = stage_graph(graph, plan);
  const std::vector<double> inputs = graph::input_bytes(graph);
  const int n = static_cast<int>(plan.stages.size());
  std::vector<double> r(n, 0), s(n, 0), x(n, 0);
  double tau = 0;
  double rest = 0;
  int64_t micro_batch = 1;
  const std::vector<int64_t> in_flight = in_flight_samples(stages, plan);
  for (auto it = stages.order.rbegin(); it != stages.order.rend(); ++it) {
    const int i = *it;
    const Stage& stage = plan.stages[i];
    micro_batch = stage.micro_batch;
    const Shape shape{stage.replicas, stage.tensor, 0, stage.shard_optimizer};
    const StageSums sums = stage_sums(graph, stage.ops, stage.tensor, stage.recompute, inputs);
    const StageCost c = stage_cost(sums, boundary(graph, stage.ops), shape, graph,
                                   island_of_stage(stage), micro_batch, plan.batch, objective);
    if (c.most < in_flight[i] / micro_batch) return std::numeric_limits<double>::infinity();
    tau = std::max(tau, c.tau);
    x[i] = c.transfer;
    double after = 0;
    for (int e : stages.successors[i]) {
      const int j = stages.edges[e].to;
      r[i] = std::max(r[i], r[j] + 2 * x[j]);
      after = std::max(after, s[j] + x[j]);
    }
    r[i] += c.round;
    s[i] = std::max(r[i] + c.sync, c.forward + after);
    rest = std::max(rest, s[i]);
  }
  if (objective == Objective::throughput) return static_cast<double>(plan.batch) * tau;
  return static_cast<double>(plan.batch / micro_batch - 1) * tau + rest;
}

}  // namespace ductile::plan
