#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ductile/server/hosts.h"
#include "ductile/spec/cluster.h"

namespace ductile::cli {

// The workers that are left of a run.
struct WorkersLeft {
  int64_t count = 0;
  std::vector<std::string> hosts = {};  // of each of them; empty: nobody knows where they are
  bool operator==(const WorkersLeft&) const = default;
};

// What these workers have of the devices for which a plan was made: of each node no more devices
// than workers are on its host, and no node on whose host there is none. A node is the host of its
// name, or, where the cluster has no names and as many nodes as there are hosts, the one in its
// place, whose name it gets.
//
// Where nobody knows the hosts, or one of them is none of the nodes, so many devices with the
// figures of the poorest ones, and links from node to node where there are several hosts.
spec::Cluster devices_left(const spec::Cluster& cluster, const WorkersLeft& left,
                           const server::HostSetup& setup);

// Of a device of the cluster that has least, in bytes.
double least_memory(const spec::Cluster& cluster);

// The setup without the hosts on which none of them is; as it is where nobody knows.
server::HostSetup hosts_left(server::HostSetup setup, const std::vector<std::string>& hosts);

}  // namespace ductile::cli
