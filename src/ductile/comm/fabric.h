#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ductile/base/options.h"
#include "ductile/comm/schedule.h"

namespace ductile::comm {

// What one link costs: the alpha-beta model (Hockney 1994), with the time that a message costs the
// processors kept apart, and for links whose speed does not last a second rate. Seconds and bytes.
struct Link {
  double latency = 30e-6;    // from one end to the other, of a message of no length
  double bandwidth = 1.2e9;  // bytes per second, each way
  double overhead = 2e-6;    // processor time for a message at each end
  // After `burst` bytes (of one operation between hosts, of one message within a host) the link
  // carries only `sustained` bytes per second; 0: its speed does not change.
  double burst = 0;
  double sustained = 0;
};
void describe(Describer& d, Link& link);

// How long `bytes` keep a link busy that has already carried `before` bytes of the same burst.
double bytes_seconds(const Link& link, double bytes, double before = 0);

// Ranks and the links between them, as far as time is concerned. Equal on all ranks of a job, or
// they would choose different algorithms.
struct Fabric {
  int64_t ranks = 1;
  int64_t ranks_per_host = 1;
  int64_t rails = 1;  // links of a host; row links and column links of a torus
  int64_t rows = 0;   // of the grid; 0: chosen
  int64_t columns = 0;
  bool both_directions = false;   // links are point to point: no sharing between destinations
  double reduce_bandwidth = 4e9;  // bytes per second that one rank sums
  // An all-reduce in memory that all ranks share (shm_collectives.h): seconds for an empty vector,
  // and bytes of the vector per second; 0: there is no shared memory, or nobody measured it.
  double shared_latency = 0;
  double shared_bandwidth = 0;
  // The link between ranks on one host. Their processors move the bytes, so nothing else overlaps
  // with a transfer.
  Link inside{.latency = 2e-6, .bandwidth = 6e9, .overhead = 0.5e-6};
  Link between;               // hosts, each rail
  std::vector<int64_t> host;  // of each rank; overrides ranks_per_host

  Topology topology() const;
};
void describe(Describer& d, Fabric& fabric);

// A fabric with the shape of `topology`.
Fabric fabric_of(const Topology& topology);
// Whether both have the same ranks in the same places.
bool same_shape(const Fabric& a, const Fabric& b);

// The topology or fabric of only `ranks`, in that order: their hosts, numbered in order of
// appearance, and the links between them. The grid is chosen again, and the cost of sums in shared
// memory is unknown, since it was not measured for fewer ranks.
Topology part_of(const Topology& topology, std::span<const int> ranks);
Fabric part_of(const Fabric& fabric, std::span<const int> ranks);

}  // namespace ductile::comm
