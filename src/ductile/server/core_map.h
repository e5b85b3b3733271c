#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ductile/base/files.h"

namespace ductile::server {

// A physical core, as far as this process may use it.
struct Core {
  std::vector<int> threads;  // its hardware threads by the kernel's numbers, rising; at least one
  size_t node = 0;           // in CoreMap::nodes
};

struct NumaNode {
  int number = 0;      // the kernel's
  int64_t memory = 0;  // bytes; 0: not known
};

// The cores of a machine that a process may use, and its NUMA nodes that have any of them.
struct CoreMap {
  // Those of a NUMA node follow each other, and within it those that share a cache.
  std::vector<Core> cores;
  std::vector<NumaNode> nodes;
  // From node to node, larger for those that are farther apart; only the order of them counts.
  std::vector<std::vector<double>> distances;
  // Why this is not what hwloc says of the machine; empty: it is. Each hardware thread then counts
  // as a core, and all are of one node.
  std::string trouble;

  int64_t num_threads() const;
};

// What hwloc looks at.
struct MachineDescription {
  fs::path xml;           // as `lstopo` exports it
  std::string synthetic;  // "package:2 numa:1 core:4 pu:2"; both empty: this machine
};

// Of these hardware threads, which are those that this process may run on. Never throws: where
// hwloc cannot be used, or describes a machine without some of the threads, `trouble` says why.
CoreMap core_map(const std::vector<int>& usable, const MachineDescription& machine = {});
// Of this process.
CoreMap core_map();

}  // namespace ductile::server
