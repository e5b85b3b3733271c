#include <algorithm>

#include "ductile/plan/baselines/equal_cuts_impl.h"
#include "ductile/plan/baselines/uniform_plans_impl.h"
#include "ductile/plan/schedule.h"

namespace ductile::plan {

namespace {

// The rank that holds part s of the chain.
int rank_of(std::string_view kind, int s, int ranks) {
  if (kind == "zb-v") return s < ranks ? s : 2 * ranks - 1 - s;
  return s % ranks;
}

// Megatron-LM's order of a rank's tasks, taken apart by part: as many forward passes as fill the
// pipeline, then one forward and one backward in turn; p micro-batches of a part, then of the next.
std::vector<std::vector<Task>> interleaved_orders(int rank, int ranks, int parts, int64_t m) {
  const int64_t all = m * parts;
  const int64_t warm_up =
      parts == 1 ? std::min<int64_t>(m, ranks - rank - 1)
                 : std::min<int64_t>(all, 2 * (ranks - rank - 1) + int64_t{parts - 1} * ranks);
  std::vector<std::vector<Task>> out(parts);
  const auto part = [&](int64_t k) {
    return static_cast<int>(k % (int64_t{ranks} * parts) / ranks);
  };
  int64_t forward = 0, backward = 0;
  const auto go_forward = [&] { out[part(forward++)].push_back(Task::forward); };
  const auto go_back = [&] { out[parts - 1 - part(backward++)].push_back(Task::backward); };
  while (forward < warm_up) go_forward();
  while (forward < all) go_forward(), go_back();
  while (backward < all) go_back();
  return out;
}

int64_t most_held(const std::vector<Task>& order) {
  int64_t held = 0, most = 0;
  for (Task t : order) most = std::max(most, held += t == Task::forward ? 1 : -1);
  return most;
}

bool splits(const graph::Graph& graph, const Stage& stage, int tensor) {
  return std::any_of(stage.ops.begin(), stage.ops.end(),
                     [&](OpId v) { return graph::allows(graph.ops[v], tensor, false); });
}

}  // namespace

Plan uniform_plan(std::string_view kind, const graph::Graph& graph, const UniformShape& shape,
                  const PlannerOptions& options, int64_t micro_batch) {
  const int n = shape.ranks * shape.parts;
  if (n > static_cast<int>(graph.ops.size())) return {};
  const std::vector<OpId> order = depth_first_order(graph);
  return uniform_plan(kind, graph, shape, options, micro_batch, order,
                      equal_parts(graph, order, n, micro_batch));
}

Plan uniform_plan(std::string_view kind, const graph::Graph& graph, const UniformShape& shape,
                  const PlannerOptions& options, int64_t micro_batch, std::span<const OpId> order,
                  std::span<const size_t> ends) {
  const int n = shape.ranks * shape.parts;
  const int64_t m = options.batch / micro_batch;
  Plan plan;
  plan.graph = graph.name;
  plan.planner = std::string(kind);
  plan.batch = options.batch;
  if (micro_batch % shape.replicas != 0) return plan;
  if (kind == "interleaved" && shape.parts > 1 && m % shape.ranks != 0) return plan;
  if (kind != "interleaved") plan.schedule = ScheduleKind::zero_bubble;
  const int width = shape.replicas * shape.tensor;
  std::vector<Stage> stages;
  size_t begin = 0;
  for (size_t end : ends) {
    Stage stage;
    stage.ops.assign(order.begin() + static_cast<long>(begin),
                     order.begin() + static_cast<long>(end));
    std::sort(stage.ops.begin(), stage.ops.end());
    begin = end;
    // What cannot be split has its devices as replicas.
    const bool split = splits(graph, stage, shape.tensor);
    stage.tensor = split ? shape.tensor : 1;
    stage.replicas = split ? shape.replicas : width;
    if (micro_batch % stage.replicas != 0) return plan;
    if (options.replicas > 0 && stage.replicas != options.replicas) return plan;
    stage.micro_batch = micro_batch;
    const int s = static_cast<int>(stages.size());
    const int rank = rank_of(kind, s, shape.ranks);
    stage.in_flight = std::min<int64_t>(m, n - s) * micro_batch;
    for (int d = 0; d < width; ++d) stage.devices.push_back(rank * width + d);
    for (OpId v : stage.ops) {
      const graph::Op& op = graph.ops[v];
      const int t = graph::allows(op, stage.tensor, false) ? stage.tensor : 1;
      if (shape.recompute && graph::allows(op, t, true)) stage.recompute.push_back(v);
    }
    stages.push_back(std::move(stage));
  }
  if (static_cast<int>(stages.size()) != n) return plan;
  plan.stages = std::move(stages);
  if (kind != "interleaved") return plan;
  plan.orders.resize(n);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const auto orders = interleaved_orders(rank, shape.ranks, shape.parts, m);
    for (int v = 0; v < shape.parts; ++v) {
      const int s = v * shape.ranks + rank;
      plan.orders[s] = to_letters(orders[v]);
      plan.stages[s].in_flight = most_held(orders[v]) * micro_batch;
    }
  }
  return plan;
}

void for_uniform_shapes(std::string_view kind, const graph::Graph& graph, const Island& island,
                        const PlannerOptions& options,
                        const std::function<void(const UniformShape&)>& visit) {
  int most_split = 1;
  bool recompute = false;
  for (const graph::Op& op : graph.ops) {
    most_split = std::max(most_split, op.max_split);
    recompute = recompute || op.recomputable;
  }
  if (!options.split) most_split = 1;
  constexpr int kParts[] = {1, 2, 3, 4, 6, 8, 12, 16};
  for (int t = 1; t <= std::min(most_split, island.per_node); t *= 2) {
    for (int p = 1; p * t <= island.devices; ++p) {
      if (island.devices % (p * t) != 0) continue;
      const int replicas = island.devices / (p * t);
      if (options.replicas > 0 && replicas != options.replicas) continue;
      for (int v : kParts) {
        if (kind == "zb-h1" && v != 1) continue;
        if (kind == "zb-v" && v != 2) continue;
        if (v > 1 && p == 1) continue;
        for (const bool again : {false, true}) {
          if (again && !(recompute && options.recompute)) continue;
          visit({p, replicas, t, v, again});
        }
      }
    }
  }
}

}  // namespace ductile::plan
