// Our own format of graphs.
#include <unordered_map>

#include "ductile/graph/formats.h"
#include "ductile/graph/json_fields_impl.h"

namespace ductile::graph {
namespace {

using Json = nlohmann::json;

Json affine_to_json(const Affine& a) {
  if (a.fixed == 0) return a.per_sample;
  return {{"fixed", a.fixed}, {"per_sample", a.per_sample}};
}

Affine affine_from_json(const Fields& fields, const char* key) {
  const Json& v = fields.at(key);
  if (v.is_number()) return {0, v.get<double>()};
  if (!v.is_object()) fields.wrong(key, "a number or {fixed, per_sample}", v);
  const Fields parts(v, fmt::format("{}: {}", fields.where(), key));
  parts.only({"fixed", "per_sample"});
  return {parts.number("fixed", 0), parts.number("per_sample", 0)};
}

Json most_to_json(const MostBytes& most) {
  if (most.points.empty()) return affine_to_json(most.line);
  Json samples = Json::array(), bytes = Json::array();
  for (const auto& [n, b] : most.points) {
    samples.push_back(n);
    bytes.push_back(b);
  }
  return {{"samples", std::move(samples)}, {"bytes", std::move(bytes)}};
}

MostBytes most_from_json(const Fields& fields, const char* key) {
  const Json& v = fields.at(key);
  if (!v.is_object() || !v.contains("samples")) return affine_from_json(fields, key);
  const Fields parts(v, fmt::format("{}: {}", fields.where(), key));
  parts.only({"samples", "bytes"});
  const Json& samples = parts.array("samples");
  const Json& bytes = parts.array("bytes");
  if (samples.empty() || samples.size() != bytes.size()) {
    fail(ErrorCode::invalid_argument, "{}: {} samples for {} bytes; there is one of each",
         parts.where(), samples.size(), bytes.size());
  }
  MostBytes most;
  for (size_t i = 0; i < samples.size(); ++i) {
    most.points.emplace_back(parts.as_number(samples[i], "samples"),
                             parts.as_number(bytes[i], "bytes"));
  }
  return most;
}

struct PassField {
  const char* name;
  MostBytes PassBytes::*member;
};
constexpr PassField kPasses[] = {{"forward", &PassBytes::forward},
                                 {"backward", &PassBytes::backward},
                                 {"backward_input", &PassBytes::backward_input},
                                 {"backward_weight", &PassBytes::backward_weight}};

void cost_to_json(const OpCost& c, Json& out) {
  out["forward"] = affine_to_json(c.forward);
  out["backward_input"] = affine_to_json(c.backward_input);
  out["backward_weight"] = affine_to_json(c.backward_weight);
  const auto put = [&](const char* key, double v) {
    if (v != 0) out[key] = v;
  };
  put("parameter_bytes", c.parameter_bytes);
  put("activation_bytes", c.activation_bytes);
  put("fixed_bytes", c.fixed_bytes);
  if (c.workspace_bytes != Affine{}) out["workspace_bytes"] = affine_to_json(c.workspace_bytes);
  put("tensor_forward_bytes", c.tensor_forward_bytes);
  put("tensor_backward_bytes", c.tensor_backward_bytes);
  put("activation_fixed", c.activation_fixed);
  put("sample_bytes", c.sample_bytes);
  if (c.waits) out["waiting_bytes"] = affine_to_json(c.waiting_bytes);
  if (c.passes == PassBytes{}) return;
  Json& passes = out["pass_bytes"];
  for (const PassField& pass : kPasses) passes[pass.name] = most_to_json(c.passes.*pass.member);
}

OpCost cost_from_json(const Fields& f) {
  OpCost c;
  c.forward = affine_from_json(f, "forward");
  c.backward_input = affine_from_json(f, "backward_input");
  c.backward_weight = affine_from_json(f, "backward_weight");
  c.parameter_bytes = f.number("parameter_bytes", 0);
  c.activation_bytes = f.number("activation_bytes", 0);
  c.fixed_bytes = f.number("fixed_bytes", 0);
  if (f.has("workspace_bytes")) c.workspace_bytes = affine_from_json(f, "workspace_bytes");
  c.tensor_forward_bytes = f.number("tensor_forward_bytes", 0);
  c.tensor_backward_bytes = f.number("tensor_backward_bytes", 0);
  c.activation_fixed = f.number("activation_fixed", 0);
  c.sample_bytes = f.number("sample_bytes", 0);
  c.waits = f.has("waiting_bytes");
  if (c.waits) c.waiting_bytes = affine_from_json(f, "waiting_bytes");
  if (!f.has("pass_bytes")) return c;
  const Fields passes(f.at("pass_bytes"), fmt::format("{}: pass_bytes", f.where()));
  passes.only({"forward", "backward", "backward_input", "backward_weight"});
  for (const PassField& pass : kPasses) {
    if (passes.has(pass.name)) c.passes.*pass.member = most_from_json(passes, pass.name);
  }
  return c;
}

Op op_from_json(const Json& value, size_t i) {
  const std::string position = fmt::format("operator {}", i);
  Op op;
  op.name = Fields(value, position).text("name");
  const Fields f(value, fmt::format("operator \"{}\"", Fields::shorten(op.name)));
  f.only({"name",
          "kind",
          "shape",
          "output_bytes",
          "forward",
          "backward_input",
          "backward_weight",
          "parameter_bytes",
          "activation_bytes",
          "fixed_bytes",
          "workspace_bytes",
          "tensor_forward_bytes",
          "tensor_backward_bytes",
          "activation_fixed",
          "sample_bytes",
          "waiting_bytes",
          "pass_bytes",
          "variants",
          "max_split",
          "recomputable",
          "tied"});
  op.kind = f.text("kind", "op");
  if (f.has("shape")) {
    for (const Json& d : f.array("shape")) {
      op.shape.push_back(f.as_integer(d, "shape", 1, int64_t{1} << 40));
    }
  }
  op.output_bytes = f.number("output_bytes", 0);
  op.cost = cost_from_json(f);
  op.max_split = static_cast<int>(f.integer_or("max_split", 1, 1, kMaxTensor));
  op.recomputable = f.boolean("recomputable", false);
  op.tied = static_cast<int>(f.integer_or("tied", -1, -1, kMaxOps));
  if (!f.has("variants")) return op;
  for (const Json& v : f.array("variants")) {
    const Fields g(v, f.where() + ": variants");
    g.only({"tensor", "recompute", "forward", "backward_input", "backward_weight",
            "parameter_bytes", "activation_bytes", "fixed_bytes", "workspace_bytes",
            "tensor_forward_bytes", "tensor_backward_bytes", "activation_fixed", "sample_bytes",
            "waiting_bytes", "pass_bytes"});
    OpVariant variant;
    variant.tensor = static_cast<int>(g.integer_or("tensor", 1, 1, kMaxTensor));
    variant.recompute = g.boolean("recompute", false);
    variant.cost = cost_from_json(g);
    op.variants.push_back(variant);
  }
  return op;
}

}  // namespace

nlohmann::json to_json(const Graph& graph) {
  Json out = {{"format", "ductile.graph"}, {"version", 1}, {"name", graph.name}};
  out["sample"] = graph.sample;
  out["state_factor"] = graph.state_factor;
  out["optimizer_factor"] = graph.optimizer_factor;
  if (graph.counted) out["counted"] = true;
  if (!graph.model.empty()) out["model"] = spec::to_json(graph.model);
  Json& ops = out["ops"] = Json::array();
  for (const Op& op : graph.ops) {
    Json o = {{"name", op.name}, {"kind", op.kind}};
    if (!op.shape.empty()) o["shape"] = op.shape;
    if (op.output_bytes != 0) o["output_bytes"] = op.output_bytes;
    cost_to_json(op.cost, o);
    if (op.max_split != 1) o["max_split"] = op.max_split;
    if (op.recomputable) o["recomputable"] = true;
    if (op.tied >= 0) o["tied"] = op.tied;
    for (const OpVariant& v : op.variants) {
      Json variant = {{"tensor", v.tensor}, {"recompute", v.recompute}};
      cost_to_json(v.cost, variant);
      o["variants"].push_back(std::move(variant));
    }
    ops.push_back(std::move(o));
  }
  Json& edges = out["edges"] = Json::array();
  for (const Edge& e : graph.edges) {
    Json o = {{"from", graph.ops[e.from].name}, {"to", graph.ops[e.to].name}, {"bytes", e.bytes}};
    if (e.output != 0) o["output"] = e.output;
    if (e.tensor_bytes_from != 0) o["tensor_bytes_from"] = e.tensor_bytes_from;
    if (e.tensor_bytes_to != 0) o["tensor_bytes_to"] = e.tensor_bytes_to;
    if (e.gradient_bytes >= 0) o["gradient_bytes"] = e.gradient_bytes;
    if (e.fused) o["fused"] = true;
    edges.push_back(std::move(o));
  }
  return out;
}

Graph graph_from_json(const nlohmann::json& value) {
  const Fields f(value, "graph");
  f.only({"format", "version", "name", "sample", "state_factor", "optimizer_factor", "counted",
          "model", "ops", "edges"});
  if (f.text("format") != "ductile.graph") {
    fail(ErrorCode::invalid_argument, "graph: format must be \"ductile.graph\"");
  }
  f.integer("version", 1, 1);
  Graph graph;
  graph.name = f.text("name", "");
  graph.sample = f.text("sample", "sample");
  graph.state_factor = f.number("state_factor", 2);
  graph.optimizer_factor = f.number("optimizer_factor", 0);
  graph.counted = f.boolean("counted", false);
  if (f.has("model")) graph.model = spec::model_identity_from_json(f.at("model"), "graph: model");
  std::unordered_map<std::string, OpId> ids;
  for (const Json& v : f.array("ops")) {
    graph.ops.push_back(op_from_json(v, graph.ops.size()));
    ids.emplace(graph.ops.back().name, static_cast<OpId>(graph.ops.size()) - 1);
  }
  for (const Json& v : f.array("edges")) {
    const Fields g(v, fmt::format("edge {}", graph.edges.size()));
    g.only({"from", "to", "output", "bytes", "tensor_bytes_from", "tensor_bytes_to",
            "gradient_bytes", "fused"});
    const auto find = [&](const char* key) {
      const std::string name = g.text(key);
      const auto at = ids.find(name);
      if (at != ids.end()) return at->second;
      std::vector<std::string> names;
      if (ids.size() <= 2000) {
        for (const auto& [n, id] : ids) names.push_back(n.substr(0, 80));
      }
      const auto nearest = nearest_name(name.substr(0, 80), names);
      fail(ErrorCode::invalid_argument, "{}: {} names the unknown operator \"{}\"{}", g.where(),
           key, Fields::shorten(name),
           nearest ? fmt::format("; did you mean \"{}\"?", *nearest) : "");
    };
    Edge edge;
    edge.from = find("from");
    edge.to = find("to");
    edge.output = static_cast<int>(g.integer_or("output", 0, 0, 1 << 30));
    edge.bytes = g.number("bytes");
    edge.tensor_bytes_from = g.number("tensor_bytes_from", 0);
    edge.tensor_bytes_to = g.number("tensor_bytes_to", 0);
    if (g.has("gradient_bytes")) edge.gradient_bytes = g.number("gradient_bytes");
    edge.fused = g.boolean("fused", false);
    graph.edges.push_back(edge);
  }
  check(graph);
  return graph;
}

namespace {

Json described(Json schema, const char* text) {
  schema["description"] = text;
  return schema;
}

Json object(Json properties, Json wanted) {
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", std::move(wanted)},
          {"additionalProperties", false}};
}

// Of a graph whose bytes are counted.
Json counted_costs(const Json& number, const Json& affine) {
  Json passes;
  for (const PassField& pass : kPasses) passes[pass.name] = {{"$ref", "#/$defs/most"}};
  return {
      {"activation_fixed", described(number, "as activation_bytes, of each micro-batch")},
      {"sample_bytes", described(number, "of activation_bytes, those of the model's own inputs")},
      {"waiting_bytes",
       described(affine,
                 "from the backward pass to the inputs to that to the weights, outputs apart")},
      {"pass_bytes", described(object(std::move(passes), Json::array()),
                               "most at one time beyond what there was when the pass began")}};
}

}  // namespace

nlohmann::json graph_schema() {
  const Json number = {{"type", "number"}, {"minimum", 0}};
  const Json text = {{"type", "string"}};
  const Json affine = {{"$ref", "#/$defs/affine"}};
  const auto whole = [](int64_t low, int64_t high) {
    return Json{{"type", "integer"}, {"minimum", low}, {"maximum", high}};
  };
  Json costs = {
      {"forward", described(affine, "seconds")},
      {"backward_input",
       described(affine, "seconds; with recompute the repeated forward is in here")},
      {"backward_weight", described(affine, "seconds; the part that may be delayed")},
      {"parameter_bytes", described(number, "weights of one device; their gradient is as large")},
      {"activation_bytes", described(number, "per sample, held from forward to backward")},
      {"fixed_bytes", described(number, "held always, besides what parameter_bytes implies")},
      {"workspace_bytes", described(affine, "held while the operator runs")},
      {"tensor_forward_bytes",
       described(number, "per sample, sent by each device of a tensor-parallel group")},
      {"tensor_backward_bytes", described(number, "the same, in the backward pass")}};
  costs.update(counted_costs(number, affine));
  const Json required = {"forward", "backward_input", "backward_weight"};
  Json variant = costs;
  variant["tensor"] = described(whole(1, kMaxTensor), "tensor-parallel degree");
  variant["recompute"] = Json{{"type", "boolean"}};
  Json op = costs;
  op["name"] = described(text, "unique");
  op["kind"] = described(text, "linear, attention, concat ...");
  op["shape"] = Json{{"type", "array"},
                     {"items", whole(1, int64_t{1} << 40)},
                     {"description", "of one sample's output"}};
  op["output_bytes"] = described(number, "per sample");
  op["max_split"] =
      described(whole(1, kMaxTensor), "tensor-parallel degrees: powers of two up to this");
  op["recomputable"] =
      described(Json{{"type", "boolean"}}, "its inputs may be kept instead of its activations");
  op["tied"] = described(whole(-1, kMaxOps), "operators of one class share their parameters");
  op["variants"] = Json{{"type", "array"},
                        {"items", object(variant, required)},
                        {"description", "measured costs at other degrees, or recomputed"}};
  Json op_required = required;
  op_required.insert(op_required.begin(), "name");
  const Json edge = object(
      {{"from", described(text, "name of an operator")},
       {"to", described(text, "name of an operator")},
       {"output",
        described(whole(0, 1 << 30), "edges with equal from and output carry the same tensor")},
       {"bytes", described(number, "per sample, forward; the gradient is as large")},
       {"tensor_bytes_from", described(number, "exchanged besides by a tensor-parallel sender")},
       {"tensor_bytes_to", described(number, "exchanged besides by a tensor-parallel receiver")},
       {"gradient_bytes", described(number, "per sample, what the reader's gradient takes there")},
       {"fused", described(Json{{"type", "boolean"}},
                           "a stage with both operators does them at once, without this tensor")}},
      {"from", "to", "bytes"});
  Json schema = object(
      {{"format", Json{{"const", "ductile.graph"}}},
       {"version", Json{{"const", 1}}},
       {"name", text},
       {"sample", described(text, "what one sample is")},
       {"state_factor", described(number, "bytes held per byte of parameters, optimiser apart")},
       {"optimizer_factor", described(number, "bytes of optimiser state per byte of parameters")},
       {"counted", described(Json{{"type", "boolean"}},
                             "bytes are what the runtime's allocator gave out, pass by pass")},
       {"model", spec::model_identity_schema()},
       {"ops", Json{{"type", "array"}, {"items", object(op, op_required)}, {"minItems", 1}}},
       {"edges", Json{{"type", "array"}, {"items", edge}}}},
      {"format", "version", "ops", "edges"});
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "A model graph with costs";
  schema["$defs"]["affine"] = Json{
      {"description", "per sample, or a fixed part and one per sample"},
      {"oneOf",
       Json::array({number, object({{"fixed", number}, {"per_sample", number}}, Json::array())})}};
  const Json numbers = {{"type", "array"}, {"items", number}, {"minItems", 1}};
  schema["$defs"]["most"] =
      Json{{"description",
            "per sample, or a fixed part and one per sample, or measured at some samples"},
           {"anyOf", Json::array({affine, object({{"samples", numbers}, {"bytes", numbers}},
                                                 {"samples", "bytes"})})}};
  return schema;
}

}  // namespace ductile::graph
