// Cluster files: TOML and JSON, with the line of what is wrong.
#include <array>
#include <functional>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/options.h"
#include "ductile/base/toml.h"
#include "ductile/sched/cluster.h"

namespace ductile::sched {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostDevices = 1024;       // of a node
constexpr int64_t kMostNodes = 100'000'000;  // of an entry

const std::vector<std::string> kKeys = {"type", "count", "devices", "cluster", "region", "spot"};

int64_t whole(const Json& entry, const char* key, int64_t fallback, int64_t most,
              const std::string& where) {
  if (!entry.contains(key)) return fallback;
  const Json& value = entry[key];
  if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > most)
    fail(ErrorCode::invalid_argument, "{}: {} must be a whole number from 1 to {}, not {}", where,
         key, most, dump_json(value));
  return value.get<int64_t>();
}

std::string word(const Json& entry, const char* key, const char* fallback,
                 const std::string& where) {
  if (!entry.contains(key)) {
    if (fallback == nullptr)
      fail(ErrorCode::invalid_argument, "{}: '{}' is missing, for example {} = \"t4\"", where, key,
           key);
    return fallback;
  }
  if (!entry[key].is_string() || entry[key].get<std::string>().empty())
    fail(ErrorCode::invalid_argument, "{}: {} must be a name in quotes, not {}", where, key,
         dump_json(entry[key]));
  return entry[key].get<std::string>();
}

void read_teams(const Json& list, std::string_view name, Cluster& cluster) {
  if (!list.is_array()) fail(ErrorCode::invalid_argument, "{}: write [[teams]]", name);
  double shares = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& entry = list[i];
    const std::string at = fmt::format("{}: teams[{}]", name, i);
    if (!entry.is_object()) fail(ErrorCode::invalid_argument, "{}: write [[teams]]", at);
    for (const auto& [key, value] : entry.items())
      if (key != "id" && key != "share" && key != "quota")
        fail(ErrorCode::invalid_argument, "{}: unknown key '{}'; a team has id, share, quota", at,
             key);
    Team team;
    if (!entry.contains("id") || !entry["id"].is_number_integer() || entry["id"].get<int64_t>() < 0)
      fail(ErrorCode::invalid_argument, "{}: id must be a whole number from 0, as jobs have it",
           at);
    team.id = entry["id"].get<int32_t>();
    for (const Team& other : cluster.teams)
      if (other.id == team.id)
        fail(ErrorCode::invalid_argument, "{}: team {} was there before", at, team.id);
    if (entry.contains("share")) {
      if (!entry["share"].is_number() || !(entry["share"].get<double>() > 0) ||
          entry["share"].get<double>() > 1)
        fail(ErrorCode::invalid_argument, "{}: share must be above 0, at most 1", at);
      team.share = entry["share"].get<double>();
    }
    if (entry.contains("quota")) team.quota = whole(entry, "quota", 0, 1'000'000'000, at);
    shares += team.share;
    cluster.teams.push_back(team);
  }
  if (shares > 1 + 1e-9)
    fail(ErrorCode::invalid_argument, "{}: the teams' shares add up to {:.3g}, above 1", name,
         shares);
}

// where(i): file and line of entry i.
Cluster from_tree(const Json& tree, std::string_view name,
                  const std::function<std::string(size_t)>& where) {
  for (const auto& [key, value] : tree.items())
    if (key != "nodes" && key != "teams")
      fail(ErrorCode::invalid_argument,
           "{}: unknown key '{}'; a cluster has [[nodes]] and [[teams]]", name, key);
  if (!tree.contains("nodes") || !tree["nodes"].is_array() || tree["nodes"].empty())
    fail(ErrorCode::invalid_argument,
         "{}: a cluster needs at least one [[nodes]] with type, count and devices", name);
  Cluster cluster;
  size_t index = 0;
  for (const Json& entry : tree["nodes"]) {
    const std::string at = where(index++);
    if (!entry.is_object()) fail(ErrorCode::invalid_argument, "{}: [[nodes]] must be a table", at);
    for (const auto& [key, value] : entry.items()) {
      if (std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end()) continue;
      const auto near = nearest_name(key, kKeys);
      fail(ErrorCode::invalid_argument, "{}: unknown key '{}'{}", at, key,
           near ? "; did you mean " + *near + "?" : "");
    }
    bool spot = false;
    if (entry.contains("spot")) {
      if (!entry["spot"].is_boolean())
        fail(ErrorCode::invalid_argument, "{}: spot must be true or false", at);
      spot = entry["spot"].get<bool>();
    }
    cluster.add_nodes(word(entry, "type", nullptr, at),
                      static_cast<int32_t>(whole(entry, "count", 1, kMostNodes, at)),
                      static_cast<int32_t>(whole(entry, "devices", 1, kMostDevices, at)),
                      word(entry, "cluster", "main", at), word(entry, "region", "home", at), spot);
  }
  if (tree.contains("teams")) read_teams(tree["teams"], name, cluster);
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

}  // namespace

Cluster parse_cluster(std::string_view text, std::string_view name) {
  const toml::table tree = parse_toml(text, name);
  const toml::array* entries = tree["nodes"].as_array();
  return from_tree(plain(tree), name, [&](size_t i) {
    return fmt::format("{}:{}", name, entries->get(i)->source().begin.line);
  });
}

Cluster read_cluster(const fs::path& file) {
  const std::string text = read_file(file);
  if (file.extension() != ".json") return parse_cluster(text, file.string());
  const Json tree = parse_json(text);
  if (!tree.is_object()) fail(ErrorCode::invalid_argument, "{}: not a JSON object", file.string());
  return from_tree(tree, file.string(),
                   [&](size_t i) { return fmt::format("{}: nodes[{}]", file.string(), i); });
}

}  // namespace ductile::sched
