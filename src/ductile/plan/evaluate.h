#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "ductile/plan/schedule.h"

namespace ductile::plan {

// The judge of all planners: one training iteration of a plan in virtual time.
//
// Rules. A stage does its tasks in the given order, each task on all its devices at once. Stages
// with equal devices take turns: of their next tasks, the one that can start first runs (on a tie,
// backward before forward, then the later stage in topological order).
//
// F of a micro-batch waits until all its samples have arrived from every predecessor. B waits until
// F is done, until the gradients of all its samples have arrived from every successor, and until
// the gradients that the stage's last B but one sent have arrived (there is room for two). W waits
// until its B is done.
//
// When a task ends, its output is sent to every neighbour stage, in stage order, as one message
// each. Each device of a stage has a network card that sends one message at a time and receives one
// at a time. A message takes as many cards at either end as the smaller stage has devices; these
// are the cards that become free first, and the message begins when all of them are free. Messages
// are booked in the order in which they become ready (on a tie, the lower stage first). Messages
// between stages with equal devices take no time.
//
// After its last task, a stage sums gradients over its replicas; stages with equal devices do so
// one after the other, as they end (on a tie, the lower stage first). Weights tied across stages
// are summed when every stage that holds them has finished.
struct EvaluateOptions {
  bool record = false;  // whether to fill Timeline::boxes
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
Box::Kind kind_of(Task task);

struct Timeline {
  double seconds = 0;               // until the last task and the last gradient sum end
  std::vector<double> busy;         // per stage: seconds of computing
  std::vector<double> peak_memory;  // per stage: bytes on each of its devices; stages with equal
                                    // devices show the same figure, that of the devices
  std::vector<int64_t> peak_in_flight;  // per stage: samples
  double bubble = 0;  // share of the device-seconds in which the plan's devices do not compute
  std::vector<double> memory_limit;  // per stage
  std::vector<Box> boxes;            // by start, if recorded

  bool fits() const;                           // whether every peak is within its limit
  double throughput(const Plan& plan) const {  // 0 if nothing takes time; finite
    return seconds > 0 ? std::min(static_cast<double>(plan.batch) / seconds,
                                  std::numeric_limits<double>::max())
                       : 0;
  }
};

// Throws the invalid_argument of check(), and also if the orders cannot be carried out; it then
// names the stages that wait for each other.
Timeline evaluate(const graph::Graph& graph, const Devices& devices, const Plan& plan,
                  const EvaluateOptions& options = {});
// The same, with costs and orders that were computed before.
Timeline evaluate(const Plan& plan, const PlanCosts& costs, const Orders& orders,
                  const EvaluateOptions& options = {});

}  // namespace ductile::plan
