#include "ductile/plan/report.h"

#include <algorithm>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/graph/graph.h"
#include "ductile/page/numbers.h"
#include "ductile/plan/cost.h"

namespace ductile::plan {
namespace {

using Json = nlohmann::json;

// Evaluates and keeps the orders, so that the file tells exactly what was judged.
Timeline judge(const graph::Graph& graph, const Devices& devices, Plan& plan, PlanCosts& costs,
               bool record) {
  check(plan, graph, devices);
  costs = plan_costs(graph, devices, plan);
  const Orders orders = make_orders(plan, costs);
  Timeline line = evaluate(plan, costs, orders, {record});  // says whether orders were given
  plan.orders.clear();
  for (const auto& order : orders) plan.orders.push_back(to_letters(order));
  return line;
}

Json timeline_json(const Timeline& t, const Plan& plan) {
  Json out = {{"seconds", t.seconds},
              {"samples_per_second", t.throughput(plan)},
              {"bubble", t.bubble},
              {"fits", t.fits()}};
  for (size_t s = 0; s < t.busy.size(); ++s) {
    out["stages"].push_back({{"busy_seconds", t.busy[s]},
                             {"peak_memory", t.peak_memory[s]},
                             {"memory_limit", t.memory_limit[s]},
                             {"peak_in_flight", t.peak_in_flight[s]}});
  }
  return out;
}

// Weights, gradients and the optimiser's state, on each device of the stage.
double state_bytes(const graph::Graph& graph, const Stage& stage) {
  const StageSums sums =
      stage_sums(graph, stage.ops, stage.tensor, stage.recompute, graph::input_bytes(graph));
  const double optimizer = graph.optimizer_factor / (stage.shard_optimizer ? stage.replicas : 1);
  return sums.parameter_bytes * (graph.state_factor + optimizer);
}

const char* kind_text(Box::Kind kind) {
  switch (kind) {
    case Box::Kind::forward:
      return "forward";
    case Box::Kind::backward:
      return "backward";
    case Box::Kind::backward_weight:
      return "weights";
    case Box::Kind::transfer:
      return "transfer";
    case Box::Kind::sync:
      return "sum";
  }
  return "";
}

constexpr size_t kMostBoxes = 20'000;

bool has_few_tasks(const Plan& plan) {
  size_t tasks = 0;
  for (const Stage& s : plan.stages) tasks += 2 * static_cast<size_t>(plan.batch / s.micro_batch);
  return tasks <= kMostBoxes;
}

// Each task and message of one iteration, as the report of a run shows it beside what was recorded.
// Of a long timeline nothing.
Json boxes_json(const Timeline& t) {
  Json out = Json::array();
  if (t.boxes.size() > kMostBoxes) return out;
  for (const Box& b : t.boxes) {
    Json box = {{"kind", kind_text(b.kind)},
                {"stage", b.stage},
                {"micro_batch", b.index},
                {"begin", b.start},
                {"end", b.end}};
    if (b.to >= 0) box["to"] = b.to;
    out.push_back(std::move(box));
  }
  return out;
}

std::string devices_text(int n) { return fmt::format("{} device{}", n, n == 1 ? "" : "s"); }

bool is_of_one_size(const std::vector<DeviceGroup>& groups) {
  return std::ranges::all_of(
      groups, [&](const DeviceGroup& g) { return g.memory == groups.front().memory; });
}

// "5.7 MiB on 1 device (big) and 2.9 MiB on 2 devices (small)".
std::string memory_text(const Devices& devices) {
  const std::vector<DeviceGroup>& groups = devices.groups();
  if (is_of_one_size(groups))
    return fmt::format("{} on {}", page::as_bytes(groups.front().memory),
                       devices_text(devices.size()));
  std::string out;
  for (size_t i = 0; i < groups.size(); ++i) {
    out += fmt::format("{}{} on {} ({})",
                       i == 0                   ? ""
                       : i + 1 == groups.size() ? " and "
                                                : ", ",
                       page::as_bytes(groups[i].memory), devices_text(groups[i].size()),
                       groups[i].name);
  }
  return out;
}

// As page::as_bytes(), but never less than there are: a figure to be typed where memory is given.
std::string enough_bytes(double bytes) {
  if (!std::isfinite(bytes)) return page::as_bytes(bytes);
  double unit = 1;
  while (bytes >= 1024 * unit && unit < 1024.0 * 1024 * 1024 * 1024) unit *= 1024;
  const double steps = unit == 1 || bytes >= 100 * unit ? 1 : 10;  // of a unit
  return page::as_bytes(std::ceil(bytes / unit * steps) / steps * unit);
}

}  // namespace

Report make_report(graph::Graph graph, Devices devices, Objective objective, Planned planned,
                   std::vector<Compared> compared, bool drawn) {
  Report report{std::move(graph),   std::move(devices), objective, std::move(planned), {}, {},
                std::move(compared)};
  if (report.planned.feasible) {
    Plan& plan = report.planned.plan;
    const bool record = drawn || has_few_tasks(plan);
    report.timeline = judge(report.graph, report.devices, plan, report.costs, record);
    report.planned.simulated_seconds = report.timeline.seconds;
  }
  for (Compared& c : report.compared) {
    if (!c.result.ok()) continue;
    const auto known = std::find_if(baselines().begin(), baselines().end(),
                                    [&](const Baseline& b) { return b.name == c.name; });
    const bool chain = known != baselines().end() && known->chain;
    const graph::Graph judged = chain ? chained(report.graph, c.result.plan) : report.graph;
    PlanCosts costs;
    c.timeline = judge(judged, report.devices, c.result.plan, costs, false);
  }
  return report;
}

Report make_report(graph::Graph graph, Devices devices, Plan plan) {
  Report report{std::move(graph), std::move(devices), Objective::time, {}, {}, {}, {}};
  report.planned.feasible = true;
  report.planned.plan = std::move(plan);
  report.timeline = judge(report.graph, report.devices, report.planned.plan, report.costs, true);
  report.planned.simulated_seconds = report.timeline.seconds;
  return report;
}

std::string advice(const Report& report) {
  const Planned& p = report.planned;
  const std::vector<DeviceGroup>& groups = report.devices.groups();
  const double least = std::ranges::min(groups, {}, &DeviceGroup::memory).memory;
  if (p.timed_out) return "the time limit ended the search before a plan was found; allow more";
  if (p.left_out > 0) {
    return fmt::format(
        "no plan was found that fits into {} with micro-batches of which the stages have at "
        "most {} together, and the next smaller ones that divide the batch have {}; take a batch "
        "with more divisors, as a multiple of 1024 has them",
        memory_text(report.devices), kMaxTasks, samples_text(report.graph, p.left_out));
  }
  std::string ways;
  if (p.memory_needed > least) {
    std::string more;
    for (const DeviceGroup& group : groups) {
      if (group.memory >= p.memory_needed) continue;
      more += fmt::format("{}{} more than {}", more.empty() ? "" : ", ",
                          enough_bytes(p.memory_needed - group.memory),
                          is_of_one_size(groups) ? "there is" : group.name + " has");
      if (is_of_one_size(groups)) break;
    }
    ways = fmt::format("{} of memory on each device ({})", enough_bytes(p.memory_needed), more);
  }
  if (p.devices_needed > report.devices.size()) {
    ways += fmt::format("{}{} of {}", ways.empty() ? "" : ", or ", devices_text(p.devices_needed),
                        page::as_bytes(least));
  }
  return fmt::format("no plan was found that fits into {}; {}", memory_text(report.devices),
                     ways.empty() ? "neither more devices nor more memory was found to help"
                                  : "enough would be " + ways);
}

std::string misfit(const Report& report) {
  const Timeline& t = report.timeline;
  size_t worst = 0;
  std::vector<size_t> others;
  const auto lacking = [&](size_t s) { return t.peak_memory[s] - t.memory_limit[s]; };
  for (size_t s = 1; s < t.peak_memory.size(); ++s)
    if (lacking(s) > lacking(worst)) worst = s;
  for (size_t s = 0; s < t.peak_memory.size(); ++s)
    if (s != worst && lacking(s) > 0) others.push_back(s);
  return fmt::format(
      "the plan does not fit the memory of these devices: stage {} needs {} on each of its "
      "devices, "
      "which have {}{}; plan for these devices (without --plan), which may find more stages, "
      "smaller micro-batches or recomputation, or take devices with {} more",
      worst, enough_bytes(t.peak_memory[worst]), page::as_bytes(t.memory_limit[worst]),
      others.empty()
          ? ""
          : fmt::format(", and {} {} {} too much as well", others.size() == 1 ? "stage" : "stages",
                        fmt::join(others, ", "), others.size() == 1 ? "needs" : "need"),
      enough_bytes(lacking(worst)));
}

std::string device_runs(std::vector<int> devices) {
  std::sort(devices.begin(), devices.end());
  std::string out;
  for (size_t i = 0; i < devices.size();) {
    size_t end = i;
    while (end + 1 < devices.size() && devices[end + 1] == devices[end] + 1) ++end;
    out += fmt::format("{}{}", out.empty() ? "" : ",", devices[i]);
    if (end > i) out += fmt::format("-{}", devices[end]);
    i = end + 1;
  }
  return out;
}

std::string samples_text(const graph::Graph& graph, int64_t count) {
  if (graph.sample == "sample" || graph.sample == "micro-batch") {
    return fmt::format("{} {}{}", count, graph.sample,
                       count == 1                 ? ""
                       : graph.sample == "sample" ? "s"
                                                  : "es");
  }
  return fmt::format("{} x {}", count, graph.sample);
}

std::string samples_word(const graph::Graph& graph) {
  return graph.sample == "micro-batch" ? "Micro-batches" : "Samples";
}

nlohmann::json to_json(const Report& report) {
  const Planned& p = report.planned;
  double parameters = 0;
  for (const graph::Op& op : report.graph.ops) parameters += op.cost.parameter_bytes;
  Json out = {{"graph",
               {{"name", report.graph.name},
                {"operators", report.graph.ops.size()},
                {"edges", report.graph.edges.size()},
                {"parameter_bytes", parameters},
                {"sample", report.graph.sample}}},
              {"devices", report.devices.size()},
              {"objective", to_string(report.objective)},
              {"feasible", p.feasible},
              {"search",
               {{"space", p.space},
                {"cpu_seconds", p.cpu_seconds},
                {"timed_out", p.timed_out},
                {"lower_bound", p.lower_bound},
                {"formula_seconds", p.formula_seconds},
                {"best_formula_seconds", p.best_formula_seconds},
                {"gap", p.gap},
                {"schedule_bound", p.schedule_bound},
                {"schedule_gap", p.schedule_gap}}}};
  if (p.feasible) {
    out["plan"] = to_json(p.plan, report.graph);
    out["evaluation"] = timeline_json(report.timeline, p.plan);
    for (size_t s = 0; s < p.plan.stages.size(); ++s) {
      // Of devices that take turns at several stages, the peak is that of all of them.
      if (std::ranges::count(report.costs.unit, report.costs.unit[s]) > 1) continue;
      out["evaluation"]["stages"][s]["state_memory"] = state_bytes(report.graph, p.plan.stages[s]);
    }
    Stage whole;  // of the model
    for (size_t op = 0; op < report.graph.ops.size(); ++op)
      whole.ops.push_back(static_cast<OpId>(op));
    out["evaluation"]["state_memory"] = state_bytes(report.graph, whole);
    out["evaluation"]["state_factor"] = report.graph.state_factor;
    out["evaluation"]["optimizer_factor"] = report.graph.optimizer_factor;
    out["timeline"] = boxes_json(report.timeline);
  } else {
    out["advice"] = advice(report);
    out["memory_needed"] = p.memory_needed;
    out["devices_needed"] = p.devices_needed;
  }
  for (const Compared& c : report.compared) {
    Json row = {
        {"name", c.name}, {"cpu_seconds", c.result.cpu_seconds}, {"timed_out", c.result.timed_out}};
    if (c.result.ok()) {
      row["evaluation"] = timeline_json(c.timeline, c.result.plan);
      row["plan"] = to_json(c.result.plan, report.graph);
    } else {
      row["failure"] = c.result.failure;
    }
    out["baselines"].push_back(std::move(row));
  }
  return out;
}

nlohmann::json plan_schema() {
  const auto described = [](Json schema, const char* text) {
    schema["description"] = text;
    return schema;
  };
  const Json text = {{"type", "string"}};
  const Json number = {{"type", "number"}, {"minimum", 0}};
  const Json whole = {{"type", "integer"}, {"minimum", 1}};
  const Json names = {{"type", "array"}, {"items", text}};
  const Json stage = {
      {"type", "object"},
      {"required", Json::array({"ops"})},
      {"additionalProperties", false},
      {"properties",
       {{"ops", described(names, "operators of the graph")},
        {"replicas", described(whole, "data-parallel degree; divides micro_batch")},
        {"tensor", described(whole, "tensor-parallel degree")},
        {"micro_batch", described(whole, "samples; divides batch; otherwise the batch")},
        {"k", described(whole, "forward passes in a row")},
        {"in_flight", described(whole,
                                "most samples whose activations are held; otherwise as many as no "
                                "schedule waits for")},
        {"recompute", described(names, "operators whose forward pass is repeated")},
        {"shard_optimizer", {{"type", "boolean"}}},
        {"devices",
         described(Json{{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}},
                   "replicas x tensor numbers, one replica after the other")},
        {"order",
         described(
             text,
             "tasks: F, B, W with repeat counts, as in F4BFBFB4; of all stages, or of none")}}}};
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"title", "A pipeline plan"},
          {"type", "object"},
          {"required", {"format", "version", "batch", "stages"}},
          {"additionalProperties", false},
          {"properties",
           {{"format", {{"const", "ductile.plan"}}},
            {"version", {{"const", 1}}},
            {"graph", described(text, "its name")},
            {"model", spec::model_identity_schema()},
            {"planner", text},
            {"batch", described(whole, "samples of an iteration")},
            {"schedule", {{"enum", {"kfkb", "zero_bubble"}}}},
            {"predicted_seconds", number},
            {"lower_bound", described(number, "0: not proven")},
            {"bound_reason", text},
            {"stages", {{"type", "array"}, {"items", stage}, {"minItems", 1}}}}}};
}

}  // namespace ductile::plan
