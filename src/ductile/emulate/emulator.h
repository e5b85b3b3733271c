#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/emulate/crew.h"
#include "ductile/plan/evaluate.h"

namespace ductile::emulate {

// Carries out a plan on devices that are threads. A task is a sleep of the length that the cost
// model gives it; everything else comes out of the run: who waits for whom, which message is in
// whose way, and what all of it takes by the clock. So a time that the judge of plans predicts is
// held against one that was measured.
//
// Rules. Each replica of a stage is a thread that obeys the letters of its stage (stages with equal
// devices share its threads, which take turns: backward before forward, then the later stage). F
// waits for its inputs, B for its gradients, and until the gradients of the last but one B have
// left; W for its B. What a replica has computed goes to those devices that need it: each replica
// sends the samples that another one reads, and each device of a split stage its share of them,
// one message for each pair of devices, over the link between these two. Each begins with another
// stage and another replica, so that they do not all queue for the same card. Each device has a
// network card that is a thread: it sends one message after the other, and waits for the receiving
// card of the other device, which takes one at a time, first come, first served. After the last
// task of a stage its replicas sum their gradients in a ring, in messages through the same cards;
// then those stages do that share a weight. An iteration begins on all devices at once, and ends
// when all of them are done. The cost model knows no time for the optimiser's step, so it takes
// none.
struct Options {
  Crew::Clock clock = Crew::Clock::real;
  double seconds = 0;  // of the clock, that an iteration is to last; 0: by how late sleeps end here
  int iterations = 2;  // that are measured, after one that is not
  bool record = false;
};

// What was seen of the last iteration, in seconds of the plan since it began.
struct Seen {
  plan::Box::Kind kind = plan::Box::Kind::forward;
  int stage = -1;          // of a task
  int replica = -1;        // of a task: the first one, where several move as one
  int64_t index = -1;      // of a task: its micro-batch
  int from = -1, to = -1;  // of a transfer or a sum: devices
  double begin = 0;
  double end = 0;
};

struct Emulation {
  double seconds = 0;              // of the plan, for an iteration: the median
  std::vector<double> iterations;  // each of them
  double scale = 1;                // seconds of the clock for a second of the plan
  int threads = 0;
  Lateness lateness;         // of the sleeps of the measured iterations, seconds of the clock
  double late_share = 0;     // about what that adds to an iteration, as a share of it
  std::vector<double> busy;  // by device: the share of the time in which it computes
  std::vector<Seen> seen;    // by end, if recorded

  // Of a late share above this, as on a busy machine, the time says nothing of the prediction.
  static constexpr double kMostLateShare = 0.03;

  double difference(double predicted) const {  // 0.01: one per cent longer than predicted
    return predicted > 0 ? seconds / predicted - 1 : 0;
  }
};

// `expected`: about the seconds of an iteration, from which the scale is chosen; above 0 if
// anything takes time. Throws invalid_argument as plan::check() does; for a plan without devices;
// and for orders that cannot be carried out, naming who waits for what. Can be interrupted
// (base/interruption.h).
Emulation carry_out(const graph::Graph& graph, const plan::Devices& devices, const plan::Plan& plan,
                    double expected, const Options& options = {});

// docs/guides/planner.md names the fields.
nlohmann::json to_json(const Emulation& emulation, double predicted);

}  // namespace ductile::emulate
