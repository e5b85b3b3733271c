#include "ductile/spec/cluster.h"

#include <algorithm>
#include <unordered_set>

#include "ductile/base/error.h"
#include "ductile/base/options.h"

namespace ductile::spec {

constexpr int64_t kMostListedNodes = 1 << 20;

void describe(Describer& d, NodeGroup& g) {
  d.field("type", g.type, "type of the devices: any name that the applications or graphs know");
  d.field("name", g.name, "name of the group in reports; empty: its type");
  d.field("count", g.count, "number of nodes; by default as many as there are hosts, or one")
      .range(1, kMostNodesOfGroup);
  d.field("devices", g.devices, "devices of each node").range(1, kMostDevicesOfNode);
  d.field("region", g.region, "region of the nodes");
  d.field("cluster", g.cluster, "cluster of the nodes; its name is unique in its region");
  d.field("spot", g.spot, "whether the nodes may be taken away with short notice");
  d.field("notice", g.notice,
          "seconds from SIGTERM to the agent of a node until the node is gone: its jobs move "
          "meanwhile; 0: there is no such notice")
      .range(0, 1e6);
  d.field("leave", g.leave,
          "of the notice, the last seconds, in which training jobs give up what they hold on the "
          "node; before that they use it, where nothing else takes its place; 0: three times their "
          "longest save, a tenth of the notice at least, and all of it where one has not saved yet")
      .range(0, 1e6);
  d.field("hosts", g.hosts, "a name for each node, which the launcher of workers knows");
  d.field("addresses", g.addresses,
          "an address for each host, where the others reach it; empty: detected");
  d.field("memory", g.memory, "memory of a device that a job may use").range(0, 1e18).above(0);
  d.field(
       "speed", g.speed,
       "speed of a device: the times of a profiled graph are divided by it; by default from flops")
      .range(0, 1e6)
      .above(0);
  d.field("flops", g.flops, "operations per second of a device, from which times are computed")
      .range(0, 1e21)
      .above(0);
  d.field("memory_bandwidth", g.memory_bandwidth, "bytes per second of the memory of a device")
      .range(0, 1e18)
      .above(0);
  d.field("overhead", g.overhead, "seconds that a device needs for an operator of any size")
      .range(0, 1e3);
  d.field("intra_bandwidth", g.intra.bandwidth,
          "bytes per second between two devices of a node, each way")
      .range(0, 1e18)
      .above(0);
  d.field("intra_latency", g.intra.latency, "seconds per message between devices of a node")
      .range(0, 1e3);
  d.field("inter_bandwidth", g.inter.bandwidth,
          "bytes per second from a device to another node, each way")
      .range(0, 1e18)
      .above(0);
  d.field("inter_latency", g.inter.latency, "seconds per message to another node").range(0, 1e3);
  d.moved("nodes", {"count"});
  d.moved("devices_per_node", {"devices"});
}

void describe(Describer& d, Team& team) {
  d.field("id", team.id, "the team, as jobs name it").range(0, INT32_MAX);
  d.field("share", team.share,
          "share of all devices above which its jobs count for less while others wait; 0: none")
      .range(0, 1);
  d.field("quota", team.quota, "devices that it may hold at most; 0: no limit").range(0, 1e9);
}

int64_t Cluster::nodes() const {
  int64_t sum = 0;
  for (const NodeGroup& group : groups) sum += group.count;
  return sum;
}

int64_t Cluster::devices() const {
  int64_t sum = 0;
  for (const NodeGroup& group : groups) sum += group.count * group.devices;
  return sum;
}

int32_t device_count(std::span<const NodeShare> allocation) {
  int32_t sum = 0;
  for (const NodeShare& share : allocation) sum += share.devices;
  return sum;
}

Allocation whole(const Cluster& cluster) {
  if (cluster.nodes() > kMostListedNodes)
    fail(ErrorCode::invalid_argument, "a cluster of {} nodes; a job may have at most {}",
         cluster.nodes(), kMostListedNodes);
  Allocation out;
  for (const NodeGroup& group : cluster.groups)
    for (int64_t n = 0; n < group.count; ++n)
      out.push_back({static_cast<int32_t>(out.size()), static_cast<int32_t>(group.devices)});
  return out;
}

std::vector<PlacedRun> place(const Cluster& cluster, std::span<const NodeShare> allocation) {
  std::vector<PlacedRun> runs;
  std::unordered_set<int32_t> seen;
  for (const NodeShare& share : allocation) {
    int64_t index = share.node;
    size_t g = 0;
    while (g < cluster.groups.size() && index >= cluster.groups[g].count)
      index -= cluster.groups[g++].count;
    if (share.node < 0 || g == cluster.groups.size())
      fail(ErrorCode::invalid_argument, "node {} is not in the cluster, which has {}", share.node,
           cluster.nodes());
    if (!seen.insert(share.node).second)
      fail(ErrorCode::invalid_argument, "node {} is in the allocation twice", share.node);
    if (share.devices < 1 || share.devices > cluster.groups[g].devices)
      fail(ErrorCode::invalid_argument, "{} devices of node {}, which has {}", share.devices,
           share.node, cluster.groups[g].devices);
    if (!runs.empty() && runs.back().group == g && runs.back().devices == share.devices &&
        runs.back().first + runs.back().nodes == index)
      ++runs.back().nodes;
    else
      runs.push_back({g, index, 1, share.devices});
  }
  return runs;
}

}  // namespace ductile::spec
