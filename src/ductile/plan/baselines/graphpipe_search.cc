#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "ductile/base/error.h"
#include "ductile/graph/series_parallel.h"
#include "ductile/plan/baselines/sequential_search_impl.h"

namespace ductile::plan {

namespace {

// Series-parallel subgraphs: a run of children of a series, or of a parallel composition.
class GraphPipe {
 public:
  GraphPipe(const graph::Graph& graph, const Island& island, const PlannerOptions& options,
            int64_t micro_batch, Clock::time_point deadline)
      : graph_(graph),
        island_(island),
        options_(options),
        micro_batch_(micro_batch),
        deadline_(deadline),
        inputs_(graph::input_bytes(graph)) {
    graph::SpTree tree = graph::series_parallel(graph);
    const graph::Topology topology(graph);
    root_ = convert(tree, tree.root, topology);
  }

  SequentialResult run() {
    SequentialResult result;
    // From the whole graph on one device, in which no plan can be slower, to eps.
    double high = 0;
    for (const graph::Op& op : graph_.ops) {
      const double b = static_cast<double>(micro_batch_);
      high +=
          (op.cost.forward.at(b) + op.cost.backward_input.at(b) + op.cost.backward_weight.at(b)) /
          b / island_.speed;
    }
    high = 2 * high + 1e-12;
    double low = 0;
    const double eps = 1e-3 * high / island_.devices;
    for (double target = high; target == high || high - low > eps; target = (low + high) / 2) {
      if (is_past(deadline_)) {
        result.timed_out = true;
        break;
      }
      memo_.clear();
      target_ = target;
      const bool none = solve(whole(root_), island_.devices, 0).samples == kNone;
      if (late_) {
        result.timed_out = true;
        break;
      }
      if (none) {
        if (!result.found) return result;  // even so slow a plan does not fit memory
        low = target;
        continue;
      }
      result.found = true;
      result.seconds_per_sample = target;
      result.plan = Plan{};
      result.plan.graph = graph_.name;
      result.plan.batch = options_.batch;
      collect(whole(root_), island_.devices, 0, result.plan);
      high = target;
    }
    if (!result.found) return result;
    std::reverse(result.plan.stages.begin(), result.plan.stages.end());
    const std::vector<int64_t> w = in_flight_samples(stage_graph(graph_, result.plan), result.plan);
    for (size_t i = 0; i < w.size(); ++i) result.plan.stages[i].in_flight = w[i];
    return result;
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  struct Node {
    bool series = true;
    std::vector<int> children;  // nodes; empty: one operator
    std::vector<OpId> ops;
  };
  struct Part {  // children [first, end) of a node
    int node = 0;
    int first = 0;
    int end = 0;
  };
  struct Entry {
    int64_t samples = kNone;  // in flight at the source
    int split = -1;           // child after which it is cut; -1: one stage
    int devices = 0;          // of the second part
  };

  int convert(const graph::SpTree& tree, int i, const graph::Topology& topology) {
    const graph::SpTree::Node& from = tree.nodes[i];
    Node node;
    node.ops = graph::ops_below(tree, i);
    if (from.kind == graph::SpTree::Kind::island) {
      std::vector<OpId> order = node.ops;
      std::sort(order.begin(), order.end(),
                [&](OpId a, OpId b) { return topology.position(a) < topology.position(b); });
      for (OpId v : order) {
        nodes_.push_back({true, {}, {v}});
        node.children.push_back(static_cast<int>(nodes_.size()) - 1);
      }
    } else if (from.kind != graph::SpTree::Kind::op) {
      node.series = from.kind == graph::SpTree::Kind::series;
      for (int child : from.children) {
        if (child >= 0) node.children.push_back(convert(tree, child, topology));
      }
    }
    nodes_.push_back(std::move(node));
    return static_cast<int>(nodes_.size()) - 1;
  }

  // The clock is read seldom; once late, always late.
  bool late() {
    if (!late_ && (++asked_ & 63) == 0) late_ = is_past(deadline_);
    return late_;
  }

  Part whole(int node) const {
    return {node, 0, std::max(1, static_cast<int>(nodes_[node].children.size()))};
  }
  // A run of one child is that child.
  Part simplify(Part p) const {
    while (p.end - p.first == 1 && !nodes_[p.node].children.empty()) {
      p = whole(nodes_[p.node].children[p.first]);
    }
    return p;
  }
  uint64_t part_key(const Part& p) const {
    return (static_cast<uint64_t>(p.node) << 32) ^ (static_cast<uint64_t>(p.first) << 16) ^
           static_cast<uint64_t>(p.end);
  }

  struct StageInfo {
    StageSums sums;
    Boundary border;
    std::vector<OpId> ops;
    std::vector<StageCost> costs;  // by log2 of the degree
  };
  const StageInfo& stage(const Part& p) {
    StageInfo& info = stages_[part_key(p)];
    if (info.ops.empty()) {
      const Node& node = nodes_[p.node];
      if (node.children.empty()) {
        info.ops = node.ops;
      } else {
        for (int c = p.first; c < p.end; ++c) {
          const std::vector<OpId>& ops = nodes_[node.children[c]].ops;
          info.ops.insert(info.ops.end(), ops.begin(), ops.end());
        }
      }
      std::sort(info.ops.begin(), info.ops.end());
      info.sums = stage_sums(graph_, info.ops, 1, {}, inputs_);
      info.border = boundary(graph_, info.ops);
      for (int d = 1; d <= island_.devices; d *= 2) {
        StageCost c;
        if (micro_batch_ % d == 0) {
          c = stage_cost(info.sums, info.border, {d, 1, 0, false}, graph_, island_, micro_batch_,
                         options_.batch, Objective::throughput);
        }
        info.costs.push_back(c);
      }
    }
    return info;
  }

  // Samples in flight at the source of `part` on d devices, given those of its readers.
  const Entry& solve(Part part, int d, int64_t after) {
    part = simplify(part);
    const uint64_t key =
        mix(part_key(part), static_cast<uint64_t>(d) << 40 | static_cast<uint64_t>(after));
    const auto known = memo_.find(key);
    if (known != memo_.end()) return known->second;
    Entry best;
    if (late()) return nothing_;
    if ((d & (d - 1)) == 0) {  // a power of two
      const StageCost& c = stage(part).costs[std::countr_zero(static_cast<unsigned>(d))];
      const int64_t w = std::min(after + micro_batch_, options_.batch);
      if (c.most >= w / micro_batch_ && c.tau <= target_) best = {w, -1, 0};
    }
    const Node& node = nodes_[part.node];
    // One stage holds the fewest samples there can be.
    if (best.samples == kNone && !node.children.empty()) {
      for (int cut = part.first + 1; cut < part.end && !late_; ++cut) {
        const Part a{part.node, part.first, cut};
        const Part b{part.node, cut, part.end};
        for (int second = 1; second < d && !late_; ++second) {
          int64_t w = kNone;
          const int64_t behind = solve(b, second, after).samples;
          if (behind == kNone) continue;
          if (node.series) {
            w = solve(a, d - second, behind).samples;
          } else {
            const int64_t other = solve(a, d - second, after).samples;
            w = other == kNone ? kNone : std::max(other, behind);
          }
          if (w < best.samples) best = {w, cut, second};
        }
        if (!node.series) break;  // the first branch against the others
      }
    }
    return memo_[key] = best;
  }

  void collect(Part part, int d, int64_t after, Plan& plan) {
    part = simplify(part);
    const Entry entry = solve(part, d, after);
    DUCTILE_CHECK(entry.samples < kNone);
    if (entry.split < 0) {
      Stage s;
      s.ops = stage(part).ops;
      s.replicas = d;
      s.micro_batch = micro_batch_;
      plan.stages.push_back(std::move(s));
      return;
    }
    const Part a{part.node, part.first, entry.split};
    const Part b{part.node, entry.split, part.end};
    const int64_t behind = solve(b, entry.devices, after).samples;
    collect(b, entry.devices, after, plan);
    collect(a, d - entry.devices, nodes_[part.node].series ? behind : after, plan);
  }

  static uint64_t mix(uint64_t a, uint64_t b) {
    a = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xFF51AFD7ED558CCDu;
    return a ^ (a >> 29) ^ (b << 1);
  }

  const graph::Graph& graph_;
  const Island& island_;
  const PlannerOptions& options_;
  int64_t micro_batch_;
  Clock::time_point deadline_;
  std::vector<double> inputs_;
  std::vector<Node> nodes_;
  int root_ = 0;
  double target_ = 0;
  bool late_ = false;
  uint32_t asked_ = 0;
  Entry nothing_;
  std::unordered_map<uint64_t, Entry> memo_;
  std::unordered_map<uint64_t, StageInfo> stages_;
};

}  // namespace

SequentialResult graphpipe_search(const graph::Graph& graph, const Island& island,
                                  const PlannerOptions& options, int64_t micro_batch,
                                  Clock::time_point deadline) {
  return GraphPipe(graph, island, options, micro_batch, deadline).run();
}

}  // namespace ductile::plan
