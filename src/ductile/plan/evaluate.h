#pragma once

#include <cstdint>
#include <vector>

#include "ductile/plan/schedule.h"

namespace ductile::plan {

// The judge of all planners: one training iteration of a plan in virtual time.
//
// Rules. A stage does its tasks in the order given, each on all its devices at once; stages with
// equal devices take turns (of their next tasks the one that can start first; on a tie backward
// before forward, then the later stage in topological order). F of a micro-batch waits until all
// its samples have arrived from every predecessor; B until F is done, the gradients of all its
// samples have arrived from every successor, and those that the stage's B before the last sent have
// arrived, too (there is room for two); W until its B is done. When a task ends, its output leaves
// to every neighbour stage, in stage order, as one message each. Each device of a stage has a
// network card that sends one message at a time and receives one at a time. A message takes as many
// cards at either end as the smaller stage has devices, of each stage those that are free first,
// and begins when all are; messages are booked in the order in which they become ready (ties: lower
// stage first). Messages between stages with equal devices take no time. After
// its last task a stage sums gradients over its replicas; weights tied across stages are summed
// when every holder has finished.
struct EvaluateOptions {
  bool record = false;  // fill Timeline::boxes
};

struct Box {
  enum class Kind : uint8_t { forward, backward, backward_weight, transfer, sync };
  Kind kind = Kind::forward;
  int stage = 0;      // of a transfer: the sender
  int to = -1;        // of a transfer: the receiver
  int64_t index = 0;  // micro-batch of `stage`
  double start = 0;
  double end = 0;
  bool operator==(const Box&) const = default;
};

struct Timeline {
  double seconds = 0;               // until the last task and the last gradient sum end
  std::vector<double> busy;         // per stage: seconds of computing
  std::vector<double> peak_memory;  // per stage: bytes on each of its devices; stages with equal
                                    // devices show the same figure, that of the devices
  std::vector<int64_t> peak_in_flight;  // per stage: samples
  double bubble = 0;  // share of device-seconds, of the plan's devices, not computing
  std::vector<double> memory_limit;  // per stage
  std::vector<Box> boxes;            // by start, if recorded

  bool fits() const;                           // every peak within its limit
  double throughput(const Plan& plan) const {  // 0 where nothing takes time
    return seconds > 0 ? static_cast<double>(plan.batch) / seconds : 0;
  }
};

// Throws invalid_argument where check() does, and where the orders cannot be carried out: naming
// the stages that wait for one another.
Timeline evaluate(const graph::Graph& graph, const Devices& devices, const Plan& plan,
                  const EvaluateOptions& options = {});
// The same, with what was worked out before.
Timeline evaluate(const Plan& plan, const PlanCosts& costs, const Orders& orders,
                  const EvaluateOptions& options = {});

}  // namespace ductile::plan
