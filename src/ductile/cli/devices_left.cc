#include "ductile/cli/devices_left.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace ductile::cli {
namespace {

constexpr int64_t kMostListed = 1 << 20;  // nodes; nobody plans for more

// The host of each node; "": it has none.
std::vector<std::string> host_names(const spec::Cluster& cluster,
                                    const std::vector<server::Host>& hosts) {
  const bool nameless =
      std::ranges::all_of(cluster.groups, [](const auto& group) { return group.hosts.empty(); });
  const bool in_order = nameless && cluster.nodes() == std::ssize(hosts);
  std::vector<std::string> out;
  for (const spec::NodeGroup& group : cluster.groups) {
    for (int64_t n = 0; n < group.count; ++n) {
      const auto at = static_cast<size_t>(n);
      if (at < group.hosts.size()) {
        out.push_back(group.hosts[at]);
      } else {
        out.push_back(in_order ? hosts[out.size()].name : "");
      }
    }
  }
  return out;
}

// A node more, with so many of its devices: one more of the last group, where that is of the same
// nodes.
void add_node(const spec::NodeGroup& from, int64_t in_group, const std::string& host,
              int64_t devices, bool same_group, spec::Cluster& out) {
  if (!same_group || out.groups.back().devices != devices) {
    spec::NodeGroup group = from;
    group.count = 0;
    group.devices = devices;
    group.hosts.clear();
    group.addresses.clear();
    out.groups.push_back(std::move(group));
  }
  spec::NodeGroup& group = out.groups.back();
  ++group.count;
  group.hosts.push_back(host);
  const auto at = static_cast<size_t>(in_group);
  if (at < from.addresses.size()) group.addresses.push_back(from.addresses[at]);
}

std::optional<spec::Cluster> known_left(const spec::Cluster& cluster, const WorkersLeft& left,
                                        const server::HostSetup& setup) {
  if (left.hosts.empty() || cluster.nodes() > kMostListed) return std::nullopt;
  std::map<std::string, int64_t> there;
  for (const std::string& host : left.hosts) ++there[host];
  const std::vector<std::string> names = host_names(cluster, setup.hosts);
  spec::Cluster out;
  size_t node = 0;
  for (const spec::NodeGroup& group : cluster.groups) {
    const size_t groups = out.groups.size();
    for (int64_t n = 0; n < group.count; ++n, ++node) {
      const auto found = names[node].empty() ? there.end() : there.find(names[node]);
      if (found == there.end()) continue;
      add_node(group, n, names[node], std::min(found->second, group.devices),
               out.groups.size() > groups, out);
      there.erase(found);
    }
  }
  if (!there.empty()) return std::nullopt;
  return out;
}

// The poorer one in each figure.
spec::ClusterLink slower(const spec::ClusterLink& a, const spec::ClusterLink& b) {
  return {std::min(a.bandwidth, b.bandwidth), std::max(a.latency, b.latency)};
}

spec::NodeGroup poorest(const spec::Cluster& cluster) {
  spec::NodeGroup out = cluster.groups.front();
  for (const spec::NodeGroup& group : cluster.groups) {
    out.memory = std::min(out.memory, group.memory);
    out.speed = std::min(out.speed, group.speed);
    out.flops = std::min(out.flops, group.flops);
    out.memory_bandwidth = std::min(out.memory_bandwidth, group.memory_bandwidth);
    out.overhead = std::max(out.overhead, group.overhead);
    out.intra = slower(out.intra, group.intra);
    out.inter = slower(out.inter, group.inter);
  }
  return out;
}

}  // namespace

spec::Cluster devices_left(const spec::Cluster& cluster, const WorkersLeft& left,
                           const server::HostSetup& setup) {
  if (auto known = known_left(cluster, left, setup)) return std::move(*known);
  const int64_t count = std::clamp<int64_t>(left.count, 1, cluster.devices());
  spec::Cluster out;
  spec::NodeGroup group = poorest(cluster);
  if (cluster.nodes() == 1) {
    group.devices = std::min(count, group.devices);
    out.groups.push_back(std::move(group));
    return out;
  }
  group.hosts.clear();
  group.addresses.clear();
  const auto hosts = std::max<int64_t>(1, std::ssize(setup.hosts));
  const int64_t nodes = std::min({count, hosts, cluster.nodes()});
  if (nodes > 1) group.intra = slower(group.intra, group.inter);  // who is beside whom?
  for (const bool with_one_more : {true, false}) {
    group.count = with_one_more ? count % nodes : nodes - count % nodes;
    group.devices = std::min(count / nodes + (with_one_more ? 1 : 0), spec::kMostDevicesOfNode);
    if (group.count > 0) out.groups.push_back(group);
  }
  return out;
}

double least_memory(const spec::Cluster& cluster) {
  double least = std::numeric_limits<double>::infinity();
  for (const spec::NodeGroup& group : cluster.groups) least = std::min(least, group.memory);
  return least;
}

server::HostSetup hosts_left(server::HostSetup setup, const std::vector<std::string>& hosts) {
  if (hosts.empty()) return setup;
  std::erase_if(setup.hosts, [&](const server::Host& host) {
    return std::ranges::find(hosts, host.name) == hosts.end();
  });
  return setup;
}

}  // namespace ductile::cli
