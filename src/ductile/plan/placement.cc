#include <algorithm>
#include <numeric>

#include "ductile/base/error.h"
#include "ductile/plan/planner.h"
#include "ductile/plan/search_space_impl.h"

namespace ductile::plan {

namespace {

// Greedy, the largest stages first: a stage larger than a node takes whole free nodes and what is
// left over of one; a smaller one goes into one node, of those with room the one that holds most of
// its traffic partners, else the fullest that still has room. Only where no node has room is a
// stage spread.
// `islands`: of each stage, or empty where any device will do.
void place(const graph::Graph& graph, const Devices& devices, std::span<const int> islands,
           Plan& plan) {
  int needed = 0;
  for (const Stage& s : plan.stages) needed += s.num_devices();
  if (needed > devices.size()) {
    fail(ErrorCode::invalid_argument, "the plan needs {} devices; there are {}", needed,
         devices.size());
  }
  const StageGraph stages = stage_graph(graph, plan);
  const int num = static_cast<int>(plan.stages.size());
  std::vector<std::vector<int>> free(devices.num_nodes());
  for (int d = 0; d < devices.size(); ++d) free[devices.node(d)].push_back(d);
  for (std::vector<int>& f : free) std::reverse(f.begin(), f.end());  // taken from the back
  std::vector<double> speed(free.size());
  for (size_t node = 0; node < free.size(); ++node) {
    speed[node] = devices.group(free[node].back()).speed;
  }

  const std::vector<int> island_of_group = island_numbers(devices);
  std::vector<int> island(free.size());
  for (size_t node = 0; node < free.size(); ++node) {
    island[node] = island_of_group[devices.group_index(free[node].back())];
  }

  // Stages in topological order within equal size, so neighbours meet on a node.
  std::vector<int> rank(num);
  for (int i = 0; i < num; ++i) rank[stages.order[i]] = i;
  std::vector<double> load(num, 0);
  for (int i = 0; i < num; ++i) {
    for (OpId v : plan.stages[i].ops) {
      load[i] += graph.ops[v].cost.total_per_sample() / plan.stages[i].num_devices();
    }
  }
  const bool uniform = devices.is_uniform();
  std::vector<int> order(num);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const int x = plan.stages[a].num_devices();
    const int y = plan.stages[b].num_devices();
    if (!uniform && islands.empty() && load[a] != load[b]) return load[a] > load[b];
    return x != y ? x > y : rank[a] < rank[b];
  });
  std::vector<std::vector<std::pair<int, double>>> on_node(num);  // of placed stages: node, share
  for (int i : order) {
    Stage& stage = plan.stages[i];
    stage.devices.clear();
    const size_t size = static_cast<size_t>(stage.num_devices());
    std::vector<double> traffic(free.size(), 0);
    const auto add = [&](int other, double bytes) {
      for (const auto& [node, share] : on_node[other]) traffic[node] += bytes * share;
    };
    for (int e : stages.successors[i]) add(stages.edges[e].to, stages.edges[e].bytes);
    for (int e : stages.predecessors[i]) add(stages.edges[e].from, stages.edges[e].bytes);
    // The best single node.
    int best = -1;
    for (int node = 0; node < static_cast<int>(free.size()); ++node) {
      if (free[node].size() < size) continue;
      if (!islands.empty() && island[node] != islands[i]) continue;
      if (best < 0) {
        best = node;
        continue;
      }
      if (speed[node] != speed[best]) {
        if (speed[node] > speed[best]) best = node;
      } else if (traffic[node] != traffic[best]) {
        if (traffic[node] > traffic[best]) best = node;
      } else if (free[node].size() < free[best].size()) {
        best = node;
      }
    }
    if (best >= 0) {
      for (size_t k = 0; k < size; ++k) {
        stage.devices.push_back(free[best].back());
        free[best].pop_back();
      }
    } else {
      std::vector<int> nodes(free.size());
      std::iota(nodes.begin(), nodes.end(), 0);
      std::stable_sort(nodes.begin(), nodes.end(), [&](int a, int b) {
        if (speed[a] != speed[b]) return speed[a] > speed[b];
        return free[a].size() > free[b].size();
      });
      for (int node : nodes) {
        if (!islands.empty() && island[node] != islands[i]) continue;
        while (!free[node].empty() && stage.devices.size() < size) {
          stage.devices.push_back(free[node].back());
          free[node].pop_back();
        }
      }
    }
    for (int d : stage.devices) {
      const int node = devices.node(d);
      auto it = std::find_if(on_node[i].begin(), on_node[i].end(),
                             [&](const auto& p) { return p.first == node; });
      if (it == on_node[i].end()) it = on_node[i].insert(it, {node, 0});
      it->second += 1.0 / static_cast<double>(size);
    }
  }
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
