#include <algorithm>
#include <numeric>

#include "ductile/base/error.h"
#include "ductile/plan/islands_impl.h"
#include "ductile/plan/planner.h"

namespace ductile::plan {

namespace {

// Greedy, the largest stages first: a stage larger than a node takes whole free nodes and what is
// left over of one; a smaller one goes into one node, of those with room the one that holds most of
// its traffic partners, else the fullest that still has room. Only where no node has room is a
// stage spread.
class Placement {
 public:
  // `islands`: of each stage, or empty where any device will do.
  Placement(const graph::Graph& graph, const Devices& devices, std::span<const int> islands,
            Plan& plan)
      : graph_(graph),
        devices_(devices),
        islands_(islands),
        plan_(plan),
        stages_(stage_graph(graph, plan)),
        free_(devices.num_nodes()),
        on_node_(plan.stages.size()) {
    for (int d = 0; d < devices.size(); ++d) free_[devices.node(d)].push_back(d);
    const std::vector<int> island_of_group = island_numbers(devices);
    for (std::vector<int>& f : free_) {
      std::reverse(f.begin(), f.end());  // taken from the back
      speed_.push_back(devices.group(f.back()).speed);
      island_.push_back(island_of_group[devices.group_index(f.back())]);
    }
  }

  void run() {
    for (int i : largest_first()) {
      Stage& stage = plan_.stages[i];
      stage.devices.clear();
      const size_t size = static_cast<size_t>(stage.num_devices());
      if (const int node = best_node(i, size); node >= 0) {
        take(node, size, stage);
      } else {
        spread(i, size);
      }
      note(i);
    }
  }

 private:
  // Stages in topological order within equal size, so neighbours meet on a node.
  std::vector<int> largest_first() const {
    const int num = static_cast<int>(plan_.stages.size());
    std::vector<int> rank(num);
    for (int i = 0; i < num; ++i) rank[stages_.order[i]] = i;
    std::vector<double> load(num, 0);
    for (int i = 0; i < num; ++i) {
      for (OpId v : plan_.stages[i].ops) {
        load[i] += graph_.ops[v].cost.total_per_sample() / plan_.stages[i].num_devices();
      }
    }
    const bool uniform = devices_.is_uniform();
    std::vector<int> order(num);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      const int x = plan_.stages[a].num_devices();
      const int y = plan_.stages[b].num_devices();
      if (!uniform && islands_.empty() && load[a] != load[b]) return load[a] > load[b];
      return x != y ? x > y : rank[a] < rank[b];
    });
    return order;
  }

  bool may_use(int stage, int node) const {
    return islands_.empty() || island_[node] == islands_[stage];
  }

  // The best single node for the stage; -1: none has room.
  int best_node(int i, size_t size) const {
    std::vector<double> traffic(free_.size(), 0);
    const auto add = [&](int other, double bytes) {
      for (const auto& [node, share] : on_node_[other]) traffic[node] += bytes * share;
    };
    for (int e : stages_.successors[i]) add(stages_.edges[e].to, stages_.edges[e].bytes);
    for (int e : stages_.predecessors[i]) add(stages_.edges[e].from, stages_.edges[e].bytes);
    int best = -1;
    for (int node = 0; node < static_cast<int>(free_.size()); ++node) {
      if (free_[node].size() < size || !may_use(i, node)) continue;
      if (best < 0) {
        best = node;
      } else if (speed_[node] != speed_[best]) {
        if (speed_[node] > speed_[best]) best = node;
      } else if (traffic[node] != traffic[best]) {
        if (traffic[node] > traffic[best]) best = node;
      } else if (free_[node].size() < free_[best].size()) {
        best = node;
      }
    }
    return best;
  }

  // So many devices of the node, or what it has.
  void take(int node, size_t count, Stage& stage) {
    for (; count > 0 && !free_[node].empty(); --count) {
      stage.devices.push_back(free_[node].back());
      free_[node].pop_back();
    }
  }

  void spread(int i, size_t size) {
    Stage& stage = plan_.stages[i];
    std::vector<int> nodes(free_.size());
    std::iota(nodes.begin(), nodes.end(), 0);
    std::stable_sort(nodes.begin(), nodes.end(), [&](int a, int b) {
      if (speed_[a] != speed_[b]) return speed_[a] > speed_[b];
      return free_[a].size() > free_[b].size();
    });
    for (int node : nodes) {
      if (may_use(i, node)) take(node, size - stage.devices.size(), stage);
    }
  }

  // Where the stage is, for those that come after it.
  void note(int i) {
    const Stage& stage = plan_.stages[i];
    for (int d : stage.devices) {
      const int node = devices_.node(d);
      auto it = std::find_if(on_node_[i].begin(), on_node_[i].end(),
                             [&](const auto& p) { return p.first == node; });
      if (it == on_node_[i].end()) it = on_node_[i].insert(it, {node, 0});
      it->second += 1.0 / static_cast<double>(stage.num_devices());
    }
  }

  const graph::Graph& graph_;
  const Devices& devices_;
  const std::span<const int> islands_;
  Plan& plan_;
  const StageGraph stages_;
  std::vector<std::vector<int>> free_;                        // devices of each node
  std::vector<double> speed_;                                 // of each node
  std::vector<int> island_;                                   // that each node belongs to
  std::vector<std::vector<std::pair<int, double>>> on_node_;  // of placed stages: node, share
};

void place(const graph::Graph& graph, const Devices& devices, std::span<const int> islands,
           Plan& plan) {
  int needed = 0;
  for (const Stage& s : plan.stages) needed += s.num_devices();
  if (needed > devices.size()) {
    fail(ErrorCode::invalid_argument, "the plan needs {} devices; there are {}", needed,
         devices.size());
  }
  Placement(graph, devices, islands, plan).run();
}

}  // namespace

void place(const graph::Graph& graph, const Devices& devices, Plan& plan) {
  place(graph, devices, {}, plan);
}

void place_on_islands(const graph::Graph& graph, const Devices& devices,
                      std::span<const int> islands, Plan& plan) {
  place(graph, devices, islands, plan);
}

}  // namespace ductile::plan
