#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/plan/evaluate.h"

namespace ductile::plan {

// Cuts a model into a graph of pipeline stages. docs/design/011-pipeline-planner.md tells how.
//
// The formula. A plan of micro-batches of b samples, m = batch / b of them, has for each stage i
// the times f (forward), g (backward), p (its messages, sent or received, one after the other),
// x (its inputs' transfer, at its own width) and s (gradient sum). With tau = max(f + g, p),
//   R(i) = tau(i) + max over readers j of (R(j) + 2 x(j))         there and back again
//   S(i) = max(R(i) + s(i), f(i) + max over readers j of (S(j) + x(j)))
//   seconds = (m - 1) max tau + max S                              fill, steady state, drain, sum
// Memory is counted by plan/cost.h, with GraphPipe's figure of samples in flight. Links are those
// of a tidy placement: what fits a node is inside one; stages talk over the slower link unless all
// devices share a node. Where groups of devices differ, a stage is on one of them, with its speed,
// memory and links; besides, plans are searched that take all devices for the least of them, and so
// may have stages across groups.
enum class Objective {
  time,        // the formula above
  throughput,  // batch x max over stages of (tau / b + s / batch): the steady state alone
};
std::string_view to_string(Objective objective);
Objective objective_from(std::string_view name);  // throws invalid_argument

struct PlannerOptions {
  int64_t batch = 1;  // samples of one iteration
  Objective objective = Objective::time;
  std::vector<int64_t> micro_batches;  // those to try, divisors of batch; empty: all divisors
  bool recompute = true;               // what may be chosen stage by stage ...
  bool split = true;                   // ... tensor parallelism
  bool shard_optimizer = true;
  bool zero_bubble = true;        // let the evaluator try zero-bubble schedules of the best plans
  bool evaluate = true;           // false: the formula alone chooses, nothing is simulated
  double time_limit = 60;         // seconds of wall clock, for all of it
  double tolerance = 0.005;       // a plan is good enough when its gap is below this; 0: exact
  int max_transitions = 400'000;  // of the search space; beyond, orders instead of all downsets
  int max_labels = 400;           // kept per state; those dropped lower the bound
};

struct Planned {
  // A plan that fits memory was found. Otherwise `plan` is empty and the last two members say what
  // would help.
  bool feasible = false;
  Plan plan;
  // By the formula (objective): of the plan; the least of all plans found; the least any plan of
  // the space searched can have. `gap` says how well was searched: best_formula_seconds over
  // lower_bound, minus one. (The plan may have more: it is the one the evaluator prefers.)
  double formula_seconds = 0;
  double best_formula_seconds = 0;
  double lower_bound = 0;
  double gap = 0;
  // evaluate(), 0 where not asked for; the least that any plan of the space takes under any
  // schedule, zero-bubble ones included; their ratio minus one: how far the plan may be from the
  // best there is. This bound knows of no waits, so it is the looser of the two.
  double simulated_seconds = 0;
  double schedule_bound = 0;
  double schedule_gap = 0;
  std::string space;  // what was searched, in words: "all 242 downsets" ...
  bool timed_out = false;
  double cpu_seconds = 0;
  int64_t labels = 0;  // made, all in all
  // Where infeasible: least memory per device with which these devices would do (0: none found),
  // and fewest devices of this memory (0: none).
  double memory_needed = 0;
  int devices_needed = 0;
};

// Throws invalid_argument where graph, devices or options are unfit (batch < 1, a micro-batch that
// does not divide it). Pure: the same arguments give the same plan, unless the time limit cuts in.
Planned make_plan(const graph::Graph& graph, const Devices& devices, const PlannerOptions& options);

// The formula and memory rule applied to any plan of one micro-batch size, placed or not; used to
// compare. Infinite where memory does not suffice.
double formula_seconds(const graph::Graph& graph, const Devices& devices, const Plan& plan,
                       Objective objective);

// Gives stages their devices: stages of one node's size or less stay inside a node, those with
// most traffic next to each other, larger ones start at a node. Heavier stages take the faster
// groups. Throws invalid_argument where the plan needs more devices than there are.
void place(const graph::Graph& graph, const Devices& devices, Plan& plan);

}  // namespace ductile::plan
