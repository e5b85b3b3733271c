#pragma once

#include <utility>
#include <vector>

#include "ductile/graph/op_set.h"
#include "ductile/plan/baselines/max_load.h"

namespace ductile::plan {

// The problem over groups of nodes that must share a device, as arrays.
struct MaxLoadGroups {
  struct Group {
    std::vector<int> nodes;  // ascending
    double accelerator_time = 0, cpu_time = 0, bytes = 0;
    bool on_accelerator = true;
  };
  // The output of a node that other groups read: paid by every part that holds some of the groups
  // but not all.
  struct Net {
    graph::OpSet groups;
    double cost = 0;
  };
  std::vector<Group> groups;
  std::vector<std::pair<graph::OpId, graph::OpId>> edges;  // acyclic, each once
  std::vector<Net> nets;
};

// Throws invalid_argument on edges to nowhere.
MaxLoadGroups max_load_groups(const MaxLoadProblem& problem);

}  // namespace ductile::plan
