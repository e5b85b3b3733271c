#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ductile::plan {

// Device placement of operators for the least load of the busiest device (Tarnawski et al., NeurIPS
// 2020, sections 3 and 5.1), on that paper's cost model, solved exactly.
//
// Each device takes a contiguous set of operators: the difference of two downsets of the forward
// graph, with the backward operators of the same colours. The load of a CPU is the sum of its
// operators' times; of an accelerator that sum and, for every operator with an edge across the
// border of its set, in or out, that operator's transfer time once. Any unit of time.
struct MaxLoadProblem {
  struct Node {
    double accelerator_time = 0;
    double cpu_time = 0;
    double transfer = 0;  // of its output, between an accelerator and the host
    double bytes = 0;     // on an accelerator
    bool on_accelerator = true;
    bool backward = false;
    int64_t colour = -1;  // nodes of one colour >= 0 share a device
  };
  std::vector<Node> nodes;
  std::vector<std::pair<int, int>> edges;  // from, to; none from a backward to a forward node
  double memory = 0;                       // bytes of an accelerator
  int accelerators = 1;
  int cpus = 0;
};

struct MaxLoadPart {
  bool accelerator = true;
  std::vector<int> nodes;  // ascending
  double load = 0;
};

struct MaxLoadResult {
  bool feasible = false;
  std::string failure;
  double load = 0;         // of the busiest device
  double lower_bound = 0;  // no contiguous placement has less: equal to load but for `precision`
  std::vector<MaxLoadPart> parts;  // at most accelerators + cpus
  int64_t groups = 0;              // of operators that cannot be parted
  int64_t downsets = 0;            // of the groups
  double cpu_seconds = 0;
};

// For a given load the fewest accelerators of each downset and number of CPUs; first among the
// downsets of two orders of the operators, then among all, where one search that fails just below
// is the proof. Colours, cycles that they make, and operators without time or choice are merged
// first, none of which excludes a better placement but one of memory. Fails with more than `cap`
// downsets. Throws invalid_argument on edges to nowhere, a cycle of the forward nodes or of the
// backward ones, and more than 100 devices of a kind.
MaxLoadResult max_load_search(const MaxLoadProblem& problem, size_t cap = 200'000,
                              double precision = 1e-9);

// The load of the busiest device, straight from the definition; infinite where an accelerator's
// memory does not suffice or an operator may not be there.
double max_load(const MaxLoadProblem& problem, const std::vector<MaxLoadPart>& parts);

}  // namespace ductile::plan
