#pragma once

#include <span>
#include <vector>

#include "ductile/plan/interval_search_impl.h"

namespace ductile::plan {

// The plans that need no search: an order of the operators cut into p stages of equal work, each on
// r replicas split by t, for every p, r, t and micro-batch size (of many stages, not every number).
// Recomputation and a sharded optimiser where memory asks for them. Appends the best few by the
// formula; `most_work`: operators looked at, all in all, beyond which fewer p are tried. Once there
// is a plan, no further p is tried behind the deadline.
void add_equal_cuts(const graph::Graph& graph, std::span<const std::vector<OpId>> orders,
                    const Island& island, const PlannerOptions& options,
                    std::span<const int64_t> sizes, double most_work, Clock::time_point deadline,
                    std::vector<Candidate>& found);

// Where to cut `order` into p parts of equal work: p numbers, each the end of a part. Each part has
// an operator at least; p is at most their number.
std::vector<size_t> equal_parts(const graph::Graph& graph, std::span<const OpId> order, int p,
                                int64_t micro_batch);

}  // namespace ductile::plan
