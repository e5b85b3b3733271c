#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/plan/evaluate.h"

namespace ductile::plan {

// Cuts a model into a graph of pipeline stages. docs/design/011-pipeline-planner.md says how.
//
// The formula. A plan with m = batch / b micro-batches of b samples has the following times for
// each stage i: f (forward), g (backward), p (its messages, sent or received, one after the other),
// x (the transfer of its inputs, at its own width) and s (gradient sum). With tau = max(f + g, p),
//   R(i) = tau(i) + max over readers j of (R(j) + 2 x(j))         round trip
//   S(i) = max(R(i) + s(i), f(i) + max over readers j of (S(j) + x(j)))
//   seconds = (m - 1) max tau + max S                              fill, steady state, drain, sum
// plan/cost.h counts the memory, with GraphPipe's figure of samples in flight. Links are those of
// an orderly placement: a stage that fits into a node is inside one, and stages communicate over
// the slower link unless all devices share a node. If groups of devices differ, a stage is on one
// of them, with its speed, memory and links. In addition, the planner searches plans that treat all
// devices like the weakest of them, and so may have stages across groups.
enum class Objective {
  time,        // the formula above
  throughput,  // batch x max over stages of (tau / b + s / batch): only the steady state
  // The formula where weight gradients, w of g, are taken while stages would wait:
  // max(f + max(0, g - 2 w), p) in place of the tau of R(i), and s(i) begins a tau after the
  // readers' R. The planner seeks plans by it to judge them; it cannot be asked for.
  zero_bubble,
};
std::string_view to_string(Objective objective);
Objective objective_from(std::string_view name);  // throws invalid_argument

struct PlannerOptions {
  int64_t batch = 1;  // samples of one iteration
  Objective objective = Objective::time;
  std::vector<int64_t> micro_batches;  // those to try, divisors of batch; empty: all divisors
  bool recompute = true;               // whether stages may recompute activations,
  bool split = true;                   // use tensor parallelism,
  bool shard_optimizer = true;         // and shard their optimiser state
  bool zero_bubble = true;        // the evaluator tries zero-bubble schedules of the best plans
  int replicas = 0;               // of each stage; 0: as many as serve it best
  bool runnable = false;          // only plans of which is_runnable() is true
  bool evaluate = true;           // false: only the formula chooses, and nothing is simulated
  double time_limit = 60;         // seconds of wall-clock time for the whole search
  double tolerance = 0.0005;      // a plan is good enough if its gap is below this; 0: exact
  int max_transitions = 400'000;  // of the search space; with more, orders replace all downsets
  int max_labels = 400;           // that are kept per state; dropped ones lower the bound
};

struct Planned {
  // Whether a plan that fits memory was found. Otherwise `plan` is empty, and the last two members
  // say what would help.
  bool feasible = false;
  Plan plan;
  // By the formula (objective): the seconds of the plan, the least of all plans found, and the
  // least that any plan of the searched space can have. `gap` shows how thorough the search was: it
  // is best_formula_seconds / lower_bound - 1. (The plan may have more, since the evaluator chose
  // it.)
  double formula_seconds = 0;
  double best_formula_seconds = 0;
  double lower_bound = 0;
  double gap = 0;
  // The result of evaluate(), or 0 if it was not requested; the least time of any plan of the space
  // under any schedule, including zero-bubble ones, where each stage has devices of its own; and
  // their ratio minus one, which shows how far the plan may be from the best one. This bound knows
  // few of the waits, so it is the looser one.
  double simulated_seconds = 0;
  double schedule_bound = 0;
  double schedule_gap = 0;
  std::string space;  // what was searched, in words: "all 242 downsets" ...
  bool timed_out = false;
  double cpu_seconds = 0;
  int64_t labels = 0;  // the number of labels that were made
  // If infeasible: the least memory of every device with which these suffice (those that have more
  // keep it), and the fewest devices like the weakest of these that suffice; 0: none was found.
  double memory_needed = 0;
  int devices_needed = 0;
  // If infeasible, and nobody named micro-batches: the largest size of them that was left out,
  // since the stages would have more than can be carried out; 0: none.
  int64_t left_out = 0;
};

// Throws invalid_argument if graph, devices or options are not valid (batch < 1, a micro-batch that
// does not divide it). The same arguments give the same plan, unless the time limit ends the
// search.
Planned make_plan(const graph::Graph& graph, const Devices& devices, const PlannerOptions& options);

// "4 and 8 do", "1 does": the divisors of `number` next below and next above another number, for
// messages that refuse this one.
std::string near_divisors(int64_t number, int64_t refused);

// The formula and the memory rule for any plan of one micro-batch size, placed or not, for
// comparisons. The result is infinite if memory does not suffice.
double formula_seconds(const graph::Graph& graph, const Devices& devices, const Plan& plan,
                       Objective objective);

// Whether it is one of those that PlannerOptions::runnable searches, which `ductile train --plan`
// runs: each replica of each stage has a device of its own; there are no splits (which it runs,
// too, of operators that can be divided) and no sharded states, and micro-batches are equal.
bool is_runnable(const Plan& plan);

// Assigns devices to the stages. Stages that fit into a node stay inside one, and those with most
// traffic are next to each other; larger stages start at a node. Heavier stages get the faster
// groups. Throws invalid_argument if the plan needs more devices than there are.
void place(const graph::Graph& graph, const Devices& devices, Plan& plan);

}  // namespace ductile::plan
