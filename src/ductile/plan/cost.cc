#include "ductile/plan/cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "ductile/base/error.h"

namespace ductile::plan {

using graph::Affine;
using graph::Graph;
using graph::Op;
using graph::OpCost;

namespace {

// Costs of operators and sums of them have fields of the same names.
template <class Costs>
void accumulate(StageSums& sums, const Costs& c) {
  sums.forward += c.forward;
  sums.backward_input += c.backward_input;
  sums.backward_weight += c.backward_weight;
  sums.parameter_bytes += c.parameter_bytes;
  sums.activation_bytes += c.activation_bytes;
  sums.activation_fixed += c.activation_fixed;
  sums.fixed_bytes += c.fixed_bytes;
  sums.workspace_bytes.fixed = std::max(sums.workspace_bytes.fixed, c.workspace_bytes.fixed);
  sums.workspace_bytes.per_sample =
      std::max(sums.workspace_bytes.per_sample, c.workspace_bytes.per_sample);
  sums.tensor_forward_bytes += c.tensor_forward_bytes;
  sums.tensor_backward_bytes += c.tensor_backward_bytes;
  sums.tensor_forward_rounds += c.tensor_forward_rounds;
  sums.tensor_backward_rounds += c.tensor_backward_rounds;
}

}  // namespace

void StageSums::add(const OpCost& c) { accumulate(*this, c); }

StageSums& StageSums::operator+=(const StageSums& o) {
  accumulate(*this, o);
  return *this;
}

StageSums stage_sums(const Graph& graph, std::span<const OpId> ops, int tensor,
                     std::span<const OpId> recompute, std::span<const double> inputs) {
  StageSums sums;
  std::vector<int> tied;  // classes whose weights are counted
  for (OpId id : ops) {
    const Op& op = graph.ops[id];
    const bool again = std::binary_search(recompute.begin(), recompute.end(), id);
    OpCost cost =
        graph::cost_of(op, graph::allows(op, tensor, again) ? tensor : 1, again, inputs[id]);
    if (op.tied >= 0) {
      if (std::find(tied.begin(), tied.end(), op.tied) != tied.end()) cost.parameter_bytes = 0;
      tied.push_back(op.tied);
    }
    sums.add(cost);
  }
  return sums;
}

Boundary boundary(const Graph& graph, std::span<const OpId> ops) {
  const auto inside = [&](OpId op) { return std::binary_search(ops.begin(), ops.end(), op); };
  std::map<std::pair<OpId, int>, double> in, out;
  for (const graph::Edge& e : graph.edges) {
    const bool from = inside(e.from), to = inside(e.to);
    if (from != to) (to ? in : out)[{e.from, e.output}] = e.bytes;
  }
  Boundary b;
  for (const auto& [tensor, bytes] : in) b.in += bytes;
  for (const auto& [tensor, bytes] : out) b.out += bytes;
  return b;
}

StageTimes stage_times(const StageSums& sums, const StageShape& shape) {
  const double n = static_cast<double>(shape.micro_batch) / shape.replicas;
  StageTimes t;
  const Link& link = shape.tensor_link;
  t.forward = sums.forward.at(n) / shape.speed + sums.tensor_forward_bytes * n / link.bandwidth +
              sums.tensor_forward_rounds * link.latency;
  t.backward_input = sums.backward_input.at(n) / shape.speed +
                     sums.tensor_backward_bytes * n / link.bandwidth +
                     sums.tensor_backward_rounds * link.latency;
  t.backward_weight = sums.backward_weight.at(n) / shape.speed;
  t.sync = all_reduce_seconds(sums.parameter_bytes, shape.replicas, shape.sync_link);
  return t;
}

double all_reduce_seconds(double bytes, int n, const Link& link) {
  if (n <= 1 || bytes <= 0) return 0;
  return 2.0 * (n - 1) / n * bytes / link.bandwidth + 2 * std::ceil(std::log2(n)) * link.latency;
}

double transfer_seconds(double bytes, int from_devices, int to_devices, const Link& link) {
  return link.seconds(bytes / std::min(from_devices, to_devices));
}

namespace {

// Weights, gradients and optimiser state.
double state_memory(const StageSums& sums, const StageShape& shape, const Graph& graph) {
  const double optimizer = graph.optimizer_factor / (shape.shard_optimizer ? shape.replicas : 1);
  return sums.parameter_bytes * (graph.state_factor + optimizer) + sums.fixed_bytes;
}

}  // namespace

double stage_fixed_memory(const StageSums& sums, const Boundary& boundary, const StageShape& shape,
                          const Graph& graph) {
  const double n = static_cast<double>(shape.micro_batch) / shape.replicas;
  const double messages = (3 * boundary.in + (graph.counted ? 2 * boundary.out : 0)) * n;
  return state_memory(sums, shape, graph) + sums.workspace_bytes.at(n) + messages;
}

double stage_held_bytes(const StageSums& sums, const Boundary& boundary, const StageShape& shape,
                        const Graph& graph) {
  const double room = graph.counted ? boundary.in : boundary.out;
  return (sums.activation_bytes + room) / shape.replicas +
         sums.activation_fixed / static_cast<double>(shape.micro_batch);
}

double stage_memory(const StageSums& sums, const Boundary& boundary, const StageShape& shape,
                    const Graph& graph, int64_t in_flight) {
  return stage_fixed_memory(sums, boundary, shape, graph) +
         stage_held_bytes(sums, boundary, shape, graph) * static_cast<double>(in_flight);
}

std::vector<Boundary> boundaries(const Graph& graph, const std::vector<int>& stage_of,
                                 size_t num_stages) {
  std::vector<std::tuple<OpId, int, int, double>> crossing;  // tensor, reader, bytes
  for (const graph::Edge& e : graph.edges) {
    if (stage_of[e.from] != stage_of[e.to]) {
      crossing.emplace_back(e.from, e.output, stage_of[e.to], e.bytes);
    }
  }
  std::sort(crossing.begin(), crossing.end());
  crossing.erase(std::unique(crossing.begin(), crossing.end()), crossing.end());
  std::vector<Boundary> out(num_stages);
  for (size_t i = 0; i < crossing.size(); ++i) {
    const auto& [from, output, reader, bytes] = crossing[i];
    out[reader].in += bytes;
    const bool is_first =
        i == 0 || std::get<0>(crossing[i - 1]) != from || std::get<1>(crossing[i - 1]) != output;
    if (is_first) out[stage_of[from]].out += bytes;
  }
  return out;
}

namespace {

// The links of a stage without devices: inside a node where it fits one.
Link unplaced_link(const DeviceGroup& group, int devices) {
  return devices <= group.devices_per_node ? group.intra : group.inter;
}

Link slowest(Link a, const Link& b) {
  return {std::min(a.bandwidth, b.bandwidth), std::max(a.latency, b.latency)};
}

// Among the devices of one replica, over all replicas the slowest.
Link tensor_link(const Devices& devices, const Stage& stage) {
  if (stage.devices.empty()) return unplaced_link(devices.groups().front(), stage.tensor);
  Link link = devices.within({stage.devices.data(), size_t(stage.tensor)});
  for (int r = 1; r < stage.replicas; ++r) {
    link = slowest(link, devices.within({stage.devices.data() + size_t(r) * size_t(stage.tensor),
                                         size_t(stage.tensor)}));
  }
  return link;
}

void find_ties(const Graph& graph, const Devices& devices, const Plan& plan,
               const std::vector<double>& inputs, const std::vector<Link>& sync_links,
               PlanCosts& costs) {
  std::map<int, std::map<int, double>> holders;  // class -> stage -> bytes of each device
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    for (OpId id : stage.ops) {
      const Op& op = graph.ops[id];
      if (op.tied < 0) continue;
      const int tensor = graph::allows(op, stage.tensor, false) ? stage.tensor : 1;
      double& bytes = holders[op.tied][static_cast<int>(s)];
      bytes = std::max(bytes, cost_of(op, tensor, false, inputs[id]).parameter_bytes);
    }
  }
  for (const auto& [tied, stages] : holders) {
    if (stages.size() < 2) continue;
    PlanCosts::Tie tie;
    double bytes = 0;
    Link link = sync_links[stages.begin()->first];
    std::set<int> units;
    for (const auto& [s, b] : stages) {
      tie.stages.push_back(s);
      bytes = std::max(bytes, b);
      link = slowest(link, sync_links[s]);
      // The sum passes between the holders, which may lie on different nodes.
      const std::vector<int>&own = plan.stages[s].devices,
            &first = plan.stages[stages.begin()->first].devices;
      const bool placed = !own.empty() && !first.empty();
      if (placed && own != first) link = slowest(link, devices.between(first, own));
      units.insert(costs.unit[s]);
    }
    tie.seconds = all_reduce_seconds(bytes, static_cast<int>(units.size()), link);
    costs.ties.push_back(std::move(tie));
  }
}

void add_memory(const Graph& graph, const Plan& plan, const std::vector<double>& always,
                PlanCosts& costs) {
  if (graph.counted) {
    costs.memory = task_memory(graph, plan, costs.unit, always);
    costs.sent = sent_bytes(graph, plan, costs.stages);
    return;
  }
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    double gradients = 0;  // of outputs, per sample: they wait for the weights
    for (const OpId id : stage.ops) {
      const Op& op = graph.ops[id];
      if (op.cost.backward_weight != Affine{}) gradients += op.output_bytes;
    }
    const double share = static_cast<double>(stage.micro_batch) / stage.replicas;
    StageMemory memory;
    memory.fixed = always[s];
    memory.held = costs.held_per_sample[s] * static_cast<double>(stage.micro_batch);
    memory.forward = memory.held;
    memory.waiting = memory.held + gradients * share;
    costs.memory.push_back(memory);
  }
}

}  // namespace

PlanCosts plan_costs(const Graph& graph, const Devices& devices, const Plan& plan) {
  PlanCosts costs;
  costs.stages = stage_graph(graph, plan);
  const std::vector<double> inputs = graph::input_bytes(graph);
  std::vector<int> stage_of(graph.ops.size());
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (OpId op : plan.stages[s].ops) stage_of[op] = static_cast<int>(s);
  }
  const std::vector<Boundary> around = boundaries(graph, stage_of, plan.stages.size());
  const DeviceGroup& first = devices.groups().front();
  const int all = plan.num_devices();
  std::map<std::vector<int>, int> units;
  std::vector<Link> sync_links;
  std::vector<double> always;  // bytes of each stage
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const bool placed = !stage.devices.empty();
    StageShape shape;
    shape.replicas = stage.replicas;
    shape.tensor = stage.tensor;
    shape.micro_batch = stage.micro_batch;
    shape.shard_optimizer = stage.shard_optimizer;
    shape.speed = placed ? devices.speed(stage.devices) : first.speed;
    shape.tensor_link = tensor_link(devices, stage);
    shape.sync_link =
        placed ? devices.within(stage.devices) : unplaced_link(first, stage.num_devices());
    const StageSums sums = stage_sums(graph, stage.ops, stage.tensor, stage.recompute, inputs);
    costs.times.push_back(stage_times(sums, shape));
    costs.fixed_memory.push_back(stage_fixed_memory(sums, around[s], shape, graph));
    costs.held_per_sample.push_back(stage_held_bytes(sums, around[s], shape, graph));
    always.push_back(graph.counted ? state_memory(sums, shape, graph) : costs.fixed_memory.back());
    costs.memory_limit.push_back(placed ? devices.memory(stage.devices) : first.memory);
    if (placed) {
      std::vector<int> key = stage.devices;
      std::sort(key.begin(), key.end());
      const auto [at, is_new] = units.try_emplace(std::move(key), costs.num_units);
      costs.unit.push_back(at->second);
      costs.num_units += is_new;
    } else {
      costs.unit.push_back(costs.num_units++);
    }
    costs.devices.resize(costs.num_units, stage.num_devices());
    // Between stages: where not placed, nodes are shared only if one holds the whole plan.
    sync_links.push_back(
        slowest(shape.sync_link, placed ? shape.sync_link : unplaced_link(first, all)));
  }
  for (const StageEdge& e : costs.stages.edges) {
    const Stage &a = plan.stages[e.from], &b = plan.stages[e.to];
    double fixed = 0, per_sample = 0;
    if (costs.unit[e.from] != costs.unit[e.to] && e.bytes > 0) {
      const bool placed = !a.devices.empty() && !b.devices.empty();
      const Link link = placed ? devices.between(a.devices, b.devices) : unplaced_link(first, all);
      fixed = link.latency;
      per_sample = transfer_seconds(e.bytes, a.num_devices(), b.num_devices(), {link.bandwidth, 0});
    }
    costs.transfer_fixed.push_back(fixed);
    costs.transfer_per_sample.push_back(per_sample);
  }
  find_ties(graph, devices, plan, inputs, sync_links, costs);
  add_memory(graph, plan, always, costs);
  return costs;
}

}  // namespace ductile::plan
