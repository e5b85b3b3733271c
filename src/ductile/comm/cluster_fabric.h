#pragma once

#include <span>

#include "ductile/comm/fabric.h"
#include "ductile/spec/cluster.h"

namespace ductile::comm {

// The ranks of a job on the devices that it holds, one a device in the order of the allocation, and
// the links between them as the cluster declares them: the slowest ones that take part. All that a
// cluster does not say (overhead, rails, shared memory) is as in Fabric. Throws invalid_argument as
// spec::place() does, and for an empty allocation.
Fabric fabric_of(const spec::Cluster& cluster, std::span<const spec::NodeShare> allocation);

// The cluster with what was measured between these ranks in place of what was declared: the links
// inside nodes, where a node has several ranks, and between nodes, where there are several, of the
// groups that take part. A link counts with the rate that it sustains. Throws invalid_argument if
// the fabric has another number of ranks than the allocation has devices.
spec::Cluster refined(const spec::Cluster& cluster, std::span<const spec::NodeShare> allocation,
                      const Fabric& measured);

}  // namespace ductile::comm
