// The file format of plans.
#include <algorithm>
#include <unordered_map>

#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/paths.h"
#include "ductile/graph/json_fields_impl.h"
#include "ductile/plan/plan.h"
#include "ductile/plan/schedule.h"

namespace ductile::plan {
namespace {

using Json = nlohmann::json;

Json names(const std::vector<OpId>& ops, const graph::Graph& graph) {
  Json out = Json::array();
  for (OpId op : ops) out.push_back(graph.ops[op].name);
  return out;
}

void check_model(const spec::ModelIdentity& planned, const graph::Graph& graph) {
  const std::string difference = spec::difference(planned, graph.model);
  if (difference.empty()) return;
  fail(ErrorCode::invalid_argument,
       "the plan is for another model ({}) than the graph ({}): {}; plan this graph anew, or name "
       "the graph that was planned",
       planned.name, graph.model.name, difference);
}

// What a stage without an order would do depends on those of the others, which wait for it.
void check_orders(const std::vector<size_t>& with, const std::vector<size_t>& without) {
  if (with.empty() || without.empty()) return;
  fail(ErrorCode::invalid_argument,
       "stage {} has no order, stage {} has one: give all stages one, or none", without.front(),
       with.front());
}

constexpr int64_t kOpen = 0;  // in_flight of a stage that does not say it

// A stage that does not say how much it holds may hold what no schedule waits for.
void settle_in_flight(Plan& plan, const graph::Graph& graph) {
  const auto is_open = [](const Stage& stage) { return stage.in_flight == kOpen; };
  if (std::ranges::none_of(plan.stages, is_open)) return;
  const std::vector<int64_t> samples = in_flight_samples(stage_graph(graph, plan), plan);
  for (size_t i = 0; i < plan.stages.size(); ++i)
    if (is_open(plan.stages[i])) plan.stages[i].in_flight = samples[i];
}

}  // namespace

nlohmann::json to_json(const Plan& plan, const graph::Graph& graph) {
  Json out = {{"format", "ductile.plan"}, {"version", 1}, {"graph", plan.graph}};
  if (!graph.model.empty()) out["model"] = spec::to_json(graph.model);
  out["planner"] = plan.planner;
  out["batch"] = plan.batch;
  out["schedule"] = to_string(plan.schedule);
  out["predicted_seconds"] = plan.predicted_seconds;
  out["lower_bound"] = plan.lower_bound;
  out["bound_reason"] = plan.bound_reason;
  Json& stages = out["stages"] = Json::array();
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& s = plan.stages[i];
    Json stage = {{"ops", names(s.ops, graph)},
                  {"replicas", s.replicas},
                  {"tensor", s.tensor},
                  {"micro_batch", s.micro_batch},
                  {"k", s.k},
                  {"in_flight", s.in_flight},
                  {"recompute", names(s.recompute, graph)},
                  {"shard_optimizer", s.shard_optimizer},
                  {"devices", s.devices}};
    if (i < plan.orders.size()) stage["order"] = plan.orders[i];
    stages.push_back(std::move(stage));
  }
  return out;
}

Plan plan_from_json(const nlohmann::json& value, const graph::Graph& graph, std::string_view name) {
  try {
    const graph::Fields f(value, "plan");
    if (f.has("format") && f.text("format") != "ductile.plan") {
      fail(ErrorCode::invalid_argument,
           "its format is \"{}\", and a plan's, which ductile plan GRAPH --json writes, is "
           "\"ductile.plan\"",
           f.text("format"));
    }
    f.only({"format", "version", "graph", "model", "planner", "batch", "schedule",
            "predicted_seconds", "lower_bound", "bound_reason", "stages"});
    (void)f.text("format");  // has to be there
    f.integer("version", 1, 1);
    if (f.has("model")) check_model(spec::model_identity_from_json(f.at("model"), "model"), graph);
    std::unordered_map<std::string, OpId> ids;
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      ids.emplace(graph.ops[i].name, static_cast<OpId>(i));
    }
    Plan plan;
    plan.graph = f.text("graph", "");
    plan.planner = f.text("planner", "");
    plan.batch = f.integer("batch", 1, int64_t{1} << 40);
    plan.schedule = schedule_kind_from(f.text("schedule", "kfkb"));
    plan.predicted_seconds = f.number("predicted_seconds", 0);
    plan.lower_bound = f.number("lower_bound", 0);
    plan.bound_reason = f.text("bound_reason", "");
    std::vector<size_t> with_order, without_order;  // stages
    for (const Json& v : f.array("stages")) {
      const graph::Fields g(v, fmt::format("stage {}", plan.stages.size()));
      g.only({"ops", "replicas", "tensor", "micro_batch", "k", "in_flight", "recompute",
              "shard_optimizer", "devices", "order"});
      Stage s;
      const auto read_ops = [&](const char* key, std::vector<OpId>& out) {
        for (const Json& op : g.array(key)) {
          if (!op.is_string()) g.wrong(key, "a list of operators' names", op);
          const auto at = ids.find(op.get<std::string>());
          if (at == ids.end()) {
            fail(ErrorCode::invalid_argument, "{}: {} names the unknown operator \"{}\"", g.where(),
                 key, graph::Fields::shorten(op.get<std::string>()));
          }
          out.push_back(at->second);
        }
        std::sort(out.begin(), out.end());
      };
      read_ops("ops", s.ops);
      if (g.has("recompute")) read_ops("recompute", s.recompute);
      s.replicas = static_cast<int>(g.integer_or("replicas", 1, 1, kMaxDevices));
      s.tensor = static_cast<int>(g.integer_or("tensor", 1, 1, graph::kMaxTensor));
      s.micro_batch = g.integer_or("micro_batch", plan.batch, 1, plan.batch);
      s.k = static_cast<int>(g.integer_or("k", 1, 1, INT32_MAX));
      s.in_flight = g.integer_or("in_flight", kOpen, 1, plan.batch);
      s.shard_optimizer = g.boolean("shard_optimizer", false);
      if (g.has("devices")) {
        for (const Json& d : g.array("devices")) {
          s.devices.push_back(static_cast<int>(g.as_integer(d, "devices", 0, kMaxDevices - 1)));
        }
      }
      (g.has("order") ? with_order : without_order).push_back(plan.stages.size());
      if (g.has("order")) plan.orders.push_back(g.text("order"));
      plan.stages.push_back(std::move(s));
    }
    check_orders(with_order, without_order);
    settle_in_flight(plan, graph);
    return plan;
  } catch (Error& e) {
    throw Error(e).with_context(std::string(name));
  }
}

Plan read_plan(const fs::path& file, const graph::Graph& graph) {
  if (kind_of(file) == FileKind::none)
    fail(ErrorCode::not_found, "{}: no such file; `ductile plan GRAPH --json` writes a plan",
         file.string());
  const std::string text = read_text(file);
  if (json_depth(text) > kMaxJsonDepth)
    parse_json(text, file.string(), ErrorCode::invalid_argument);  // says how deep it is
  nlohmann::json value = parse_json(text);
  if (value.is_discarded()) {
    fail(ErrorCode::invalid_argument, "{}: no JSON; ductile plan GRAPH --json writes a plan",
         file.string());
  }
  if (value.is_object() && value.contains("plan")) value = nlohmann::json(value["plan"]);
  return plan_from_json(value, graph, file.string());
}

}  // namespace ductile::plan
