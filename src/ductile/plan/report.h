#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/plan/baselines/baselines.h"
#include "ductile/plan/planner.h"

namespace ductile::plan {

// A plan with all its figures, and its forms: JSON, a picture and a page.

struct Compared {
  std::string name;
  BaselineResult result;
  Timeline timeline = {};  // of the plan of the baseline; empty if there is none
};

struct Report {
  graph::Graph graph;
  Devices devices;
  Objective objective = Objective::time;
  Planned planned;    // planned.plan holds the orders that were drawn
  PlanCosts costs;    // of the plan
  Timeline timeline;  // with boxes
  std::vector<Compared> compared;
};

// Evaluates the results of make_plan() and run_baseline() by the same judge; nothing is searched.
// If there is no plan, costs and timeline stay empty: see Planned. What is not drawn has no boxes
// where JSON leaves them out, since sorting millions takes longer than the search may.
Report make_report(graph::Graph graph, Devices devices, Objective objective, Planned planned,
                   std::vector<Compared> compared = {}, bool drawn = true);
// Makes the report of a given plan. Throws the errors of check() and evaluate().
Report make_report(graph::Graph graph, Devices devices, Plan plan);

// A sentence that says what would make the request feasible. Precondition: it is not feasible.
std::string advice(const Report& report);

// The same of a plan that was given, and needs more memory than its devices have: which stage needs
// most beyond what is there, and what helps. Precondition: it does not fit.
std::string misfit(const Report& report);

// "0-3,6": device numbers as runs.
std::string device_runs(std::vector<int> devices);

// "128 samples", "64 micro-batches": in the unit that the graph counts. samples_word() gives the
// word alone, as the beginning of a label.
std::string samples_text(const graph::Graph& graph, int64_t count);
std::string samples_word(const graph::Graph& graph);

nlohmann::json to_json(const Report& report);  // docs/guides/planner.md names the fields
// The stage graph and the timeline, which has a row for each set of devices, and boxes for forward,
// backward, weight, transfer and gradient sum. Boxes that are too narrow to see are drawn together.
std::string to_svg(const Report& report);
std::string to_html(const Report& report);  // a self-contained page

nlohmann::json plan_schema();

}  // namespace ductile::plan
