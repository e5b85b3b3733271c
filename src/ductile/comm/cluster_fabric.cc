#include "ductile/comm/cluster_fabric.h"

#include <algorithm>

#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

double lasting(const Link& link) { return link.sustained > 0 ? link.sustained : link.bandwidth; }

}  // namespace

Fabric fabric_of(const spec::Cluster& cluster, std::span<const spec::NodeShare> allocation) {
  const std::vector<spec::PlacedRun> runs = spec::place(cluster, allocation);
  if (runs.empty())
    fail(ErrorCode::invalid_argument, "a job that holds no devices has no links between them");
  Fabric out;
  out.ranks = spec::device_count(allocation);
  out.ranks_per_host = allocation.front().devices;
  const bool alike = std::all_of(allocation.begin(), allocation.end(), [&](const auto& share) {
    return share.devices == out.ranks_per_host;
  });
  if (!alike)
    for (size_t host = 0; host < allocation.size(); ++host)
      out.host.insert(out.host.end(), allocation[host].devices, static_cast<int64_t>(host));
  const auto slowest = [](Link& link, const spec::ClusterLink& other, double devices, bool first) {
    const double bandwidth = other.bandwidth * devices;
    link.bandwidth = first ? bandwidth : std::min(link.bandwidth, bandwidth);
    link.latency = first ? other.latency : std::max(link.latency, other.latency);
  };
  bool first = true;
  for (const spec::PlacedRun& run : runs) {
    const spec::NodeGroup& group = cluster.groups[run.group];
    slowest(out.inside, group.intra, 1, first);
    slowest(out.between, group.inter, run.devices, first);
    first = false;
  }
  return out;
}

spec::Cluster refined(const spec::Cluster& cluster, std::span<const spec::NodeShare> allocation,
                      const Fabric& measured) {
  if (measured.ranks != spec::device_count(allocation))
    fail(ErrorCode::invalid_argument, "a fabric of {} ranks was not measured on {} devices",
         measured.ranks, spec::device_count(allocation));
  spec::Cluster out = cluster;
  std::vector<int32_t> held(cluster.groups.size(), 0);  // on the fullest node of each group
  for (const spec::PlacedRun& run : spec::place(cluster, allocation))
    held[run.group] = std::max(held[run.group], run.devices);
  for (size_t g = 0; g < held.size(); ++g) {
    if (held[g] > 1) out.groups[g].intra = {lasting(measured.inside), measured.inside.latency};
    if (held[g] > 0 && allocation.size() > 1)
      out.groups[g].inter = {
          lasting(measured.between) * static_cast<double>(measured.rails) / held[g],
          measured.between.latency};
  }
  return out;
}

}  // namespace ductile::comm
