#include <algorithm>
#include <limits>

#include "ductile/base/error.h"
#include "ductile/plan/baselines/sequential_search_impl.h"

namespace ductile::plan {

SequentialResult sequential_search(const SearchSpace& space, const Island& island,
                                   const PlannerOptions& options, int64_t micro_batch,
                                   bool tensor_and_recompute, Clock::time_point deadline) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  SequentialResult result;
  const auto states = space.states();
  const int last = static_cast<int>(states.size()) - 1;
  std::vector<Shape> shapes;
  bool tensor = false;
  for (int v = 0; v < static_cast<int>(space.variants().size()); ++v) {
    const Variant& variant = space.variants()[v];
    if (!tensor_and_recompute && (variant.tensor > 1 || variant.recompute)) continue;
    if (variant.tensor > island.devices) continue;
    tensor = tensor || variant.tensor > 1;
    for (int r = 1; r <= island.devices / variant.tensor && r <= micro_batch; ++r) {
      if (micro_batch % r == 0) shapes.push_back({r, variant.tensor, v, false});
    }
  }
  const int num_n = island.devices + 1;
  const int num_s = tensor ? num_n : 1;
  const int64_t all = options.batch / micro_batch;
  const size_t table = static_cast<size_t>(num_n) * num_s;
  // best[state][n][s]: stages of all but the state's rest, on n devices, degrees summing to s.
  std::vector<float> best(table * states.size(), kInfinity);
  best[0] = 0;
  const auto cost = [&](int s, int t, const Shape& shape) {
    const SearchSpace::Transition& tr = space.transitions()[t];
    if (!space.can_split(s, tr.to, shape.variant)) return StageCost{};
    return stage_cost(space.sums(s, t, shape.variant), {tr.in, tr.out}, shape, space.graph(),
                      island, micro_batch, options.batch, Objective::throughput);
  };
  const auto in_flight = [&](int n, int s, const Shape& shape) {
    const int sum = (tensor ? s : n) + shape.replicas;  // own included; n == s without tensor
    return std::min<int64_t>(all, (sum + shape.replicas - 1) / shape.replicas);
  };
  for (int s = 0; s < last; ++s) {
    if (Clock::now() > deadline) {
      result.timed_out = true;
      return result;
    }
    const float* from = best.data() + table * s;
    for (int i = 0; i < states[s].num_transitions; ++i) {
      const int t = states[s].first_transition + i;
      float* to = best.data() + table * space.transitions()[t].to;
      for (const Shape& shape : shapes) {
        const StageCost c = cost(s, t, shape);
        if (c.most < 1) continue;
        const float tau = static_cast<float>(c.tau);
        const int own = shape.devices();
        for (int n = 0; n + own < num_n; ++n) {
          const int end = tensor ? std::min(n + 1, num_s - shape.replicas) : 1;
          for (int q = 0; q < end; ++q) {
            const float before = from[static_cast<size_t>(n) * num_s + q];
            if (before == kInfinity) continue;
            if (in_flight(n, q, shape) > c.most) continue;
            float& out =
                to[static_cast<size_t>(n + own) * num_s + (tensor ? q + shape.replicas : 0)];
            out = std::min(out, std::max(before, tau));
          }
        }
      }
    }
  }
  // The best, with fewest devices; then backwards from there.
  float least = kInfinity;
  int n = 0, q = 0;
  for (int a = 0; a < num_n; ++a) {
    for (int b = 0; b < num_s; ++b) {
      const float v = best[table * last + static_cast<size_t>(a) * num_s + b];
      if (v < least) least = v, n = a, q = b;
    }
  }
  if (least == kInfinity) return result;
  result.found = true;
  result.seconds_per_sample = least;
  // Predecessors of a state are found by scanning; few steps, so that is cheap enough.
  std::vector<std::pair<int, int>> steps;  // state, transition
  std::vector<Shape> used;
  std::vector<int64_t> flight;
  int state = last;
  while (state != 0) {
    const float value = best[table * state + static_cast<size_t>(n) * num_s + q];
    bool found = false;
    for (int s = 0; s < state && !found; ++s) {
      for (int i = 0; i < states[s].num_transitions && !found; ++i) {
        const int t = states[s].first_transition + i;
        if (space.transitions()[t].to != state) continue;
        for (const Shape& shape : shapes) {
          const int bn = n - shape.devices();
          const int bq = tensor ? q - shape.replicas : 0;
          if (bn < 0 || bq < 0) continue;
          const float before = best[table * s + static_cast<size_t>(bn) * num_s + bq];
          if (before > value) continue;
          const StageCost c = cost(s, t, shape);
          if (c.most < 1 || in_flight(bn, bq, shape) > c.most) continue;
          if (std::max(before, static_cast<float>(c.tau)) != value) continue;
          steps.emplace_back(s, t);
          used.push_back(shape);
          flight.push_back(in_flight(bn, bq, shape));
          state = s;
          n = bn;
          q = bq;
          found = true;
          break;
        }
      }
    }
    DUCTILE_CHECK(found);
  }
  // Found first stages first.
  Plan& plan = result.plan;
  plan.graph = space.graph().name;
  plan.batch = options.batch;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Variant& variant = space.variants()[used[i].variant];
    Stage stage;
    stage.ops = space.stage_ops(steps[i].first, space.transitions()[steps[i].second].to);
    stage.replicas = used[i].replicas;
    stage.tensor = variant.tensor;
    stage.micro_batch = micro_batch;
    for (OpId v : stage.ops) {
      if (!variant.recompute) break;
      const graph::Op& op = space.graph().ops[v];
      const int t = graph::allows(op, variant.tensor, false) ? variant.tensor : 1;
      if (graph::allows(op, t, true)) stage.recompute.push_back(v);
    }
    plan.stages.push_back(std::move(stage));
  }
  const int num = static_cast<int>(plan.stages.size());
  for (int i = 0; i < num; ++i) {
    // A chain in step holds one more micro-batch at each stage before; memory allowed for `flight`.
    plan.stages[i].in_flight = std::min<int64_t>(all, num - i) * micro_batch;
  }
  return result;
}

}  // namespace ductile::plan
