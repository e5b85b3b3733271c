#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ductile/graph/cost_model.h"
#include "ductile/spec/cluster.h"

namespace ductile::plan {

// One direction of the connection between two devices. A device sends and receives at the same
// time, each at the full rate, one message at a time.
struct Link {
  double bandwidth = 12.5e9;  // bytes per second and device
  double latency = 0;         // seconds per message

  double seconds(double bytes) const { return bytes > 0 ? latency + bytes / bandwidth : 0; }
  bool operator==(const Link&) const = default;
};

// Equal nodes of equal devices.
struct DeviceGroup {
  std::string name = "device";
  int nodes = 1;
  int devices_per_node = 1;
  double memory = 16e9;       // bytes that a plan may use on each device
  graph::DeviceModel model;   // computes the times of graphs that are built, not profiled
  double speed = 1;           // the times of the graph are divided by it
  Link intra{150e9, 5e-6};    // between devices of one node
  Link inter{12.5e9, 10e-6};  // from a device of this group to another node

  int size() const { return nodes * devices_per_node; }
  bool operator==(const DeviceGroup&) const = default;
};

inline constexpr int kMaxDevices = 1 << 20;

// All devices, numbered 0 .. size()-1 group by group, node by node.
class Devices {
 public:
  Devices() = default;
  explicit Devices(std::vector<DeviceGroup> groups);  // throws invalid_argument: names the field

  int size() const { return static_cast<int>(node_.size()); }
  int num_nodes() const { return num_nodes_; }
  const std::vector<DeviceGroup>& groups() const { return groups_; }
  int node(int device) const { return node_[device]; }
  int group_index(int device) const { return group_[device]; }
  const DeviceGroup& group(int device) const { return groups_[group_[device]]; }

  bool is_uniform() const;                            // one group, or all alike
  double memory(std::span<const int> devices) const;  // of the smallest
  double speed(std::span<const int> devices) const;   // of the slowest
  bool on_one_node(std::span<const int> devices) const;
  // The slowest link that joins members of a set, or members of two sets.
  Link within(std::span<const int> devices) const;
  Link between(std::span<const int> a, std::span<const int> b) const;

 private:
  std::vector<DeviceGroup> groups_;
  std::vector<int> node_, group_;
  int num_nodes_ = 0;
};

// n equal devices in nodes of `devices_per_node`. Throws unless n is less than one node or a
// multiple of it.
Devices uniform_devices(int n, int devices_per_node, const DeviceGroup& like);

// The devices of a cluster that an allocation holds, in its order; without one, all of them. Throws
// invalid_argument as spec::place() does, and for more than kMaxDevices.
Devices devices_of(const spec::Cluster& cluster);
Devices devices_of(const spec::Cluster& cluster, std::span<const spec::NodeShare> allocation);

// What a user names: a cluster file, or a number of devices like GraphPipe's, V100s, four a node,
// and the rest in one more.
Devices find_devices(const std::string& text);

}  // namespace ductile::plan
