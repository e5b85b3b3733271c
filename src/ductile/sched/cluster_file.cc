// Cluster files: TOML and JSON, with the line of what is wrong.
#include <functional>

#include "ductile/base/json_fields.h"
#include "ductile/base/toml.h"
#include "ductile/sched/cluster.h"

namespace ductile::sched {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostDevices = 1024;       // of a node
constexpr int64_t kMostNodes = 100'000'000;  // of an entry
constexpr int64_t kMostQuota = 1'000'000'000;

// A name that is not empty.
std::string name_of(const JsonFields& entry, const char* key, const char* otherwise) {
  const std::string name = otherwise == nullptr ? entry.text(key) : entry.text(key, otherwise);
  if (name.empty()) fail(ErrorCode::invalid_argument, "{}: {} is empty", entry.where(), key);
  return name;
}

void read_teams(const JsonFields& tree, Cluster& cluster) {
  double shares = 0;
  size_t index = 0;
  for (const Json& entry : tree.array("teams")) {
    const JsonFields f(entry, fmt::format("{}: teams[{}]", tree.where(), index++));
    f.only({"id", "share", "quota"});
    Team team;
    team.id = static_cast<int32_t>(f.integer("id", 0, INT32_MAX));
    for (const Team& other : cluster.teams)
      if (other.id == team.id)
        fail(ErrorCode::invalid_argument, "{}: team {} was there before", f.where(), team.id);
    if (f.has("share")) team.share = f.number("share", 1e-9, 1);
    if (f.has("quota")) team.quota = f.integer("quota", 1, kMostQuota);
    shares += team.share;
    cluster.teams.push_back(team);
  }
  if (shares > 1 + 1e-9)
    fail(ErrorCode::invalid_argument, "{}: the teams' shares add up to {:.3g}, above 1",
         tree.where(), shares);
}

// where(i): file and line of entry i.
Cluster from_tree(const Json& value, std::string_view name,
                  const std::function<std::string(size_t)>& where) {
  const JsonFields tree(value, std::string(name));
  tree.only({"nodes", "teams"});
  if (!tree.has("nodes") || !tree.at("nodes").is_array() || tree.at("nodes").empty())
    fail(ErrorCode::invalid_argument,
         "{}: a cluster needs at least one [[nodes]] with type, count and devices", name);
  Cluster cluster;
  size_t index = 0;
  for (const Json& entry : tree.array("nodes")) {
    const JsonFields f(entry, where(index++));
    f.only({"type", "count", "devices", "cluster", "region", "spot"});
    cluster.add_nodes(
        name_of(f, "type", nullptr), static_cast<int32_t>(f.integer_or("count", 1, 1, kMostNodes)),
        static_cast<int32_t>(f.integer_or("devices", 1, 1, kMostDevices)),
        name_of(f, "cluster", "main"), name_of(f, "region", "home"), f.boolean("spot", false));
  }
  if (tree.has("teams")) read_teams(tree, cluster);
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
  return from_tree(parse_json(text, file.string(), ErrorCode::invalid_argument), file.string(),
                   [&](size_t i) { return fmt::format("{}: nodes[{}]", file.string(), i); });
}

}  // namespace ductile::sched
