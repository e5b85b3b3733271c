#include <algorithm>
#include <limits>

#include "ductile/base/error.h"
#include "ductile/plan/baselines/sequential_search_impl.h"

namespace ductile::plan {
namespace {

constexpr float kUnreached = std::numeric_limits<float>::infinity();

class SequentialSearch {
 public:
  SequentialSearch(const SearchSpace& space, const Island& island, const PlannerOptions& options,
                   int64_t micro_batch, bool tensor_and_recompute, Clock::time_point deadline)
      : space_(space),
        island_(island),
        options_(options),
        micro_batch_(micro_batch),
        all_(options.batch / micro_batch),
        deadline_(deadline),
        last_(static_cast<int>(space.states().size()) - 1),
        num_n_(island.devices + 1) {
    make_shapes(tensor_and_recompute);
    num_s_ = tensor_ ? num_n_ : 1;
  }

  SequentialResult run() {
    SequentialResult result;
    if (!fill()) {
      result.timed_out = true;
      return result;
    }
    // The best, with fewest devices; then backwards from there.
    Cell end{last_, 0, 0};
    float least = kUnreached;
    for (int n = 0; n < num_n_; ++n) {
      for (int s = 0; s < num_s_; ++s) {
        const float v = best({last_, n, s});
        if (v < least) least = v, end = {last_, n, s};
      }
    }
    if (least == kUnreached) return result;
    result.found = true;
    result.seconds_per_sample = least;
    result.plan = plan_of(end);
    return result;
  }

 private:
  // Stages of all but the state's rest, on n devices, degrees summing to s (0 without tensor).
  struct Cell {
    int state = 0, n = 0, s = 0;
  };
  struct Step {
    int state = 0, transition = 0;
    Shape shape;
  };

  void make_shapes(bool tensor_and_recompute) {
    for (int v = 0; v < static_cast<int>(space_.variants().size()); ++v) {
      const Variant& variant = space_.variants()[v];
      if (!tensor_and_recompute && (variant.tensor > 1 || variant.recompute)) continue;
      if ((variant.tensor > 1 && !options_.split) || (variant.recompute && !options_.recompute)) {
        continue;
      }
      if (variant.tensor > island_.devices) continue;
      tensor_ = tensor_ || variant.tensor > 1;
      for (int r = 1; r <= island_.devices / variant.tensor && r <= micro_batch_; ++r) {
        if (micro_batch_ % r == 0) shapes_.push_back({r, variant.tensor, v, false});
      }
    }
  }

  float& best(const Cell& c) {
    return best_[(static_cast<size_t>(c.state) * num_n_ + c.n) * num_s_ + c.s];
  }
  StageCost cost(int state, int t, const Shape& shape) const {
    const SearchSpace::Transition& tr = space_.transitions()[t];
    if (!space_.can_split(state, tr.to, shape.variant)) return StageCost{};
    return stage_cost(space_.sums(state, t, shape.variant), {tr.in, tr.out}, shape, space_.graph(),
                      island_, micro_batch_, options_.batch, Objective::throughput);
  }
  // Micro-batches held by a stage put before n devices with degrees s.
  int64_t in_flight(int n, int s, const Shape& shape) const {
    const int sum = (tensor_ ? s : n) + shape.replicas;  // own included; n == s without tensor
    return std::min<int64_t>(all_, (sum + shape.replicas - 1) / shape.replicas);
  }

  // The table from its first state to its last; false: out of time.
  bool fill() {
    const auto states = space_.states();
    best_.assign(static_cast<size_t>(num_n_) * num_s_ * states.size(), kUnreached);
    best_[0] = 0;
    for (int state = 0; state < last_; ++state) {
      if (is_past(deadline_)) return false;
      for (int i = 0; i < states[state].num_transitions; ++i) {
        const int t = states[state].first_transition + i;
        for (const Shape& shape : shapes_) {
          const StageCost c = cost(state, t, shape);
          if (c.most >= 1) extend(state, space_.transitions()[t].to, shape, c);
        }
      }
    }
    return true;
  }

  // Puts the stage before all that the state has.
  void extend(int state, int next, const Shape& shape, const StageCost& c) {
    const float tau = static_cast<float>(c.tau);
    const int own = shape.devices();
    const int num_n = num_n_, num_s = num_s_;
    const bool tensor = tensor_;
    const float* from = &best({state, 0, 0});
    float* to = &best({next, 0, 0});
    for (int n = 0; n + own < num_n; ++n) {
      const int end = tensor ? std::min(n + 1, num_s - shape.replicas) : 1;
      for (int s = 0; s < end; ++s) {
        const float before = from[static_cast<size_t>(n) * num_s + s];
        if (before == kUnreached) continue;
        if (in_flight(n, s, shape) > c.most) continue;
        float& out = to[static_cast<size_t>(n + own) * num_s + (tensor ? s + shape.replicas : 0)];
        out = std::min(out, std::max(before, tau));
      }
    }
  }

  // The stage that brought a cell about; `cell` becomes the one before it. Found by scanning: there
  // are few steps, so that is cheap enough.
  Step step_before(Cell& cell) {
    const auto states = space_.states();
    const float value = best(cell);
    for (int state = 0; state < cell.state; ++state) {
      for (int i = 0; i < states[state].num_transitions; ++i) {
        const int t = states[state].first_transition + i;
        if (space_.transitions()[t].to != cell.state) continue;
        for (const Shape& shape : shapes_) {
          const Cell from{state, cell.n - shape.devices(), tensor_ ? cell.s - shape.replicas : 0};
          if (from.n < 0 || from.s < 0) continue;
          const float before = best(from);
          if (before > value) continue;
          const StageCost c = cost(state, t, shape);
          if (c.most < 1 || in_flight(from.n, from.s, shape) > c.most) continue;
          if (std::max(before, static_cast<float>(c.tau)) != value) continue;
          cell = from;
          return {state, t, shape};
        }
      }
    }
    DUCTILE_CHECK(false);
    return {};
  }

  Plan plan_of(Cell cell) {
    Plan plan;
    plan.graph = space_.graph().name;
    plan.batch = options_.batch;
    while (cell.state != 0) plan.stages.push_back(stage_of(step_before(cell)));  // first ones first
    const int num = static_cast<int>(plan.stages.size());
    for (int i = 0; i < num; ++i) {
      // A chain in step holds one more micro-batch at each stage before; memory allowed for more.
      plan.stages[i].in_flight = std::min<int64_t>(all_, num - i) * micro_batch_;
    }
    return plan;
  }

  Stage stage_of(const Step& step) const {
    const Variant& variant = space_.variants()[step.shape.variant];
    Stage stage;
    stage.ops = space_.stage_ops(step.state, space_.transitions()[step.transition].to);
    stage.replicas = step.shape.replicas;
    stage.tensor = variant.tensor;
    stage.micro_batch = micro_batch_;
    for (OpId v : stage.ops) {
      if (!variant.recompute) break;
      const graph::Op& op = space_.graph().ops[v];
      const int t = graph::allows(op, variant.tensor, false) ? variant.tensor : 1;
      if (graph::allows(op, t, true)) stage.recompute.push_back(v);
    }
    return stage;
  }

  const SearchSpace& space_;
  const Island& island_;
  const PlannerOptions& options_;
  const int64_t micro_batch_, all_;  // samples of one; how many there are
  const Clock::time_point deadline_;
  const int last_, num_n_;
  int num_s_ = 1;
  bool tensor_ = false;  // some shape is split
  std::vector<Shape> shapes_;
  std::vector<float> best_;  // by Cell
};

}  // namespace

SequentialResult sequential_search(const SearchSpace& space, const Island& island,
                                   const PlannerOptions& options, int64_t micro_batch,
                                   bool tensor_and_recompute, Clock::time_point deadline) {
  return SequentialSearch(space, island, options, micro_batch, tensor_and_recompute, deadline)
      .run();
}

}  // namespace ductile::plan
