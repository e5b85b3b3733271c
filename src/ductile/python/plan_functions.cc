// The planner, for ductile.plan.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/graph/builders.h"
#include "ductile/graph/formats.h"
#include "ductile/plan/baselines/baselines.h"
#include "ductile/plan/baselines/megatron.h"
#include "ductile/plan/report.h"
#include "ductile/python/base_functions_impl.h"
#include "ductile/spec/cluster.h"

namespace ductile::python {
namespace {

namespace py = pybind11;
using Json = nlohmann::json;

// The arguments of ductile.plan.plan() that are numbers and names; -1 stands for None.
struct PlanRequest {
  int64_t batch = 128, micro_batch = -1, replicas = 0;
  double time_limit = 60, optimizer_state = -1;
  std::string objective = "time";
  std::vector<std::string> baselines;
  bool runnable = false;
};

void describe(Describer& d, PlanRequest& o) {
  d.field("batch", o.batch, "samples of one iteration").range(1, 1e9);
  d.field("micro_batch", o.micro_batch, "samples").range(-1, 1e9);
  d.field("time_limit", o.time_limit, "seconds").range(1e-3, 1e6);
  d.field("optimizer_state", o.optimizer_state, "bytes per byte of parameters").range(-1, 1e3);
  d.field("objective", o.objective, "time or throughput");
  d.field("baselines", o.baselines, "planners of others");
  d.field("replicas", o.replicas, "of each stage").range(0, 1 << 16);
  d.field("runnable", o.runnable, "only what `ductile train --plan` runs");
}

Json json_from(const std::string& text, std::string_view name) {
  return parse_json(text, name, ErrorCode::invalid_argument);
}

// A number of devices, the name of a cluster file, or its tree.
plan::Devices devices_from(const std::string& text) {
  const Json value = json_from(text, "devices");
  if (value.is_object()) return plan::devices_of(spec::cluster_from_json(value, "devices"));
  return plan::find_devices(value.is_string() ? value.get<std::string>() : dump_json(value));
}

// The name of a graph or file, or the graph itself.
graph::Graph graph_from(const std::string& text, const plan::Devices& devices,
                        double optimizer_state) {
  const Json value = json_from(text, "graph");
  graph::Graph graph = value.is_string() ? graph::find_graph(value.get<std::string>(),
                                                             devices.groups().front().model)
                                         : graph::graph_from_json(value);
  if (optimizer_state >= 0) graph.optimizer_factor = optimizer_state;
  graph::check(graph);
  return graph;
}

std::string text_of(const plan::Report& report, const std::string& form) {
  if (form == "svg" || form == "html") {
    if (!report.planned.feasible)
      fail(ErrorCode::invalid_argument, "there is no plan to draw: {}", plan::advice(report));
    return form == "svg" ? plan::to_svg(report) : plan::to_html(report);
  }
  return dump_json(plan::to_json(report));
}

std::string make_plan(const std::string& arguments, const std::string& graph_text,
                      const std::string& devices_text) {
  return unlocked([&] {
    PlanRequest request;
    OptionSet(request).read_json(json_from(arguments, "arguments"), "ductile.plan");
    plan::Devices devices = devices_from(devices_text);
    graph::Graph graph = graph_from(graph_text, devices, request.optimizer_state);
    plan::PlannerOptions options;
    options.batch = request.batch;
    options.objective = plan::objective_from(request.objective);
    options.time_limit = request.time_limit;
    options.runnable = request.runnable;
    options.replicas = static_cast<int>(request.replicas);
    if (request.micro_batch >= 0) options.micro_batches = {request.micro_batch};
    for (const std::string& name : request.baselines) plan::baselines().at(name);  // an error now
    plan::Planned planned = plan::make_plan(graph, devices, options);
    std::vector<plan::Compared> compared;
    for (const std::string& name : request.baselines)
      compared.push_back({name, plan::run_baseline(name, graph, devices, options)});
    return text_of(plan::make_report(std::move(graph), std::move(devices), options.objective,
                                     std::move(planned), std::move(compared)),
                   "json");
  });
}

std::string judge(const std::string& graph_text, const std::string& devices_text,
                  const std::string& plan_text, const std::string& form) {
  return unlocked([&] {
    plan::Devices devices = devices_from(devices_text);
    graph::Graph graph = graph_from(graph_text, devices, -1);
    const Json value = json_from(plan_text, "plan");
    plan::Plan given = value.is_string() ? plan::read_plan(value.get<std::string>(), graph)
                                         : plan::plan_from_json(value, graph, "plan");
    return text_of(plan::make_report(std::move(graph), std::move(devices), std::move(given)), form);
  });
}

std::string megatron(const std::string& graph_text, const std::string& plan_text) {
  return unlocked([&] {
    const graph::Graph graph = graph_from(graph_text, plan::find_devices("1"), -1);
    return plan::megatron_options(
        graph, plan::plan_from_json(json_from(plan_text, "plan"), graph, "plan"));
  });
}

std::string graph_json(const std::string& graph_text, const std::string& devices_text,
                       double optimizer_state) {
  return unlocked([&] {
    return dump_json(
        graph::to_json(graph_from(graph_text, devices_from(devices_text), optimizer_state)));
  });
}

std::string graphs() {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const graph::Builder& builder : graph::builders()) {
    nlohmann::ordered_json parameters = nlohmann::ordered_json::array();
    for (const graph::BuilderParameter& p : builder.parameters)
      parameters.push_back(
          {{"name", p.name}, {"value", p.value}, {"min", p.min}, {"max", p.max}, {"help", p.help}});
    out.push_back(
        {{"name", builder.name}, {"help", builder.help}, {"parameters", std::move(parameters)}});
  }
  return dump_json(out);
}

std::string baselines() {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const plan::Baseline& baseline : plan::baselines())
    out.push_back({{"name", baseline.name}, {"help", baseline.help}});
  return dump_json(out);
}

}  // namespace

void bind_plan(py::module_& m) {
  m.def("make_plan", make_plan, py::arg("arguments"), py::arg("graph"), py::arg("devices"));
  m.def("judge", judge, py::arg("graph"), py::arg("devices"), py::arg("plan"), py::arg("form"));
  m.def("megatron", megatron, py::arg("graph"), py::arg("plan"));
  m.def("graph", graph_json, py::arg("graph"), py::arg("devices"), py::arg("optimizer_state"));
  m.def("graphs", graphs);
  m.def("baselines", baselines);
}

}  // namespace ductile::python
