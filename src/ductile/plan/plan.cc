#include "ductile/plan/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "ductile/base/error.h"

namespace ductile::plan {

using graph::Graph;
using graph::Op;

std::string_view to_string(ScheduleKind kind) {
  return kind == ScheduleKind::kfkb ? "kfkb" : "zero_bubble";
}

ScheduleKind schedule_kind_from(std::string_view name) {
  for (ScheduleKind kind : {ScheduleKind::kfkb, ScheduleKind::zero_bubble}) {
    if (name == to_string(kind)) return kind;
  }
  fail(ErrorCode::invalid_argument, "unknown schedule \"{}\", known are kfkb and zero_bubble",
       name.substr(0, 80));
}

int Plan::num_devices() const {
  std::set<int> placed;
  int unplaced = 0;
  for (const Stage& s : stages) {
    if (s.devices.empty()) unplaced += s.num_devices();
    placed.insert(s.devices.begin(), s.devices.end());
  }
  return unplaced + static_cast<int>(placed.size());
}

StageGraph stage_graph(const Graph& graph, const Plan& plan) {
  const int num = static_cast<int>(plan.stages.size());
  std::vector<int> stage_of(graph.ops.size(), -1);
  for (int s = 0; s < num; ++s) {
    for (OpId op : plan.stages[s].ops) {
      if (op < 0 || op >= static_cast<OpId>(graph.ops.size())) {
        fail(ErrorCode::invalid_argument, "stage {}: ops: there is no operator {}", s, op);
      }
      if (stage_of[op] >= 0) {
        fail(ErrorCode::invalid_argument, "stage {}: ops: operator \"{}\" is in stage {} too", s,
             graph.ops[op].name, stage_of[op]);
      }
      stage_of[op] = s;
    }
  }
  for (size_t op = 0; op < stage_of.size(); ++op) {
    if (stage_of[op] < 0) {
      fail(ErrorCode::invalid_argument, "operator \"{}\" is in no stage", graph.ops[op].name);
    }
  }
  std::vector<std::tuple<int, int, OpId, int, double>> tensors;
  for (const graph::Edge& e : graph.edges) {
    const int from = stage_of[e.from], to = stage_of[e.to];
    if (from != to) tensors.emplace_back(from, to, e.from, e.output, e.bytes);
  }
  std::sort(tensors.begin(), tensors.end());
  tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());

  StageGraph out;
  out.successors.resize(num);
  out.predecessors.resize(num);
  std::vector<std::pair<OpId, OpId>> pairs;
  for (const auto& [from, to, op, output, bytes] : tensors) {
    if (out.edges.empty() || out.edges.back().from != from || out.edges.back().to != to) {
      out.successors[from].push_back(static_cast<int>(out.edges.size()));
      out.predecessors[to].push_back(static_cast<int>(out.edges.size()));
      out.edges.push_back({from, to, 0});
      pairs.emplace_back(from, to);
    }
    out.edges.back().bytes += bytes;
  }
  try {
    const graph::Topology topology(num, pairs);
    out.order.assign(topology.order().begin(), topology.order().end());
  } catch (const Error&) {
    fail(ErrorCode::invalid_argument,
         "the stages wait for one another in a circle: some stage is not convex");
  }
  return out;
}

int64_t in_flight_after(int64_t successor_w, int64_t successor_kb, int64_t micro_batch, int k,
                        int64_t batch) {
  const int64_t w = successor_w + std::max(k * micro_batch, successor_kb);
  return std::min(batch, (w + micro_batch - 1) / micro_batch * micro_batch);
}

std::vector<int64_t> in_flight_samples(const StageGraph& graph, const Plan& plan) {
  std::vector<int64_t> w(plan.stages.size());
  for (auto at = graph.order.rbegin(); at != graph.order.rend(); ++at) {
    const Stage& s = plan.stages[*at];
    w[*at] = std::min(plan.batch, s.k * s.micro_batch);
    for (int edge : graph.successors[*at]) {
      const int j = graph.edges[edge].to;
      const Stage& next = plan.stages[j];
      w[*at] = std::max(
          w[*at], in_flight_after(w[j], next.k * next.micro_batch, s.micro_batch, s.k, plan.batch));
    }
  }
  return w;
}

namespace {

void check_stage(const Plan& plan, int number, const Graph& graph, const Devices& devices) {
  const Stage& s = plan.stages[number];
  const auto wrong = [&](std::string_view field, const std::string& why) {
    fail(ErrorCode::invalid_argument, "stage {}: {} {}", number, field, why);
  };
  if (s.ops.empty()) wrong("ops", "is empty");
  if (!std::is_sorted(s.ops.begin(), s.ops.end())) wrong("ops", "is not ascending");
  if (s.replicas < 1 || s.replicas > kMaxDevices) {
    wrong("replicas", fmt::format("is {}, it must be from 1 to {}", s.replicas, kMaxDevices));
  }
  if (s.tensor < 1 || s.tensor > graph::kMaxTensor) {
    wrong("tensor", fmt::format("is {}, it must be from 1 to {}", s.tensor, graph::kMaxTensor));
  }
  if (s.micro_batch < 1 || plan.batch % s.micro_batch != 0) {
    wrong("micro_batch",
          fmt::format("is {}, it must divide the mini-batch of {}", s.micro_batch, plan.batch));
  }
  if (s.micro_batch % s.replicas != 0) {
    wrong("micro_batch",
          fmt::format("is {}, {} replicas cannot share it equally", s.micro_batch, s.replicas));
  }
  if (s.k < 1 || s.k > plan.batch / s.micro_batch) {
    wrong("k", fmt::format("is {}, it must be from 1 to the {} micro-batches", s.k,
                           plan.batch / s.micro_batch));
  }
  if (s.in_flight < s.micro_batch || s.in_flight > plan.batch || s.in_flight % s.micro_batch != 0) {
    wrong("in_flight", fmt::format("is {}, it must be a multiple of {} up to {}", s.in_flight,
                                   s.micro_batch, plan.batch));
  }
  if (!std::is_sorted(s.recompute.begin(), s.recompute.end())) {
    wrong("recompute", "is not ascending");
  }
  for (OpId op : s.recompute) {
    if (!std::binary_search(s.ops.begin(), s.ops.end(), op)) {
      wrong("recompute", fmt::format("names operator {}, which the stage does not have", op));
    }
    if (op < 0 || op >= static_cast<OpId>(graph.ops.size())) continue;  // stage_graph() says it
    const Op& o = graph.ops[op];
    if (!graph::allows(o, graph::allows(o, s.tensor, true) ? s.tensor : 1, true)) {
      wrong("recompute", fmt::format("names operator \"{}\", which cannot be", o.name));
    }
  }
  const auto splits = [&](OpId op) {
    const bool again = std::binary_search(s.recompute.begin(), s.recompute.end(), op);
    return op >= 0 && op < static_cast<OpId>(graph.ops.size()) &&
           graph::allows(graph.ops[op], s.tensor, again);
  };
  if (s.tensor > 1 && std::none_of(s.ops.begin(), s.ops.end(), splits)) {
    wrong("tensor", fmt::format("is {}, no operator of the stage allows that", s.tensor));
  }
  if (s.devices.empty()) return;
  if (static_cast<int>(s.devices.size()) != s.num_devices()) {
    wrong("devices", fmt::format("has {} entries, replicas x tensor is {}", s.devices.size(),
                                 s.num_devices()));
  }
  std::set<int> seen;
  for (int d : s.devices) {
    if (d < 0 || d >= devices.size()) {
      wrong("devices", fmt::format("names device {}, there are {}", d, devices.size()));
    }
    if (!seen.insert(d).second) wrong("devices", fmt::format("names device {} twice", d));
  }
}

}  // namespace

void check(const Plan& plan, const Graph& graph, const Devices& devices) {
  if (plan.batch < 1 || plan.batch > (int64_t{1} << 40)) {
    fail(ErrorCode::invalid_argument, "batch is {}, it must be from 1 to 2^40", plan.batch);
  }
  if (plan.stages.empty()) fail(ErrorCode::invalid_argument, "the plan has no stages");
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    check_stage(plan, static_cast<int>(s), graph, devices);
  }
  stage_graph(graph, plan);
  std::map<int, size_t> owner;
  std::vector<std::vector<int>> sorted;
  for (const Stage& s : plan.stages) {
    sorted.push_back(s.devices);
    std::sort(sorted.back().begin(), sorted.back().end());
  }
  for (size_t s = 0; s < sorted.size(); ++s) {
    for (int d : sorted[s]) {
      const auto [at, is_new] = owner.try_emplace(d, s);
      if (!is_new && sorted[at->second] != sorted[s]) {
        fail(ErrorCode::invalid_argument,
             "stage {}: devices: shares device {} with stage {}, but not all of them", s, d,
             at->second);
      }
    }
  }
  if (plan.num_devices() > devices.size()) {
    fail(ErrorCode::invalid_argument, "the plan takes {} devices, there are {}", plan.num_devices(),
         devices.size());
  }
  if (!plan.orders.empty() && plan.orders.size() != plan.stages.size()) {
    fail(ErrorCode::invalid_argument, "orders has {} entries, there are {} stages",
         plan.orders.size(), plan.stages.size());
  }
}

}  // namespace ductile::plan
