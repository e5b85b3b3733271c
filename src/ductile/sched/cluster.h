#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/spec/cluster.h"

namespace ductile::sched {

using spec::Allocation;
using spec::device_count;
using spec::NodeShare;
using spec::Team;

// The devices of a fleet: regions > clusters > nodes > devices, as arrays indexed by small ids, so
// a million devices stay a few megabytes. Nodes of one cluster, and within it nodes of one type,
// have consecutive ids. A node has devices of one type; its devices have no ids. This is a plain
// value, with no invariant beyond check(); copies are independent.
struct Cluster {
  std::vector<std::string> types;       // device types; the index is the type's id
  std::vector<std::string> regions;     // at least one
  std::vector<std::string> clusters;    // at least one
  std::vector<int32_t> cluster_region;  // of each cluster
  std::vector<int32_t> node_cluster;    // of each node
  std::vector<int16_t> node_type;       // of each node
  std::vector<int16_t> node_devices;    // devices the node has
  std::vector<uint8_t> node_up;         // 1: usable now; 0: lost, or away for maintenance
  std::vector<uint8_t> node_spot;       // 1: may be taken away with short notice
  std::vector<Team> teams;              // that have something of their own; others share alike
  std::vector<double> node_leaves_at;   // announced end (maintenance, reclaim); +inf: none

  int32_t nodes() const { return static_cast<int32_t>(node_type.size()); }
  int32_t type_count() const { return static_cast<int32_t>(types.size()); }
  // The devices that are usable now on the node; 0 if it is down.
  int32_t usable(int32_t node) const { return node_up[node] ? node_devices[node] : 0; }
  int64_t usable_devices() const;
  int64_t usable_devices(int32_t type) const;
  // The largest node of the type; 0 for none.
  int32_t devices_per_node(int32_t type) const;
  int32_t nodes_of_type(int32_t type) const;
  // Throws not_found, which names the known types.
  int32_t type_id(std::string_view name) const;

  // Adds `count` nodes at the end, and the region, cluster and type if they are new.
  void add_nodes(std::string_view type, int32_t count, int32_t devices,
                 std::string_view cluster = "main", std::string_view region = "home",
                 bool spot = false);
  // Throws internal if the arrays are inconsistent.
  void check() const;
};

// 16 nodes of 4 devices of type `type`.
Cluster homogeneous_cluster(int32_t nodes = 16, int32_t devices = 4, std::string_view type = "t4");

// The scheduler's view of what there is; node i of one is node i of the other.
Cluster cluster_of(const spec::Cluster& cluster);
// The nodes and teams as a tree that spec::cluster_from_json() reads.
nlohmann::json to_json(const Cluster& cluster);

}  // namespace ductile::sched
