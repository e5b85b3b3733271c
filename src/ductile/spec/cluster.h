#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"

namespace ductile {
class Describer;
}

// The machines that there are, and what a job holds of them. One file says it; what the scheduler,
// the planner, the controller of a job and the collectives know of machines are views of these two
// (sched::cluster_of(), plan::devices_of(), server::hosts_of(), comm::fabric_of()).
namespace ductile::spec {

// One direction of a connection.
struct ClusterLink {
  double bandwidth = 12.5e9;  // bytes per second and device
  double latency = 0;         // seconds per message
  bool operator==(const ClusterLink&) const = default;
};

// Equal nodes of equal devices.
struct NodeGroup {
  std::string type;  // of the devices; any name
  std::string name;  // of the group, in reports; empty: its type
  int64_t count = 1;
  int64_t devices = 1;  // of each node
  std::string region = "home";
  std::string cluster = "main";  // unique in its region
  bool spot = false;             // may be taken away with short notice
  // Seconds from SIGTERM to a node's agent until the node is gone: its jobs move meanwhile. 0: an
  // agent that gets SIGTERM ends, as others do.
  double notice = 0;
  // Of the notice, the seconds in which training jobs give up what they hold there; before that
  // they use it, where nothing else takes its place. 0: as long as their saves have taken, three
  // times, and a tenth of the notice at least; all of it where one has not saved yet.
  double leave = 0;
  std::vector<std::string> hosts;      // names that a launcher knows, one a node; empty: none known
  std::vector<std::string> addresses;  // where the hosts reach each other; empty: detected
  double memory = 16e9;                // bytes of a device
  double speed = 1;                    // of a device; times of a profile are divided by it
  double flops = 14e12;                // of a device, per second
  double memory_bandwidth = 800e9;     // of a device, bytes per second
  double overhead = 10e-6;             // of a device, seconds per operator
  ClusterLink intra{150e9, 5e-6};      // between devices of a node
  ClusterLink inter{12.5e9, 10e-6};    // from a device to another node
  bool operator==(const NodeGroup&) const = default;
};
void describe(Describer& d, NodeGroup& group);

// The entitlement of a team of jobs.
struct Team {
  int64_t id = 0;     // as jobs have it
  double share = 0;   // of all devices; above it its jobs count for less while others wait; 0: none
  int64_t quota = 0;  // devices that it may hold at most; 0: no limit
  bool operator==(const Team&) const = default;
};
void describe(Describer& d, Team& team);

// Nodes are numbered from 0, group by group.
struct Cluster {
  std::vector<NodeGroup> groups;  // at least one
  std::vector<Team> teams;        // that have something of their own; others share alike

  int64_t nodes() const;
  int64_t devices() const;
  bool operator==(const Cluster&) const = default;
};

inline constexpr int64_t kMostDevicesOfNode = 1024;
inline constexpr int64_t kMostNodesOfGroup = 100'000'000;

// A cluster file is TOML, or the same tree as JSON (.json): [[nodes]] for each group, with the
// members of NodeGroup as keys (intra_bandwidth, intra_latency, inter_bandwidth, inter_latency for
// its links), and [[teams]]. Only `type` must be there. Figures are numbers, or text with a unit:
// "16 GiB", "25 GB/s", "100 Gbit/s", "14 TFLOP/s", "10 us". `count` is that of `hosts` if they are
// given; `speed`, where it is not given, is that of the first group times the ratio of `flops`.
//
// Throws invalid_argument, which names the file, the line, the key and what would be right. A file
// in a form that the planner once had ([[group]]) gets an error that says what to write.
Cluster read_cluster(const fs::path& file);
Cluster parse_cluster(std::string_view toml, std::string_view name);
Cluster cluster_from_json(const nlohmann::json& value, std::string_view name);
// Texts that are read as an equal cluster.
std::string to_toml(const Cluster& cluster);
nlohmann::json to_json(const Cluster& cluster);
nlohmann::json cluster_schema();  // JSON Schema of the file

// `devices` devices of one job on one node.
struct NodeShare {
  int32_t node = 0;
  int32_t devices = 0;
  bool operator==(const NodeShare&) const = default;
};
// The devices that one job holds: each node at most once, with at least 1 device, in the order of
// the job's ranks (nodes with neighbouring ranks exchange most). Empty: it holds nothing.
using Allocation = std::vector<NodeShare>;

int32_t device_count(std::span<const NodeShare> allocation);

// All devices of the cluster. Throws invalid_argument if there are more than a million nodes.
Allocation whole(const Cluster& cluster);

// A part of an allocation: `nodes` successive nodes of one group with equally many devices each.
struct PlacedRun {
  size_t group = 0;     // index in Cluster::groups
  int64_t first = 0;    // node, counted in the group
  int64_t nodes = 1;    // that follow each other, the first one included
  int32_t devices = 1;  // held on each
};
// The allocation as runs, in its order. Throws invalid_argument if it names a node that is not
// there, or one twice, or more devices than a node has.
std::vector<PlacedRun> place(const Cluster& cluster, std::span<const NodeShare> allocation);

}  // namespace ductile::spec
