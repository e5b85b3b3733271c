#include "ductile/sched/cluster.h"

#include <algorithm>
#include <limits>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"

namespace ductile::sched {
namespace {

int32_t find_or_add(std::vector<std::string>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<int32_t>(found - names.begin());
  names.emplace_back(name);
  return static_cast<int32_t>(names.size() - 1);
}

}  // namespace

int64_t Cluster::usable_devices() const {
  int64_t sum = 0;
  for (int32_t n = 0; n < nodes(); ++n) sum += usable(n);
  return sum;
}

int64_t Cluster::usable_devices(int32_t type) const {
  int64_t sum = 0;
  for (int32_t n = 0; n < nodes(); ++n)
    if (node_type[n] == type) sum += usable(n);
  return sum;
}

int32_t Cluster::devices_per_node(int32_t type) const {
  int32_t most = 0;
  for (int32_t n = 0; n < nodes(); ++n)
    if (node_type[n] == type) most = std::max<int32_t>(most, node_devices[n]);
  return most;
}

int32_t Cluster::nodes_of_type(int32_t type) const {
  return static_cast<int32_t>(
      std::count(node_type.begin(), node_type.end(), static_cast<int16_t>(type)));
}

int32_t Cluster::type_id(std::string_view name) const {
  const auto found = std::find(types.begin(), types.end(), name);
  if (found != types.end()) return static_cast<int32_t>(found - types.begin());
  std::string known;
  for (const std::string& type : types) known += (known.empty() ? "" : ", ") + type;
  fail(ErrorCode::not_found, "no device type '{}' in this cluster; it has {}", name, known);
}

void Cluster::add_nodes(std::string_view type, int32_t count, int32_t devices,
                        std::string_view cluster, std::string_view region, bool spot) {
  DUCTILE_CHECK(count >= 0 && devices >= 1 && devices <= std::numeric_limits<int16_t>::max(),
                "{} nodes of {} devices", count, devices);
  const int32_t type_index = find_or_add(types, type);
  const int32_t region_index = find_or_add(regions, region);
  // A cluster's name need be unique in its region only.
  int32_t cluster_index = -1;
  for (size_t i = 0; i < clusters.size(); ++i)
    if (clusters[i] == cluster && cluster_region[i] == region_index)
      cluster_index = static_cast<int32_t>(i);
  if (cluster_index < 0) {
    cluster_index = static_cast<int32_t>(clusters.size());
    clusters.emplace_back(cluster);
    cluster_region.push_back(region_index);
  }
  const size_t size = node_type.size() + count;
  node_cluster.resize(size, cluster_index);
  node_type.resize(size, static_cast<int16_t>(type_index));
  node_devices.resize(size, static_cast<int16_t>(devices));
  node_up.resize(size, 1);
  node_spot.resize(size, spot);
  node_leaves_at.resize(size, std::numeric_limits<double>::infinity());
}

void Cluster::check() const {
  const size_t size = node_type.size();
  DUCTILE_CHECK(node_cluster.size() == size && node_devices.size() == size &&
                node_up.size() == size && node_spot.size() == size &&
                node_leaves_at.size() == size);
  DUCTILE_CHECK(cluster_region.size() == clusters.size());
  for (size_t n = 0; n < size; ++n) {
    DUCTILE_CHECK(node_type[n] >= 0 && node_type[n] < type_count(), "node {}", n);
    DUCTILE_CHECK(node_cluster[n] >= 0 && node_cluster[n] < static_cast<int32_t>(clusters.size()));
    DUCTILE_CHECK(node_devices[n] >= 1, "node {} has no device", n);
  }
  for (const int32_t region : cluster_region)
    DUCTILE_CHECK(region >= 0 && region < static_cast<int32_t>(regions.size()));
}

Cluster homogeneous_cluster(int32_t nodes, int32_t devices, std::string_view type) {
  Cluster cluster;
  cluster.add_nodes(type, nodes, devices);
  return cluster;
}

nlohmann::json to_json(const Cluster& cluster) {
  nlohmann::json nodes = nlohmann::json::array();
  const auto same = [&](int32_t a, int32_t b) {
    return cluster.node_type[a] == cluster.node_type[b] &&
           cluster.node_devices[a] == cluster.node_devices[b] &&
           cluster.node_cluster[a] == cluster.node_cluster[b] &&
           cluster.node_spot[a] == cluster.node_spot[b];
  };
  for (int32_t first = 0; first < cluster.nodes();) {
    int32_t next = first + 1;
    while (next < cluster.nodes() && same(first, next)) ++next;
    const int32_t home = cluster.node_cluster[first];
    nodes.push_back({{"type", cluster.types[cluster.node_type[first]]},
                     {"count", next - first},
                     {"devices", cluster.node_devices[first]},
                     {"cluster", cluster.clusters[home]},
                     {"region", cluster.regions[cluster.cluster_region[home]]},
                     {"spot", cluster.node_spot[first] != 0}});
    first = next;
  }
  nlohmann::json out = {{"nodes", nodes}};
  for (const Team& team : cluster.teams) {
    out["teams"].push_back({{"id", team.id}});
    if (team.share > 0) out["teams"].back()["share"] = team.share;
    if (team.quota > 0) out["teams"].back()["quota"] = team.quota;
  }
  return out;
}

Cluster cluster_of(const spec::Cluster& cluster) {
  Cluster out;
  for (const spec::NodeGroup& group : cluster.groups)
    out.add_nodes(group.type, static_cast<int32_t>(group.count),
                  static_cast<int32_t>(group.devices), group.cluster, group.region, group.spot);
  out.teams = cluster.teams;
  return out;
}

}  // namespace ductile::sched
