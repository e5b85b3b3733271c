#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "ductile/graph/op_set.h"

namespace ductile::graph {

// All sets of operators that hold every predecessor of their members (downsets, "ideals"), by size,
// the empty and the whole set among them; nullopt where there are more than `cap`. A stage of any
// plan is a difference of two of them. O(count n / 8) bytes, O(count n) time; the cap bounds both.
std::optional<std::vector<OpSet>> downsets(const Topology& topology, size_t cap);

// Their number, at most `cap` + 1; without keeping them.
size_t count_downsets(const Topology& topology, size_t cap);

}  // namespace ductile::graph
