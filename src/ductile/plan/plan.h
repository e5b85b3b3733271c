#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/graph/graph.h"
#include "ductile/plan/devices.h"

namespace ductile::plan {

using graph::OpId;

// A part of the model with its own devices. It has `replicas` groups of `tensor` devices. Each
// micro-batch of `micro_batch` samples is divided into `replicas` equal parts (micro_batch %
// replicas == 0).
struct Stage {
  std::vector<OpId> ops;    // ascending
  int replicas = 1;         // data-parallel degree
  int tensor = 1;           // tensor-parallel degree, of every operator that allows it
  int64_t micro_batch = 1;  // samples; divides the mini-batch
  int k = 1;                // of kFkB
  // The largest number of samples whose activations may be held at once. It is a multiple of
  // micro_batch, and at most the mini-batch. in_flight_samples() gives GraphPipe's figure.
  int64_t in_flight = 1;
  std::vector<OpId> recompute;  // ascending, a subset of ops
  bool shard_optimizer = false;
  // replicas x tensor device numbers; those of one replica are together. Two stages have equal
  // devices (and then take turns) or none in common. If empty, the stage is not placed; it then
  // counts as if it had devices of its own, of the first group, on one node if they fit, away from
  // other stages.
  std::vector<int> devices;

  int num_devices() const { return replicas * tensor; }
  bool operator==(const Stage&) const = default;
};

enum class ScheduleKind {
  kfkb,         // k forward, k backward, after a warm-up that fills in_flight
  zero_bubble,  // backward split into input and weight parts; activations live until the latter
};
std::string_view to_string(ScheduleKind kind);
ScheduleKind schedule_kind_from(std::string_view name);

struct Plan {
  std::string graph;  // its name
  std::string planner;
  int64_t batch = 1;  // samples of one iteration
  ScheduleKind schedule = ScheduleKind::kfkb;
  std::vector<Stage> stages;
  // One order of tasks per stage: letters F, B, W with repeat counts ("F4BFBFB4"). Micro-batches
  // are taken in order, so the letters are enough. If empty, make_orders() makes them from the
  // above.
  std::vector<std::string> orders;
  double predicted_seconds = 0;  // per iteration, by the planner's own formula; 0: not given
  double lower_bound = 0;        // no plan of the search space is faster; 0: not proven
  std::string bound_reason;

  int num_devices() const;  // the distinct ones; if not placed, the sum over the stages
  bool operator==(const Plan&) const = default;
};

// The traffic between two stages.
struct StageEdge {
  int from = 0;
  int to = 0;
  double bytes = 0;  // per sample, of distinct tensors, forward; as many bytes come back
};

// The stages as a graph.
struct StageGraph {
  std::vector<StageEdge> edges;              // by (from, to)
  std::vector<std::vector<int>> successors;  // edge numbers
  std::vector<std::vector<int>> predecessors;
  std::vector<int> order;  // topological
};
// Throws invalid_argument if an operator is in no stage or in two, or if the stages form a cycle.
StageGraph stage_graph(const graph::Graph& graph, const Plan& plan);

// The samples in flight with which a synchronous kFkB schedule never waits for memory, for each
// stage: w = k b at a stage without successors, otherwise the max over successors j of w_j + max(k
// b, k_j b_j) (GraphPipe, arXiv 2406.17145, section 6), rounded up to a multiple of b and at most
// the mini-batch.
std::vector<int64_t> in_flight_samples(const StageGraph& graph, const Plan& plan);
// The same for one stage, given its successors' (w, k b); for planners that work backwards.
int64_t in_flight_after(int64_t successor_w, int64_t successor_kb, int64_t micro_batch, int k,
                        int64_t batch);

// Throws invalid_argument that names stage and field if the plan does not fit the graph or devices:
// operators, divisibility, degrees that no operator allows, devices that are unknown or shared in
// part, in_flight. Memory is not checked here; evaluate() reports it.
void check(const Plan& plan, const graph::Graph& graph, const Devices& devices);

// The format is in docs/reference/plan.schema.json. Operators are written by name. A plan of a
// graph that says of which model it is says so, too (Graph::model); with a graph of another model
// it is refused.
nlohmann::json to_json(const Plan& plan, const graph::Graph& graph);
Plan plan_from_json(const nlohmann::json& value, const graph::Graph& graph, std::string_view name);
// The same from a file, or from what `ductile plan --json` prints, which holds a plan.
Plan read_plan(const fs::path& file, const graph::Graph& graph);

}  // namespace ductile::plan
