#include <algorithm>

#include "ductile/plan/baselines/equal_cuts_impl.h"
#include "ductile/plan/infinity_impl.h"

namespace ductile::plan {

namespace {

constexpr size_t kKept = 128;
constexpr size_t kKeptAlike = 12;  // of one order and number of stages
constexpr int kEveryCount = 16;    // up to so many stages, every number is tried

struct Ways {
  StageSums keep, again;  // with all activations, and recomputed
  int tensor = 1;
};

// One order cut into p parts.
class Cut {
 public:
  Cut(const graph::Graph& graph, std::span<const double> inputs, std::span<const OpId> order,
      std::span<const size_t> ends, const PlannerOptions& options)
      : graph_(graph), inputs_(inputs), options_(options) {
    plan_.graph = graph.name;
    plan_.planner = "ductile";
    plan_.batch = options.batch;
    size_t begin = 0;
    for (size_t end : ends) {
      Stage& stage = plan_.stages.emplace_back();
      stage.ops.assign(order.begin() + static_cast<long>(begin),
                       order.begin() + static_cast<long>(end));
      std::sort(stage.ops.begin(), stage.ops.end());
      begin = end;
    }
    std::vector<int> stage_of(graph.ops.size());
    for (size_t i = 0; i < plan_.stages.size(); ++i) {
      for (OpId v : plan_.stages[i].ops) stage_of[v] = static_cast<int>(i);
    }
    around_ = boundaries(graph, stage_of, plan_.stages.size());
    stages_ = stage_graph(graph, plan_);
    depth_ = in_flight_samples(stages_, plan_);  // micro-batches, as these have one sample here
  }

  int size() const { return static_cast<int>(plan_.stages.size()); }

  // All stages split by t, where they can be.
  void split(int tensor) {
    ways_.assign(plan_.stages.size(), {});
    for (size_t i = 0; i < ways_.size(); ++i) {
      const std::vector<OpId>& ops = plan_.stages[i].ops;
      const bool can = std::any_of(ops.begin(), ops.end(), [&](OpId v) {
        return graph::allows(graph_.ops[v], tensor, false);
      });
      Ways& w = ways_[i];
      w.tensor = can ? tensor : 1;
      w.keep = stage_sums(graph_, ops, w.tensor, {}, inputs_);
      const std::vector<OpId> again = recomputed(i);
      w.again = again.empty() ? w.keep : stage_sums(graph_, ops, w.tensor, again, inputs_);
    }
    tensor_ = tensor;
  }

  // Seconds by the formula with r replicas; infinite where it does not fit, or is no less than
  // `enough`. Then plan() is what was priced.
  double price(const Island& island, int64_t micro_batch, int replicas, double enough) {
    const int n = size();
    const int64_t m = options_.batch / micro_batch;
    std::vector<double> r(n, 0), s(n, 0), x(n, 0);
    double tau = 0, rest = 0;
    for (auto it = stages_.order.rbegin(); it != stages_.order.rend(); ++it) {
      const int i = *it;
      Stage& stage = plan_.stages[i];
      stage.tensor = ways_[i].tensor;
      // What cannot be split uses the devices as replicas, where they divide the micro-batch.
      const int64_t wide = int64_t{replicas} * tensor_ / ways_[i].tensor;
      stage.replicas = static_cast<int>(micro_batch % wide == 0 ? wide : replicas);
      stage.micro_batch = micro_batch;
      const int64_t w = std::min(depth_[i], m);
      stage.in_flight = w * micro_batch;
      const StageCost c = cost(i, island, w);
      if (c.most < w) return kInfinity;
      tau = std::max(tau, c.tau);
      if (static_cast<double>(m) * tau >= enough) return kInfinity;
      x[i] = c.transfer;
      double after = 0;
      for (int e : stages_.successors[i]) {
        const int j = stages_.edges[e].to;
        r[i] = std::max(r[i], r[j] + 2 * x[j]);
        after = std::max(after, s[j] + x[j]);
      }
      r[i] += c.round;
      s[i] = std::max(r[i] + c.sync, c.forward + after);
      rest = std::max(rest, s[i]);
    }
    const double seconds = static_cast<double>(m - 1) * tau + rest;
    return seconds < enough ? seconds : kInfinity;
  }

  Plan plan() const {
    Plan out = plan_;
    for (size_t i = 0; i < out.stages.size(); ++i) {
      if (again_[i]) out.stages[i].recompute = recomputed(i);
    }
    return out;
  }

 private:
  // The first way that fits: as it is, with the optimiser sharded, recomputed, both.
  StageCost cost(int i, const Island& island, int64_t w) {
    Stage& stage = plan_.stages[i];
    again_.resize(plan_.stages.size());
    StageCost c;
    for (const bool again : {false, true}) {
      if (again && !options_.recompute) break;
      for (const bool shard : {false, true}) {
        if (shard && (!options_.shard_optimizer || stage.replicas == 1)) continue;
        const Shape shape{stage.replicas, stage.tensor, 0, shard};
        c = stage_cost(again ? ways_[i].again : ways_[i].keep, around_[i], shape, graph_, island,
                       stage.micro_batch, options_.batch, Objective::time);
        again_[i] = again;
        stage.shard_optimizer = shard;
        if (c.most >= w) return c;
      }
    }
    return c;
  }

  std::vector<OpId> recomputed(size_t i) const {
    std::vector<OpId> out;
    for (OpId v : plan_.stages[i].ops) {
      const graph::Op& op = graph_.ops[v];
      const int t = graph::allows(op, ways_[i].tensor, false) ? ways_[i].tensor : 1;
      if (graph::allows(op, t, true)) out.push_back(v);
    }
    return out;
  }

  const graph::Graph& graph_;
  std::span<const double> inputs_;
  const PlannerOptions& options_;
  Plan plan_;
  StageGraph stages_;
  std::vector<Boundary> around_;
  std::vector<int64_t> depth_;
  std::vector<Ways> ways_;
  std::vector<char> again_;
  int tensor_ = 1;
};

// Numbers of stages: all up to kEveryCount, then four an octave, at most `most_counts` of them.
std::vector<int> counts_up_to(int most, size_t most_counts) {
  std::vector<int> counts;
  for (int p = 1; p <= most; p += std::max(1, p / kEveryCount * 4)) counts.push_back(p);
  if (counts.back() != most) counts.push_back(most);
  if (counts.size() <= most_counts) return counts;
  std::vector<int> fewer;
  for (size_t i = 0; i < most_counts; ++i) fewer.push_back(counts[i * counts.size() / most_counts]);
  return fewer;
}

}  // namespace

std::vector<size_t> equal_parts(const graph::Graph& graph, std::span<const OpId> order, int p,
                                int64_t micro_batch) {
  const double b = static_cast<double>(micro_batch);
  std::vector<double> work(order.size());
  double total = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const graph::OpCost& c = graph.ops[order[i]].cost;
    work[i] = c.forward.at(b) + c.backward_input.at(b) + c.backward_weight.at(b);
    total += work[i];
  }
  std::vector<size_t> ends;
  double done = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    // A new part where the middle of the operator lies in the next share; each gets one at least.
    const int made = static_cast<int>(ends.size()) + 1;
    const bool must = static_cast<int>(order.size() - i) <= p - made;
    const bool due = made < p && done + work[i] / 2 >= total * made / p;
    if (i > 0 && (due || must)) ends.push_back(i);
    done += work[i];
  }
  ends.push_back(order.size());
  return ends;
}

void add_equal_cuts(const graph::Graph& graph, std::span<const std::vector<OpId>> orders,
                    const Island& island, const PlannerOptions& options,
                    std::span<const int64_t> sizes, double most_work, Clock::time_point deadline,
                    std::vector<Candidate>& found) {
  int most_split = 1;
  for (const graph::Op& op : graph.ops) most_split = std::max(most_split, op.max_split);
  if (!options.split) most_split = 1;
  const std::vector<double> inputs = graph::input_bytes(graph);
  double splits = 1;
  for (int t = 2; t <= most_split; t *= 2) ++splits;
  const double size = static_cast<double>((graph.ops.size() + graph.edges.size()) * orders.size());
  const auto most_counts = static_cast<size_t>(std::max(2.0, most_work / (size * splits)));
  const int most = std::min<int>(island.devices, static_cast<int>(graph.ops.size()));
  std::vector<Candidate> kept;
  for (const std::vector<OpId>& order : orders) {
    for (int p : counts_up_to(most, most_counts)) {
      if (!kept.empty() && is_past(deadline)) break;
      Cut cut(graph, inputs, order, equal_parts(graph, order, p, sizes[sizes.size() / 2]), options);
      std::vector<Candidate> alike;
      for (int t = 1; t <= most_split && cut.size() * t <= island.devices; t *= 2) {
        cut.split(t);
        for (int64_t b : sizes) {
          for (int r = 1; r <= b && cut.size() * t * r <= island.devices; ++r) {
            if (b % r != 0 || (options.replicas > 0 && r != options.replicas)) continue;
            const double enough = alike.size() < kKeptAlike ? kInfinity : alike.back().seconds;
            const double seconds = cut.price(island, b, r, enough);
            if (seconds == kInfinity) continue;
            if (alike.size() == kKeptAlike) alike.pop_back();
            Candidate c{seconds, cut.plan(), {}};
            const auto at = std::upper_bound(
                alike.begin(), alike.end(), c,
                [](const Candidate& x, const Candidate& y) { return x.seconds < y.seconds; });
            alike.insert(at, std::move(c));
          }
        }
      }
      kept.insert(kept.end(), alike.begin(), alike.end());
    }
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Candidate& x, const Candidate& y) { return x.seconds < y.seconds; });
  if (kept.size() > kKept) kept.resize(kKept);
  for (Candidate& c : kept) found.push_back(std::move(c));
}

}  // namespace ductile::plan
