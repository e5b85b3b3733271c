// Cluster files: TOML and JSON, with the line of what is wrong, and figures with units.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/options.h"
#include "ductile/base/toml.h"
#include "ductile/spec/cluster.h"
#include "ductile/spec/pool.h"

namespace ductile::spec {
namespace {

using Json = nlohmann::json;

struct Unit {
  std::string_view name;
  double factor;
};
constexpr Unit kBytes[] = {{"B", 1},           {"KB", 1e3},           {"MB", 1e6},
                           {"GB", 1e9},        {"TB", 1e12},          {"KiB", 1024.0},
                           {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
constexpr Unit kBytesPerSecond[] = {
    {"B/s", 1},        {"KB/s", 1e3},        {"MB/s", 1e6},           {"GB/s", 1e9},
    {"TB/s", 1e12},    {"MiB/s", 1048576.0}, {"GiB/s", 1073741824.0}, {"Mb/s", 1e6 / 8},
    {"Gb/s", 1e9 / 8}, {"Mbit/s", 1e6 / 8},  {"Gbit/s", 1e9 / 8}};
constexpr Unit kFlops[] = {{"FLOP/s", 1},     {"MFLOP/s", 1e6},  {"GFLOP/s", 1e9},
                           {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}, {"TFLOPS", 1e12}};
constexpr Unit kSeconds[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"min", 60}};

std::span<const Unit> units_of(std::string_view key) {
  if (key == "memory") return kBytes;
  if (key == "flops") return kFlops;
  if (key.ends_with("_bandwidth")) return kBytesPerSecond;
  if (key.ends_with("_latency") || key == "overhead" || key == "notice" || key == "leave")
    return kSeconds;
  return {};
}

// What nobody means by a number without a unit: 80 for GB, 25 for GB/s, 5 for us. Empty: it may be
// meant. Else an example.
std::string_view example_instead(std::string_view key, double value) {
  if (value <= 0) return "";  // out of range, or none
  if (key == "memory" && value < 1e6) return "80 GB";
  if (key == "flops" && value < 1e6) return "100 TFLOP/s";
  if (key.ends_with("_bandwidth") && value < 1e5) return "25 GB/s";
  if ((key.ends_with("_latency") || key == "overhead") && value >= 1) return "5 us";
  return "";
}

void check_magnitude(std::string_view key, const Json& value, const std::string& where) {
  if (!value.is_number()) return;
  const std::string_view example = example_instead(key, value.get<double>());
  if (example.empty()) return;
  const std::string_view unit = units_of(key).front().name;
  fail(ErrorCode::invalid_argument,
       "{0}: {1} = {2} is {2} {3}, as a number without a unit is of {3}; write {1} = \"{4}\", with "
       "the unit that is meant, or \"{2} {3}\"",
       where, key, dump_json(value), unit, example);
}

// Names that others have for a key of [[nodes]].
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"mem", "memory"},    {"ram", "memory"},           {"vram", "memory"},
    {"gpu", "devices"},   {"gpus", "devices"},         {"gpus_per_node", "devices"},
    {"cores", "devices"}, {"accelerators", "devices"}, {"num_nodes", "count"}};

void check_key(std::string_view key, const std::string& where) {
  for (const auto& [other, own] : kOtherNames)
    if (key == other)
      fail(ErrorCode::invalid_argument, "{}: unknown key {}; did you mean {}?", where, key, own);
}

double with_unit(const std::string& text, std::string_view key, std::span<const Unit> units,
                 const std::string& where) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  std::string_view name(rest, static_cast<size_t>(end - rest));
  while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
  std::vector<std::string_view> known;
  for (const Unit& unit : units) {
    if (error == std::errc() && unit.name == name) return value * unit.factor;
    known.push_back(unit.name);
  }
  fail(ErrorCode::invalid_argument,
       "{}: {} must be a number or text with a unit ({}), it is \"{}\"", where, key,
       fmt::join(known, ", "), JsonFields::shorten(text));
}

// Where entry `index` of the list `list` is, or its key.
using Where = std::function<std::string(const char* list, size_t index, std::string_view key)>;

// Reads an entry key by key, so that an error names the line of the key. `by_hand`: somebody wrote
// it, who may have left a unit out.
void read_entry(OptionSet& options, const Json& entry, const char* list, size_t index,
                const Where& where, bool by_hand = false) {
  if (!entry.is_object())
    fail(ErrorCode::invalid_argument, "{}: write [[{}]], with a key = value on each line",
         where(list, index, ""), list);
  for (const auto& [key, value] : entry.items()) {
    const std::string at = where(list, index, key);
    const std::span<const Unit> units = units_of(key);
    if (std::string_view(list) == "nodes") check_key(key, at);
    if (by_hand && !units.empty()) check_magnitude(key, value, at);
    Json one = Json::object();
    one[JsonFields::shorten(key)] = value.is_string() && !units.empty()
                                        ? Json(with_unit(value.get<std::string>(), key, units, at))
                                        : value;
    options.read_json(one, at);
  }
}

// Earlier versions took a file with such a leave, so it says what is the same as that was.
std::string remedy_of_leave(const NodeGroup& g) {
  if (g.notice > 0)
    return fmt::format(
        "write leave = {:g}, by which all leave at the notice, as they did with this in earlier "
        "versions, or a longer notice",
        g.notice);
  return "leave it out, as it had no effect in earlier versions, or write how long the notice is";
}

void check_group(const NodeGroup& g, const std::string& where) {
  const auto wrong = [&](const std::string& what) {
    fail(ErrorCode::invalid_argument, "{}: {}", where, what);
  };
  if (g.type.empty()) wrong("type is missing or empty; write type = \"t4\", or another name");
  if (g.region.empty() || g.cluster.empty()) wrong("region or cluster is an empty name");
  if (!g.hosts.empty() && static_cast<int64_t>(g.hosts.size()) != g.count)
    wrong(fmt::format("{} hosts and a count of {}; leave the count out, or name each node",
                      g.hosts.size(), g.count));
  if (!g.addresses.empty() && g.addresses.size() != g.hosts.size())
    wrong(fmt::format("{} addresses of {} hosts; write one for each, in the same order",
                      g.addresses.size(), g.hosts.size()));
  for (const auto* names : {&g.hosts, &g.addresses})
    if (std::find(names->begin(), names->end(), "") != names->end())
      wrong("a host or an address is empty");
  for (const std::string& host : g.hosts)
    if (host.find('/') != std::string::npos || host == "." || host == "..")
      wrong(fmt::format(
          "host \"{}\" cannot be named in the paths of requests, as `ductile drain` makes them; "
          "write a name without '/', which ssh may know as a Host of its configuration",
          host));
  if (g.leave > g.notice)
    wrong(fmt::format("leave = {:g} seconds are the last ones of a notice, and notice is {:g}; {}",
                      g.leave, g.notice, remedy_of_leave(g)));
}

// `nodes`: how many of the groups are [[nodes]]; the others are [[pool]].
void check_names(const Cluster& cluster, size_t nodes, const Where& where) {
  std::vector<std::pair<std::string_view, size_t>> hosts;
  for (size_t i = 0; i < cluster.groups.size(); ++i)
    for (const std::string& host : cluster.groups[i].hosts) hosts.emplace_back(host, i);
  std::sort(hosts.begin(), hosts.end());
  for (size_t i = 1; i < hosts.size(); ++i)
    if (hosts[i].first == hosts[i - 1].first)
      fail(ErrorCode::invalid_argument,
           "{}: host {} was there before; a node has a name of its own",
           hosts[i].second < nodes ? where("nodes", hosts[i].second, "hosts")
                                   : where("pool", hosts[i].second - nodes, "name"),
           hosts[i].first);
}

std::vector<Pool> read_pool_list(const Json& list, const Where& where) {
  std::vector<Pool> out;
  for (size_t i = 0; i < list.size(); ++i) {
    Pool pool;
    OptionSet options(pool);
    read_entry(options, list[i], "pool", i, where);
    if (pool.name.empty()) pool.name = pool.engine;
    if (const std::string wrong = error_of(pool); !wrong.empty())
      fail(ErrorCode::invalid_argument, "{}: {}", where("pool", i, ""), wrong);
    out.push_back(std::move(pool));
  }
  return out;
}

void read_teams(const Json& list, Cluster& cluster, const Where& where) {
  double shares = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    Team team;
    OptionSet options(team);
    read_entry(options, list[i], "teams", i, where);
    if (!list[i].contains("id"))
      fail(ErrorCode::invalid_argument, "{}: id is missing", where("teams", i, ""));
    for (const Team& other : cluster.teams)
      if (other.id == team.id)
        fail(ErrorCode::invalid_argument, "{}: team {} was there before", where("teams", i, "id"),
             team.id);
    shares += team.share;
    cluster.teams.push_back(team);
  }
  if (shares > 1 + 1e-9)
    fail(ErrorCode::invalid_argument, "{}: the teams' shares add up to {:.3g}, above 1",
         where("teams", list.size() - 1, "share"), shares);
}

Cluster from_tree(const Json& tree, std::string_view name, const Where& where, bool by_hand) {
  if (!tree.is_object()) fail(ErrorCode::invalid_argument, "{}: not a table", name);
  if (tree.contains("group"))
    fail(ErrorCode::invalid_argument,
         "{}: [[group]] is now [[nodes]]: write type for its name, count for nodes and devices for "
         "devices_per_node; the other keys are as before",
         where("group", 0, ""));
  for (const auto& [key, value] : tree.items()) {
    if (key != "nodes" && key != "pool" && key != "teams")
      fail_unknown_name(fmt::format("{}: table", where(key.c_str(), 0, "")),
                        JsonFields::shorten(key),
                        std::vector<std::string>{"nodes", "pool", "teams"});
    if (!value.is_array())
      fail(ErrorCode::invalid_argument, "{}: {} is a list of tables; write [[{}]]",
           where(key.c_str(), 0, ""), key, key);
  }
  const Json none = Json::array();
  const Json& nodes = tree.contains("nodes") ? tree["nodes"] : none;
  const Json& pools = tree.contains("pool") ? tree["pool"] : none;
  if (nodes.empty() && pools.empty())
    fail(ErrorCode::invalid_argument,
         "{}: a cluster needs at least one [[nodes]] with type, count and devices, or a [[pool]]",
         name);
  Cluster cluster;
  for (size_t i = 0; i < nodes.size(); ++i) {
    NodeGroup group;
    OptionSet options(group);
    read_entry(options, nodes[i], "nodes", i, where, by_hand);
    if (options.find("count")->origin.is_default() && !group.hosts.empty())
      group.count = static_cast<int64_t>(group.hosts.size());
    // Profiles are of the first group; what is not said follows from the arithmetic.
    if (options.find("speed")->origin.is_default() && !cluster.groups.empty())
      group.speed = cluster.groups[0].speed * group.flops / cluster.groups[0].flops;
    check_group(group, where("nodes", i, ""));
    cluster.groups.push_back(std::move(group));
  }
  for (const Pool& pool : read_pool_list(pools, where)) cluster.groups.push_back(group_of(pool));
  if (cluster.nodes() > INT32_MAX)
    fail(ErrorCode::invalid_argument, "{}: {} nodes in all; there may be {}", name, cluster.nodes(),
         INT32_MAX);
  check_names(cluster, nodes.size(), where);
  if (tree.contains("teams")) read_teams(tree["teams"], cluster, where);
  return cluster;
}

Json plain(const toml::node& node) {
  if (const toml::table* table = node.as_table()) {
    Json out = Json::object();
    for (const auto& [key, item] : *table) out[std::string(key.str())] = plain(item);
    return out;
  }
  if (const toml::array* array = node.as_array()) {
    Json out = Json::array();
    for (const toml::node& item : *array) out.push_back(plain(item));
    return out;
  }
  if (auto v = node.value_exact<bool>()) return *v;
  if (auto v = node.value_exact<int64_t>()) return *v;
  if (auto v = node.value_exact<double>()) return *v;
  if (auto v = node.value_exact<std::string>()) return *v;
  return nullptr;
}

// What is no TOML at all may be the list of hosts that another option takes.
toml::table parse_tree(std::string_view text, std::string_view name) {
  try {
    return parse_toml(text, name);
  } catch (const Error& e) {
    fail(e.code(), "{}; a cluster is written as [[nodes]] with lines such as type = \"t4\"",
         e.message());
  }
}

Where where_in(const toml::table& tree, std::string_view name) {
  return [&tree, name](const char* list, size_t index, std::string_view key) {
    const toml::node* at = tree.get(list);
    if (at != nullptr && at->is_array() && index < at->as_array()->size())
      at = at->as_array()->get(index);
    if (at != nullptr && at->is_table() && at->as_table()->contains(key))
      at = at->as_table()->get(key);
    return at == nullptr ? std::string(name) : fmt::format("{}:{}", name, at->source().begin.line);
  };
}

Where where_in(std::string_view name) {
  return [text = std::string(name)](const char* list, size_t index, std::string_view) {
    return fmt::format("{}: {}[{}]", text, JsonFields::shorten(list), index);
  };
}

std::string toml_entry(const char* list, const OptionSet& options) {
  return fmt::format("[[{}]]\n{}", list, options.to_toml());
}

// The same, with units at figures that are refused without.
std::string toml_of(const NodeGroup& group) {
  NodeGroup copy = group;
  std::string out = toml_entry("nodes", OptionSet(copy));
  const Json values = OptionSet(copy).to_json();
  for (const auto& [key, value] : values.items()) {
    if (units_of(key).empty() || !value.is_number()) continue;
    if (example_instead(key, value.get<double>()).empty()) continue;
    const std::string line = fmt::format("\n{} = ", key);
    const size_t begin = out.find(line) + line.size();
    out.replace(begin, out.find('\n', begin) - begin,
                fmt::format("\"{} {}\"", dump_json(value), units_of(key).front().name));
  }
  return out;
}

}  // namespace

Cluster parse_cluster(std::string_view text, std::string_view name) {
  const toml::table tree = parse_tree(text, name);
  return from_tree(plain(tree), name, where_in(tree, name), /*by_hand=*/true);
}

// The cluster is read, too, since it has the errors of the whole file.
std::vector<Pool> parse_pools(std::string_view text, std::string_view name) {
  parse_cluster(text, name);
  const toml::table tree = parse_tree(text, name);
  const Json values = plain(tree);
  if (!values.contains("pool")) return {};
  return read_pool_list(values["pool"], where_in(tree, name));
}

std::vector<Pool> read_pools(const fs::path& file) {
  const std::string text = read_text(file);
  if (file.extension() != ".json") return parse_pools(text, file.string());
  const Json tree = parse_json(text, file.string(), ErrorCode::invalid_argument);
  cluster_from_json(tree, file.string());
  if (!tree.contains("pool")) return {};
  return read_pool_list(tree["pool"], where_in(file.string()));
}

Cluster cluster_from_json(const Json& value, std::string_view name) {
  return from_tree(value, name, where_in(name), /*by_hand=*/false);  // of a program, as reports are
}

Cluster read_cluster(const fs::path& file) {
  const std::string text = read_text(file);
  if (file.extension() != ".json") return parse_cluster(text, file.string());
  return cluster_from_json(parse_json(text, file.string(), ErrorCode::invalid_argument),
                           file.string());
}

std::string to_toml(const Cluster& cluster) {
  std::string out;
  for (const NodeGroup& group : cluster.groups) out += (out.empty() ? "" : "\n") + toml_of(group);
  for (Team team : cluster.teams) out += "\n" + toml_entry("teams", OptionSet(team));
  return out;
}

Json to_json(const Cluster& cluster) {
  Json out = {{"nodes", Json::array()}};
  for (NodeGroup group : cluster.groups) out["nodes"].push_back(OptionSet(group).to_json());
  for (Team team : cluster.teams) out["teams"].push_back(OptionSet(team).to_json());
  return out;
}

Json cluster_schema() {
  NodeGroup group;
  Pool pool;
  Team team;
  Json nodes = OptionSet(group).json_schema("nodes"), teams = OptionSet(team).json_schema("teams"),
       pools = OptionSet(pool).json_schema("pool");
  for (auto& [key, entry] : nodes["properties"].items())
    if (!units_of(key).empty()) {
      entry["type"] = {"number", "string"};
      std::vector<std::string_view> known;
      for (const Unit& unit : units_of(key)) known.push_back(unit.name);
      entry["description"] =
          fmt::format("{}; a number, or text with a unit ({})",
                      entry["description"].get<std::string>(), fmt::join(known, ", "));
    }
  nodes["required"] = {"type"};
  teams["required"] = {"id"};
  nodes.erase("$schema"), teams.erase("$schema"), pools.erase("$schema");
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"title", "Ductile cluster"},
          {"type", "object"},
          {"additionalProperties", false},
          {"anyOf", {{{"required", {"nodes"}}}, {{"required", {"pool"}}}}},
          {"properties",
           {{"nodes", {{"type", "array"}, {"minItems", 1}, {"items", nodes}}},
            {"pool", {{"type", "array"}, {"minItems", 1}, {"items", pools}}},
            {"teams", {{"type", "array"}, {"items", teams}}}}}};
}

}  // namespace ductile::spec
