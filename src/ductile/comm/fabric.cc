#include "ductile/comm/fabric.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace ductile::comm {

void describe(Describer& d, Link& link) {
  d.field("latency", link.latency, "seconds from end to end of a message of no length").at_least(0);
  d.field("bandwidth", link.bandwidth, "bytes a second each way").above(0);
  d.field("overhead", link.overhead, "seconds of processor time for a message at each end")
      .at_least(0);
  d.field("burst", link.burst,
          "bytes of one operation, within a host of one message, after which `sustained` holds")
      .at_least(0);
  d.field("sustained", link.sustained, "bytes a second beyond the burst; 0 = as before")
      .at_least(0);
}

double bytes_seconds(const Link& link, double bytes, double before) {
  if (link.sustained <= 0) return bytes / link.bandwidth;
  const double fast = std::clamp(link.burst - before, 0.0, bytes);
  return fast / link.bandwidth + (bytes - fast) / link.sustained;
}

void describe(Describer& d, Fabric& fabric) {
  d.field("ranks", fabric.ranks, "number of ranks").range(1, 1 << 24);
  d.field("ranks_per_host", fabric.ranks_per_host, "ranks that share a host").at_least(1);
  d.field("host", fabric.host, "host of each rank, any numbers; [] = ranks_per_host in turn");
  d.field("rails", fabric.rails, "links of a host that work at the same time").range(1, 16);
  d.field("rows", fabric.rows, "rows of the grid of a torus; 0 = chosen").at_least(0);
  d.field("columns", fabric.columns, "columns of the grid of a torus; 0 = chosen").at_least(0);
  d.field("both_directions", fabric.both_directions,
          "links are point to point and full speed both ways at once (not behind a switch)");
  d.field("reduce_bandwidth", fabric.reduce_bandwidth, "bytes of a sum a second, of one rank")
      .above(0);
  d.field("shared_latency", fabric.shared_latency,
          "seconds of an all-reduce of no length in memory that all ranks share")
      .at_least(0);
  d.field("shared_bandwidth", fabric.shared_bandwidth,
          "bytes a second of an all-reduce in memory that all ranks share; 0 = unknown")
      .at_least(0);
  d.section("inside", fabric.inside, "between ranks of one host");
  d.section("between", fabric.between, "between hosts, each rail");
}

Topology Fabric::topology() const {
  Topology t;
  t.num_ranks = static_cast<int>(ranks);
  t.ranks_per_host = static_cast<int>(ranks_per_host);
  t.host.assign(host.begin(), host.end());
  t.grid = {static_cast<int>(rows), static_cast<int>(columns)};
  t.num_rails = static_cast<int>(rails);
  t.both_directions = both_directions;
  return t;
}

Fabric fabric_of(const Topology& topology) {
  Fabric f;
  f.ranks = topology.num_ranks;
  f.ranks_per_host = topology.ranks_per_host;
  f.host.assign(topology.host.begin(), topology.host.end());
  f.rows = topology.grid.num_rows;
  f.columns = topology.grid.num_columns;
  f.rails = topology.num_rails;
  f.both_directions = topology.both_directions;
  return f;
}

bool same_shape(const Fabric& a, const Fabric& b) {
  const auto shape = [](const Fabric& f) {
    return std::tuple(f.ranks, f.ranks_per_host, f.rails, f.rows, f.columns, f.both_directions,
                      f.host);
  };
  return shape(a) == shape(b);
}

Topology part_of(const Topology& topology, std::span<const int> ranks) {
  Topology part;
  part.num_ranks = static_cast<int>(ranks.size());
  part.num_rails = topology.num_rails;
  part.both_directions = topology.both_directions;
  std::map<int, int> numbers;
  for (const int r : ranks) {
    const int fresh = static_cast<int>(numbers.size());
    part.host.push_back(numbers.try_emplace(topology.host_of(r), fresh).first->second);
  }
  // Hosts that are all alike are said so, as they are where nobody split.
  const auto a_host = std::count(part.host.begin(), part.host.end(), 0);
  bool alike = true;
  for (size_t i = 0; i < part.host.size(); ++i) {
    alike = alike && part.host[i] == static_cast<int>(i) / static_cast<int>(a_host);
  }
  if (alike) {
    part.ranks_per_host = std::max(static_cast<int>(a_host), 1);
    part.host.clear();
  }
  return part;
}

Fabric part_of(const Fabric& fabric, std::span<const int> ranks) {
  Fabric part = fabric_of(part_of(fabric.topology(), ranks));
  part.reduce_bandwidth = fabric.reduce_bandwidth;
  part.inside = fabric.inside;
  part.between = fabric.between;
  if (part.ranks == fabric.ranks) {
    part.shared_latency = fabric.shared_latency;
    part.shared_bandwidth = fabric.shared_bandwidth;
  }
  return part;
}

}  // namespace ductile::comm
