// Readers of other planners' inputs, and the one that tells formats apart.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <unordered_map>

#include <fmt/ranges.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/table.h"
#include "ductile/graph/builders.h"
#include "ductile/graph/formats.h"
#include "ductile/graph/json_fields_impl.h"

namespace ductile::graph {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxName = 4096;
constexpr double kMilli = 1e-3;

// Edges of one source with equal bytes carry the same tensor, as far as these formats tell.
void number_outputs(Graph& graph) {
  std::map<std::pair<OpId, double>, int> number;
  std::unordered_map<OpId, int> used;
  for (Edge& e : graph.edges) {
    const auto [at, is_new] = number.try_emplace({e.from, e.bytes}, used[e.from]);
    used[e.from] += is_new;
    e.output = at->second;
  }
}

// At most kMaxName bytes, no character cut in two.
std::string cut(std::string text) {
  if (text.size() <= kMaxName) return text;
  size_t end = kMaxName;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

// Ids of nodes, and names made unique.
class Names {
 public:
  OpId add(Graph& graph, int64_t id, std::string name) {
    const OpId op = static_cast<OpId>(graph.ops.size());
    if (!ids_.emplace(id, op).second) {
      fail(ErrorCode::invalid_argument, "node {}: two nodes have this id", id);
    }
    if (name.empty()) name = "node";
    name = cut(std::move(name));
    if (!taken_.insert(name).second) name = fmt::format("{}#{}", name, id);
    graph.ops.emplace_back().name = std::move(name);
    return op;
  }
  OpId find(const Fields& f, const char* key) const {
    const int64_t id = f.integer(key, INT32_MIN, INT32_MAX);
    const auto at = ids_.find(id);
    if (at == ids_.end()) {
      fail(ErrorCode::invalid_argument, "{}: {} is {}, there is no such node", f.where(), key, id);
    }
    return at->second;
  }

 private:
  std::unordered_map<int64_t, OpId> ids_;
  std::set<std::string> taken_;
};

OpCost piper_cost(const Fields& f, double unit) {
  OpCost c;
  c.parameter_bytes = f.number("parameterSize");
  const double time = f.number("timePerSample") * unit;
  c.forward.per_sample = time / 3;
  const double backward = time - c.forward.per_sample;
  c.backward_weight.per_sample = c.parameter_bytes > 0 ? backward / 2 : 0;
  c.backward_input.per_sample = backward - c.backward_weight.per_sample;
  c.activation_bytes = f.number("memoryUsageA");
  c.fixed_bytes = f.number("memoryUsageB");
  return c;
}

// A third of the time of every mode, in the file's unit, is enough to tell the unit.
double piper_unit(const Json& nodes) {
  double total = 0;
  size_t count = 0;
  for (const Json& node : nodes) {
    if (!node.is_object() || !node.contains("TMPCs")) continue;
    const Json& modes = node["TMPCs"];
    if (!modes.is_object() || !modes.contains("1") || !modes["1"].is_array()) continue;
    for (const Json& mode : modes["1"]) {
      if (!mode.is_object() || !mode.contains("timePerSample")) continue;
      if (mode["timePerSample"].is_number()) total += mode["timePerSample"].get<double>(), ++count;
    }
  }
  return count > 0 && total / static_cast<double>(count) > 0.1 ? kMilli : 1;
}

// What each end of an edge exchanges, from its node's modes of degree above 1.
using TensorTraffic = std::map<std::pair<int64_t, int64_t>, double>;

void read_tensor_traffic(const Fields& mode, const char* key, int64_t id, TensorTraffic& out) {
  if (!mode.has(key)) return;
  const Fields table(mode.at(key), fmt::format("{}: {}", mode.where(), key));
  for (const auto& [other, value] : mode.at(key).items()) {
    int64_t other_id = 0;
    const auto [end, error] = std::from_chars(other.data(), other.data() + other.size(), other_id);
    if (error != std::errc() || end != other.data() + other.size()) {
      fail(ErrorCode::invalid_argument, "{}: \"{}\" is no node id", table.where(),
           Fields::shorten(other));
    }
    double& bytes = out[{id, other_id}];
    bytes = std::max(bytes, table.as_number(value, key));
  }
}

void read_piper_node(const Json& value, size_t i, double unit, Graph& graph, Names& names,
                     TensorTraffic& incoming, TensorTraffic& outgoing) {
  const Fields f(value, fmt::format("node {}", i));
  const int64_t id = f.integer("id", INT32_MIN, INT32_MAX);
  Op& op = graph.ops[names.add(graph, id, f.text("name", ""))];
  op.kind = cut(f.text("name", "op"));
  const std::string where = fmt::format("operator \"{}\"", Fields::shorten(op.name));
  const Fields degrees(f.at("TMPCs"), where + ": TMPCs");
  bool found = false;
  for (const auto& [degree, modes] : f.at("TMPCs").items()) {
    int tensor = 0;
    const auto [end, error] = std::from_chars(degree.data(), degree.data() + degree.size(), tensor);
    if (error != std::errc() || end != degree.data() + degree.size() || tensor < 1 ||
        tensor > kMaxTensor) {
      fail(ErrorCode::invalid_argument, "{}: degree \"{}\" must be from 1 to {}", degrees.where(),
           Fields::shorten(degree), kMaxTensor);
    }
    for (const Json& mode : degrees.array(degree.c_str())) {
      const Fields m(mode, fmt::format("{}: TMPCs {}", where, tensor));
      const std::string kind = m.text("id");
      if (kind != "vanilla" && kind != "activation recomp") {
        fail(ErrorCode::invalid_argument,
             "{}: unknown mode \"{}\", known are \"vanilla\" and \"activation recomp\"", m.where(),
             Fields::shorten(kind));
      }
      const OpCost cost = piper_cost(m, unit);
      if (tensor > 1) {
        read_tensor_traffic(m, "syncTimeFw", id, incoming);
        read_tensor_traffic(m, "syncTimeBw", id, outgoing);
      }
      if (tensor == 1 && kind == "vanilla") {
        op.cost = cost, found = true;
      } else {
        op.variants.push_back({tensor, kind != "vanilla", cost});
      }
    }
  }
  if (!found) {
    fail(ErrorCode::invalid_argument, "{}: TMPCs has no \"vanilla\" mode at degree 1", where);
  }
}

double sum_of_list(std::string_view text, const std::string& where) {
  double total = 0;
  std::string_view rest = text;
  const auto trim = [](std::string_view v) {
    while (!v.empty() && (v.front() == ' ' || v.front() == '[')) v.remove_prefix(1);
    while (!v.empty() && (v.back() == ' ' || v.back() == ']' || v.back() == '\r')) {
      v.remove_suffix(1);
    }
    return v;
  };
  for (bool more = true; more;) {
    const size_t semicolon = rest.find(';');
    more = semicolon != std::string_view::npos;
    const std::string_view item = trim(rest.substr(0, semicolon));
    double value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (error != std::errc() || end != item.data() + item.size()) {
      fail(ErrorCode::invalid_argument, "{} is \"{}\", a number is wanted", where,
           Fields::shorten(std::string(text)));
    }
    total += in_range(value, where);
    if (more) rest.remove_prefix(semicolon + 1);
  }
  return total;
}

// " -- forward_compute_time=0.5, backward_compute_time=..." -> the text behind `key`.
double pipedream_value(std::string_view costs, std::string_view key, const std::string& op) {
  const size_t at = costs.find(fmt::format("{}=", key));
  if (at == std::string_view::npos) {
    fail(ErrorCode::invalid_argument, "operator \"{}\": {} is missing", Fields::shorten(op), key);
  }
  std::string_view text = costs.substr(at + key.size() + 1);
  const bool is_list = !text.empty() && text.front() == '[';
  text = text.substr(0, text.find_first_of(is_list ? "]" : ",-", 1));
  // A minus sign in front is kept, and refused as a figure.
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return sum_of_list(text, fmt::format("operator \"{}\": {}", Fields::shorten(op), key));
}

bool looks_like_pipedream(std::string_view text) {
  return text.substr(0, size_t{1} << 20).find("forward_compute_time=") != std::string_view::npos;
}

// What `ductile plan --json` writes, with or without all that it found out.
bool is_plan(const Json& value) {
  return (value.contains("plan") && value.contains("evaluation")) ||
         (value.contains("format") && value["format"] == "ductile.plan");
}

}  // namespace

Graph graph_from_piper(const nlohmann::json& value) {
  const Fields f(value, "graph");
  Graph graph;
  graph.sample = "micro-batch";
  graph.state_factor = 0;
  Names names;
  TensorTraffic incoming, outgoing;
  std::vector<int64_t> id_of;
  const Json& nodes = f.array("nodes");
  const double unit = piper_unit(nodes);
  for (size_t i = 0; i < nodes.size(); ++i) {
    read_piper_node(nodes[i], i, unit, graph, names, incoming, outgoing);
  }
  for (const Json& v : f.array("edges")) {
    const Fields g(v, fmt::format("edge {}", graph.edges.size()));
    Edge edge;
    edge.from = names.find(g, "sourceId");
    edge.to = names.find(g, "destId");
    edge.bytes = g.number("communicationCost");
    const int64_t from = g.integer("sourceId", INT32_MIN, INT32_MAX);
    const int64_t to = g.integer("destId", INT32_MIN, INT32_MAX);
    const auto traffic = [](const TensorTraffic& all, int64_t a, int64_t b) {
      const auto at = all.find({a, b});
      return at == all.end() ? 0.0 : at->second;
    };
    edge.tensor_bytes_from = traffic(outgoing, from, to);
    edge.tensor_bytes_to = traffic(incoming, to, from);
    graph.edges.push_back(edge);
  }
  number_outputs(graph);
  for (const Edge& e : graph.edges) {
    Op& op = graph.ops[e.from];
    op.output_bytes = std::max(op.output_bytes, e.bytes);
  }
  check(graph);
  return graph;
}

Graph graph_from_pipedream(std::string_view text) {
  Graph graph;
  graph.sample = "micro-batch";
  std::unordered_map<std::string, OpId> ids;
  struct Dependency {
    std::string from, to;
  };
  std::vector<Dependency> dependencies;
  size_t line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t separator = line.find(" -- ");
    if (separator == std::string_view::npos) {
      fail(ErrorCode::invalid_argument, "line {}: neither a node nor an edge (no \" -- \")",
           line_number);
    }
    const std::string_view rest = line.substr(separator + 4);
    if (line.front() == '\t') {
      dependencies.push_back({std::string(line.substr(1, separator - 1)), std::string(rest)});
      continue;
    }
    const std::string name = cut(std::string(line.substr(0, separator)));
    const size_t costs_at = rest.find(" -- ");
    if (costs_at == std::string_view::npos) {
      fail(ErrorCode::invalid_argument, "operator \"{}\": forward_compute_time is missing",
           Fields::shorten(name));
    }
    if (!ids.emplace(name, static_cast<OpId>(graph.ops.size())).second) {
      fail(ErrorCode::invalid_argument, "line {}: two nodes are named \"{}\"", line_number,
           Fields::shorten(name));
    }
    const std::string_view costs = rest.substr(costs_at + 4);
    Op op;
    op.name = name;
    op.kind = cut(std::string(rest.substr(0, std::min(rest.find('('), costs_at))));
    op.cost.forward.per_sample = kMilli * pipedream_value(costs, "forward_compute_time", name);
    const double backward = kMilli * pipedream_value(costs, "backward_compute_time", name);
    op.cost.parameter_bytes = pipedream_value(costs, "parameter_size", name);
    op.cost.activation_bytes = pipedream_value(costs, "activation_size", name);
    op.cost.backward_weight.per_sample = op.cost.parameter_bytes > 0 ? backward / 2 : 0;
    op.cost.backward_input.per_sample = backward - op.cost.backward_weight.per_sample;
    // As PipeDream's own planner has it: the time and size of an input are the data loader's.
    if (op.kind.starts_with("Input")) op.cost = {};
    op.output_bytes = op.cost.activation_bytes;
    graph.ops.push_back(std::move(op));
    if (static_cast<int64_t>(graph.ops.size()) > kMaxOps) check(graph);
  }
  for (const Dependency& d : dependencies) {
    const auto find = [&](const std::string& name) {
      const auto at = ids.find(name);
      if (at == ids.end()) {
        fail(ErrorCode::invalid_argument, "edge \"{}\" -> \"{}\": unknown operator \"{}\"",
             Fields::shorten(d.from), Fields::shorten(d.to), Fields::shorten(name));
      }
      return at->second;
    };
    Edge edge;
    edge.from = find(d.from), edge.to = find(d.to);
    edge.bytes = graph.ops[edge.from].output_bytes;
    graph.edges.push_back(edge);
  }
  check(graph);
  return graph;
}

Graph graph_from_dnn_partitioning(const nlohmann::json& value) {
  const Fields f(value, "graph");
  Graph graph;
  graph.sample = "micro-batch";
  graph.state_factor = 0;
  Names names;
  std::unordered_map<int64_t, int> classes;  // colour -> operators that have it
  std::vector<int64_t> colours;
  size_t i = 0;
  for (const Json& v : f.array("nodes")) {
    const Fields g(v, fmt::format("node {}", i++));
    const OpId id = names.add(graph, g.integer("id", INT32_MIN, INT32_MAX), g.text("name", ""));
    Op& op = graph.ops[id];
    const Fields h(v, fmt::format("operator \"{}\"", Fields::shorten(op.name)));
    op.cost.forward.per_sample = kMilli * h.number("fpgaLatency");
    op.cost.fixed_bytes = h.number("size");
    op.kind = h.flag("isBackwardNode") ? "backward" : "forward";
    const int64_t colour = h.integer_or("colorClass", INT32_MIN, INT32_MIN, INT32_MAX);
    colours.push_back(colour);
    if (colour != INT32_MIN) ++classes[colour];
  }
  std::unordered_map<int64_t, int> number;  // of the classes with several members
  for (size_t op = 0; op < graph.ops.size(); ++op) {
    if (colours[op] == INT32_MIN || classes[colours[op]] < 2) continue;
    graph.ops[op].tied =
        number.try_emplace(colours[op], static_cast<int>(number.size())).first->second;
  }
  for (const Json& v : f.array("edges")) {
    const Fields g(v, fmt::format("edge {}", graph.edges.size()));
    Edge edge;
    edge.from = names.find(g, "sourceId");
    edge.to = names.find(g, "destId");
    edge.bytes = g.has("size") ? g.number("size") : g.number("cost") * kMilli * 2147483648.0;
    graph.edges.push_back(edge);
  }
  number_outputs(graph);
  check(graph);
  return graph;
}

std::string_view to_string(Format format) {
  switch (format) {
    case Format::ductile:
      return "ductile";
    case Format::piper:
      return "Piper";
    case Format::pipedream:
      return "PipeDream";
    case Format::dnn_partitioning:
      return "dnn-partitioning";
  }
  return "";
}

Graph read_graph_text(std::string_view text, std::string_view name, Format* found) {
  const auto note = [&](Format format) {
    if (found != nullptr) *found = format;
  };
  try {
    if (text.size() > kMaxText) {
      fail(ErrorCode::invalid_argument, "{} bytes, at most {} are accepted", text.size(), kMaxText);
    }
    const size_t first = text.find_first_not_of(" \t\r\n");
    Graph graph;
    if (first != std::string_view::npos && text[first] != '{' && looks_like_pipedream(text)) {
      note(Format::pipedream);
      graph = graph_from_pipedream(text);
    } else {
      const bool braced = first != std::string_view::npos && text[first] == '{';
      const Json value = parse_json(
          text, braced ? "no graph" : "no graph, as `ductile profile JOB -o FILE` writes one",
          ErrorCode::invalid_argument);
      if (!value.is_object()) {
        fail(ErrorCode::invalid_argument, "an object is wanted, not {}", value.type_name());
      }
      if (is_plan(value)) {
        fail(ErrorCode::invalid_argument,
             "this is a plan; `ductile plan GRAPH --plan FILE` judges it, with the graph that it "
             "was made of");
      }
      const Json* nodes = value.contains("nodes") ? &value["nodes"] : nullptr;
      const auto has = [&](const char* key) {
        return nodes != nullptr && nodes->is_array() && !nodes->empty() &&
               nodes->front().is_object() && nodes->front().contains(key);
      };
      if (has("TMPCs")) {
        note(Format::piper);
        graph = graph_from_piper(value);
      } else if (has("fpgaLatency") || has("supportedOnFpga")) {
        note(Format::dnn_partitioning);
        graph = graph_from_dnn_partitioning(value);
      } else if (value.contains("format")) {
        note(Format::ductile);
        graph = graph_from_json(value);
      } else {
        fail(ErrorCode::invalid_argument,
             "unknown format: wanted are \"format\": \"ductile.graph\", or \"nodes\" as Piper or "
             "dnn-partitioning write them");
      }
    }
    if (graph.name.empty()) {
      for (char c : std::filesystem::path(name).stem().string()) {
        graph.name += c >= 0x20 && c < 0x7F ? c : '_';
      }
    }
    return graph;
  } catch (Error& e) {
    throw Error(e).with_context(std::string(name));
  }
}

Graph read_graph(const std::filesystem::path& file, Format* found) {
  return read_graph_text(read_text(file, kMaxText), file.string(), found);
}

Graph find_graph(const std::string& text, const DeviceModel& device) {
  std::error_code ignored;
  if (fs::exists(text, ignored)) return read_graph(text);
  if (is_builder(text)) return build_graph(text, device);
  std::vector<std::string> known;
  for (const Builder& b : builders()) known.emplace_back(b.name);
  const auto nearest = nearest_name(text.substr(0, text.find(':')), known);
  fail(ErrorCode::not_found, "{}: no such file, nor a built-in graph ({}){}", text,
       fmt::join(known, ", "), nearest ? fmt::format("; did you mean \"{}\"?", *nearest) : "");
}

}  // namespace ductile::graph
