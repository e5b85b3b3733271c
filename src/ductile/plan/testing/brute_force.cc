#include "ductile/plan/testing/brute_force.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

#include "ductile/base/rng.h"
#include "ductile/plan/infinity_impl.h"
#include "ductile/plan/label_search_impl.h"

namespace ductile::plan {

namespace {

using Mask = uint32_t;

struct Twin {
  const graph::Graph& graph;
  std::vector<Island> islands;
  int devices = 0;  // of all
  const PlannerOptions& options;
  int64_t b = 1;
  graph::Topology topology;
  std::vector<double> inputs;
  std::vector<std::tuple<int, bool, bool, int, int>> shapes;  // tensor, ..., replicas, island
  std::map<std::pair<Mask, int>, StageCost> costs;
  std::vector<Mask> blocks;
  double best = kInfinity;

  Twin(const graph::Graph& g, std::vector<Island> f, const PlannerOptions& o)
      : graph(g), islands(std::move(f)), options(o), topology(g), inputs(graph::input_bytes(g)) {
    for (const Island& island : islands) devices += island.devices;
  }

  const StageCost& cost(Mask set, int k) {
    const auto [it, fresh] = costs.try_emplace({set, k});
    if (!fresh) return it->second;
    const auto [t, recompute, shard, r, f] = shapes[k];
    std::vector<OpId> ops, again;
    bool split = t == 1;
    for (OpId v = 0; v < static_cast<OpId>(graph.ops.size()); ++v) {
      if (!(set >> v & 1)) continue;
      ops.push_back(v);
      split = split || graph::allows(graph.ops[v], t, false);
      const int own = graph::allows(graph.ops[v], t, false) ? t : 1;
      if (recompute && graph::allows(graph.ops[v], own, true)) again.push_back(v);
    }
    if (!split) return it->second;  // nothing in flight is allowed: no shape of this stage
    return it->second = stage_cost(stage_sums(graph, ops, t, again, inputs), boundary(graph, ops),
                                   {r, t, 0, shard, f}, graph, islands[f], b, options.batch,
                                   options.objective);
  }

  bool reads(Mask from, Mask to) const {
    for (OpId v = 0; v < static_cast<OpId>(graph.ops.size()); ++v) {
      if (!(from >> v & 1)) continue;
      for (OpId w : topology.successors(v)) {
        if (to >> w & 1) return true;
      }
    }
    return false;
  }

  // Blocks from the sinks up, or nothing if they form a cycle.
  std::vector<int> order() const {
    const int n = static_cast<int>(blocks.size());
    std::vector<int> out;
    Mask done = 0;
    while (static_cast<int>(out.size()) < n) {
      bool moved = false;
      for (int i = 0; i < n; ++i) {
        if (done >> i & 1) continue;
        bool free = true;
        for (int j = 0; j < n; ++j) {
          if (i != j && !(done >> j & 1) && reads(blocks[i], blocks[j])) free = false;
        }
        if (!free) continue;
        out.push_back(i);
        done |= Mask{1} << i;
        moved = true;
      }
      if (!moved) return {};
    }
    return out;
  }

  void assign(size_t i) {
    const auto ops = topology.order();
    if (i == ops.size()) {
      price();
      return;
    }
    const Mask bit = Mask{1} << ops[i];
    for (size_t k = 0; k < blocks.size(); ++k) {
      blocks[k] |= bit;
      if (!order().empty()) assign(i + 1);
      blocks[k] &= ~bit;
    }
    if (static_cast<int>(blocks.size()) < devices) {
      blocks.push_back(bit);
      assign(i + 1);
      blocks.pop_back();
    }
  }

  void price() {
    const std::vector<int> at = order();
    const int n = static_cast<int>(blocks.size());
    std::vector<int> shape(n);
    std::vector<double> r(n), s(n), x(n);
    std::vector<int64_t> w(n);
    const int64_t m = options.batch / b;
    std::vector<int> left;
    for (const Island& island : islands) left.push_back(island.devices);
    const auto go = [&](auto&& self, int i, double tau, double rest) -> void {
      if (i == n) {
        const double seconds = options.objective == Objective::throughput
                                   ? static_cast<double>(options.batch) * tau
                                   : static_cast<double>(m - 1) * tau + rest;
        best = std::min(best, seconds);
        return;
      }
      const int block = at[i];
      for (int k = 0; k < static_cast<int>(shapes.size()); ++k) {
        const auto [t, recompute, shard, replicas, f] = shapes[k];
        if (t * replicas > left[f]) continue;
        const StageCost& c = cost(blocks[block], k);
        double back = 0, after = 0;
        int64_t behind = 0;
        for (int j = 0; j < i; ++j) {
          const int other = at[j];
          if (!reads(blocks[block], blocks[other])) continue;
          back = std::max(back, r[other] + 2 * x[other]);
          after = std::max(after, s[other] + x[other]);
          behind = std::max(behind, w[other]);
        }
        w[block] = std::min(behind + 1, m);
        if (w[block] > c.most) continue;
        x[block] = c.transfer;
        r[block] = back + c.round;
        s[block] = std::max(r[block] + c.sync, c.forward + after);
        left[f] -= t * replicas;
        self(self, i + 1, std::max(tau, c.tau), std::max(rest, s[block]));
        left[f] += t * replicas;
      }
    };
    go(go, 0, 0, 0);
  }
};

}  // namespace

namespace {

double brute_force(const graph::Graph& graph, const std::vector<Island>& islands,
                   const PlannerOptions& options) {
  Twin twin(graph, islands, options);
  for (int64_t b = 1; b <= options.batch; ++b) {
    if (options.batch % b != 0) continue;
    if (!options.micro_batches.empty() &&
        std::find(options.micro_batches.begin(), options.micro_batches.end(), b) ==
            options.micro_batches.end()) {
      continue;
    }
    twin.b = b;
    twin.costs.clear();
    twin.shapes.clear();
    int most_tensor = 1;
    bool recompute = false;
    for (const graph::Op& op : graph.ops) {
      most_tensor = std::max(most_tensor, op.max_split);
      recompute = recompute || op.recomputable;
    }
    for (int t = 1; t <= (options.split ? most_tensor : 1); t *= 2) {
      for (int r = 1; r <= b; ++r) {
        if (b % r != 0 || (options.replicas > 0 && r != options.replicas)) continue;
        for (const bool again : {false, true}) {
          if (again && !(recompute && options.recompute)) continue;
          for (int f = 0; f < static_cast<int>(islands.size()); ++f) {
            twin.shapes.emplace_back(t, again, false, r, f);
            if (r > 1 && options.shard_optimizer && graph.optimizer_factor > 0) {
              twin.shapes.emplace_back(t, again, true, r, f);
            }
          }
        }
      }
    }
    twin.assign(0);
  }
  return twin.best;
}

}  // namespace

double brute_force(const graph::Graph& graph, const Devices& devices,
                   const PlannerOptions& options) {
  // Stages on one group each, or all devices taken for the least of them.
  const std::vector<Island> islands = islands_of(devices);
  const double all = brute_force(graph, {island_of(devices)}, options);
  return islands.size() == 1 ? all : std::min(all, brute_force(graph, islands, options));
}

namespace {

Objective random_objective(Rng& rng) {
  if (rng.below(3) == 0) return Objective::throughput;
  return rng.below(3) == 0 ? Objective::zero_bubble : Objective::time;
}

}  // namespace

SmallCase small_case(uint64_t seed) {
  Rng rng(seed, 5);
  SmallCase out;
  graph::Graph& g = out.graph;
  g.name = "small";
  const int kind = static_cast<int>(rng.below(6));
  // Wide graphs have many partitions, so they stay smaller.
  int n = 2 + static_cast<int>(rng.below(kind == 0 ? 7 : 5));
  if (rng.below(40) == 0) n = kind == 0 ? 9 + static_cast<int>(rng.below(4)) : 7;
  for (int i = 0; i < n; ++i) {
    graph::Op op;
    op.name = "op" + std::to_string(i);
    op.kind = "op";
    op.cost.forward = {0.2 * rng.uniform(), 0.1 + rng.uniform()};
    op.cost.backward_input = {0.1 * rng.uniform(), rng.uniform()};
    if (rng.below(3) > 0) op.cost.backward_weight = {0, rng.uniform()};
    op.cost.parameter_bytes = rng.below(3) == 0 ? 0 : static_cast<double>(rng.below(100));
    op.cost.activation_bytes = static_cast<double>(rng.below(30));
    if (rng.below(4) == 0) op.cost.workspace_bytes = {static_cast<double>(rng.below(20)), 2};
    op.output_bytes = 10;
    if (rng.below(3) == 0) op.max_split = 2;
    op.recomputable = rng.below(3) == 0;
    if (rng.below(6) == 0) op.tied = static_cast<int>(rng.below(2));
    g.ops.push_back(op);
  }
  double tied[2] = {-1, -1};
  for (graph::Op& op : g.ops) {  // of equal size
    if (op.tied < 0) continue;
    double& size = tied[op.tied];
    if (size < 0) size = op.cost.parameter_bytes;
    op.cost.parameter_bytes = size;
  }
  const auto edge = [&](int a, int b) {
    g.edges.push_back({a, b, static_cast<int>(rng.below(2)), 0, 0, 0});
  };
  for (int i = 1; i < n; ++i) {
    if (kind == 0) {  // a chain with skips
      edge(i - 1, i);
      if (i > 1 && rng.below(4) == 0) edge(static_cast<int>(rng.below(i - 1)), i);
    } else if (kind == 1) {  // branches that meet in the last
      if (i == n - 1) {
        for (int j = std::max(0, i - 3); j < i; ++j) edge(j, i);
      } else if (i >= 3) {
        edge(i - 3, i);
      }
    } else if (kind == 2) {  // out-tree
      edge(static_cast<int>(rng.below(i)), i);
    } else {  // random, some operators alone
      for (int j = 0; j < i; ++j) {
        if (rng.below(n) < (kind == 3 ? 1u : 2u)) edge(j, i);
      }
    }
  }
  for (graph::Edge& e : g.edges) e.bytes = 5 + 5 * e.output + e.from;
  if (rng.below(2) == 0) g.optimizer_factor = 1 + rng.below(2);

  DeviceGroup group;
  const int devices = 1 + static_cast<int>(rng.below(6));
  const int per_node = rng.below(2) == 0 ? devices : 1;
  const uint32_t memory = rng.below(3);
  group.memory = memory == 0 ? 1e9 : memory == 1 ? 400 + rng.below(800) : 100 + rng.below(500);
  group.intra = {400, 0.001};
  group.inter = {rng.below(2) == 0 ? 1e6 : 100.0, 0.002};
  out.devices = uniform_devices(devices, per_node, group);
  Rng other(seed, 6);
  if (devices > 1 && devices < 6 && n < 7 && other.below(4) == 0) {  // two groups
    DeviceGroup second = group;
    second.name = "second";
    group.nodes = 1 + static_cast<int>(other.below(devices - 1));
    second.nodes = devices - group.nodes;
    group.devices_per_node = second.devices_per_node = 1;
    second.speed = 0.5 + 0.5 * other.below(6);
    if (other.below(2) == 0) second.memory *= 0.5 + 0.5 * other.below(4);
    if (other.below(3) == 0) second.inter = {1000, 0.01};
    out.devices = Devices({group, second});
  }
  constexpr int64_t kBatches[] = {1, 2, 4, 6};
  out.options.batch = kBatches[rng.below(4)];
  if (out.options.batch == 6) out.options.micro_batches = {2, 6};
  if (out.options.batch == 4) out.options.micro_batches = {1, 4};
  out.options.objective = random_objective(rng);
  out.options.recompute = rng.below(4) > 0;
  out.options.split = rng.below(4) > 0;
  out.options.evaluate = false;
  out.options.tolerance = 0;
  out.options.max_labels = 1'000'000;
  return out;
}

}  // namespace ductile::plan
