#pragma once

#include <span>
#include <vector>

#include "ductile/plan/plan.h"

namespace ductile::plan {

// The cost model: pure functions that planners and the evaluator share, so that both count the same
// seconds and the same bytes.

// The cost of a set of operators at one tensor degree. These are sums, except for the workspace,
// which is the largest one (separately for its fixed and its per-sample part). The costs of two
// sets without common tied weights add up.
struct StageSums {
  graph::Affine forward, backward_input, backward_weight;  // seconds, speed 1
  double parameter_bytes = 0;
  double activation_bytes = 0;  // per sample in flight
  double activation_fixed = 0;  // per micro-batch in flight
  double fixed_bytes = 0;
  graph::Affine workspace_bytes;
  double tensor_forward_bytes = 0;  // per sample
  double tensor_backward_bytes = 0;
  double tensor_forward_rounds = 0;
  double tensor_backward_rounds = 0;

  void add(const graph::OpCost& cost);
  StageSums& operator+=(const StageSums& other);
};

// Bytes per sample across the boundary of a set. `in`: distinct tensors that are read from outside.
// `out`: distinct tensors that are read outside (each counts once, even if several stages read it).
struct Boundary {
  double in = 0;
  double out = 0;
};

// If an operator does not allow the degree `tensor`, it has degree 1: it then runs whole on every
// device of the group. Weights that are tied within the set count once.
// `inputs` is graph::input_bytes(graph).
StageSums stage_sums(const graph::Graph& graph, std::span<const OpId> ops, int tensor,
                     std::span<const OpId> recompute, std::span<const double> inputs);
Boundary boundary(const graph::Graph& graph, std::span<const OpId> ops);
// The same for all stages at once; `stage_of` has the stage of each operator.
std::vector<Boundary> boundaries(const graph::Graph& graph, const std::vector<int>& stage_of,
                                 size_t num_stages);

// How a set is run.
struct StageShape {
  int replicas = 1;
  int tensor = 1;
  int64_t micro_batch = 1;
  bool shard_optimizer = false;
  double speed = 1;
  Link tensor_link;  // among the devices of one replica
  Link sync_link;    // among replicas
};

// Seconds.
struct StageTimes {
  double forward = 0;          // one micro-batch
  double backward_input = 0;   // one micro-batch
  double backward_weight = 0;  // one micro-batch
  double sync = 0;             // the gradient sum over replicas, once per iteration

  double micro_batch() const { return forward + backward_input + backward_weight; }
};
StageTimes stage_times(const StageSums& sums, const StageShape& shape);

// An all-reduce: each device sends 2 (n-1)/n of the bytes, in 2 log2(n) rounds.
double all_reduce_seconds(double bytes, int n, const Link& link);

// One message of `bytes` from stage to stage, divided over the devices of the smaller side.
double transfer_seconds(double bytes, int from_devices, int to_devices, const Link& link);

// Bytes on each device, as planners count them while they search: what is held always, and as much
// again for each sample in flight. Always held are weights, gradients and optimiser state; the
// largest workspace; a receive buffer for one micro-batch of inputs, and two for the gradients that
// go back, of which one is computed and one is sent. In flight, divided over the replicas, are the
// activations of each of `in_flight` samples and room for its outputs; and, whole, what each of
// their micro-batches holds whatever its samples (activation_fixed). Outputs wait in that room
// until every reader has taken them; then their gradients wait there until the backward pass, and
// are added up as they arrive. So everything that waits is counted at the stage whose output it is.
//
// Of a graph whose bytes are counted, activations hold the outputs already. There the room is that
// of the inputs, of which the stage has copies; and two gradients of outputs are held always, of
// which one is used and one is received. What the judge counts is below.
//
// stage_held_bytes: per sample in flight.
double stage_held_bytes(const StageSums& sums, const Boundary& boundary, const StageShape& shape,
                        const graph::Graph& graph);
double stage_fixed_memory(const StageSums& sums, const Boundary& boundary, const StageShape& shape,
                          const graph::Graph& graph);
double stage_memory(const StageSums& sums, const Boundary& boundary, const StageShape& shape,
                    const graph::Graph& graph, int64_t in_flight);

// What a stage holds as its tasks go on, in bytes on each of its devices, which the judge adds up
// along the timeline (execution_impl.h). Of a graph whose bytes are counted it is what the runtime
// holds (parallel/stage_executor.h, pipeline.h), operator by operator as they run in a task; of
// others it is the count above, without bytes for messages, and between B and W also the gradients
// of the outputs of what has weights.
struct StageMemory {
  double fixed = 0;            // always: weights, gradients, optimiser state
  double posted_forward = 0;   // a receive of each input, while a forward task is left
  double posted_backward = 0;  // a receive of each gradient, while a backward task is left
  double held = 0;             // by each micro-batch from the end of its F to the end of its B
  double waiting = 0;          // by each from the end of its B to the end of its W
  // The most in a task beyond what there was before it.
  double forward = 0, backward = 0, weights = 0;
};

// For stages of a plan; `unit`: as in PlanCosts, stages with equal devices hand tensors over
// without copies. `fixed`: by stage, StageMemory::fixed.
std::vector<StageMemory> task_memory(const graph::Graph& graph, const Plan& plan,
                                     const std::vector<int>& unit,
                                     const std::vector<double>& fixed);
// By stage edge: the bytes of what its end has sent that nobody else holds, for one micro-batch of
// the sender: of the outputs of operators that are recomputed, of copies for stages of other
// numbers of replicas, or of gradients.
struct SentBytes {
  std::vector<double> forward, backward;
};
SentBytes sent_bytes(const graph::Graph& graph, const Plan& plan, const StageGraph& stages);

// All of the above for the stages of a plan.
struct PlanCosts {
  StageGraph stages;
  std::vector<StageTimes> times;
  std::vector<double> fixed_memory;         // of planners: on each device of the stage, per stage
  std::vector<double> memory_limit;         // of the smallest device of the stage
  std::vector<double> held_per_sample;      // on each device, per sample in flight
  std::vector<StageMemory> memory;          // of the judge
  SentBytes sent;                           // empty unless bytes are counted
  std::vector<double> transfer_fixed;       // per stage edge: seconds per message = fixed +
  std::vector<double> transfer_per_sample;  //   samples x per_sample; 0 if devices are equal
  std::vector<int> devices;                 // of each unit; it has as many network cards
  std::vector<int> unit;                    // stages with equal devices have the same unit
  int num_units = 0;
  // Weights tied across stages: their gradients are summed after the last backward of all holders.
  struct Tie {
    std::vector<int> stages;
    double seconds = 0;
  };
  std::vector<Tie> ties;
};
PlanCosts plan_costs(const graph::Graph& graph, const Devices& devices, const Plan& plan);

}  // namespace ductile::plan
