#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/plan/baselines/baselines.h"
#include "ductile/plan/planner.h"

namespace ductile::plan {

// A plan with all that is said of it, and its faces: JSON, a picture, a page.

struct Compared {
  std::string name;
  BaselineResult result;
  Timeline timeline = {};  // of the baseline's plan; empty where it has none
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

// Carries out what make_plan() and run_baseline() found, by the same judge; nothing is searched. A
// plan that does not exist leaves costs and timeline empty: see Planned.
Report make_report(graph::Graph graph, Devices devices, Objective objective, Planned planned,
                   std::vector<Compared> compared = {});
// Of a plan at hand. Throws where check() or evaluate() does.
Report make_report(graph::Graph graph, Devices devices, Plan plan);

// What would make an infeasible request feasible, as a sentence. Precondition: not feasible.
std::string advice(const Report& report);

// "0-3,6": device numbers as runs.
std::string device_runs(std::vector<int> devices);

// "128 samples", "64 micro-batches": what the graph counts. The word alone begins a label.
std::string samples_text(const graph::Graph& graph, int64_t count);
std::string samples_word(const graph::Graph& graph);

nlohmann::json to_json(const Report& report);  // docs/guides/planner.md names the fields
// Stage graph and timeline: a row for each set of devices, boxes for forward, backward, weight,
// transfer and gradient sum. Boxes too narrow to see are drawn together.
std::string to_svg(const Report& report);
std::string to_html(const Report& report);  // self-contained

nlohmann::json plan_schema();

}  // namespace ductile::plan
