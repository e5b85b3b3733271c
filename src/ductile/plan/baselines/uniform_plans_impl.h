#pragma once

#include <functional>
#include <string_view>

#include "ductile/plan/interval_search_impl.h"

namespace ductile::plan {

// Plans as Megatron-LM's users write them: the operators as one chain, cut into equal work, every
// rank with the same degrees, all devices in use.
//   interleaved  1F1B, v parts of the chain on each rank in turn (Narayanan et al., SC 2021,
//                section 2.2), v = 1 included; the order of a rank's tasks is Megatron-LM's
//   zb-h1        one part a rank, backward split, no more in flight than 1F1B (Qi et al., 2024)
//   zb-v         two parts a rank, the second half of the chain back along the first (Qi et al.,
//                "Pipeline parallelism with controllable memory", 2024)
struct UniformShape {
  int ranks = 1;     // p
  int replicas = 1;  // r
  int tensor = 1;    // t
  int parts = 1;     // v: of the chain, on each rank
  bool recompute = false;
};

// The plan with its devices; no stages where there is none: too few operators, micro-batches that
// do not divide, a part that cannot be split and so has not the replicas that are asked for.
Plan uniform_plan(std::string_view kind, const graph::Graph& graph, const UniformShape& shape,
                  const PlannerOptions& options, int64_t micro_batch);
// The same with cuts of one's own: parts of `order`, each up to one of `ends`.
Plan uniform_plan(std::string_view kind, const graph::Graph& graph, const UniformShape& shape,
                  const PlannerOptions& options, int64_t micro_batch, std::span<const OpId> order,
                  std::span<const size_t> ends);

// Every shape worth trying on so many devices; with options.replicas only those that have them.
void for_uniform_shapes(std::string_view kind, const graph::Graph& graph, const Island& island,
                        const PlannerOptions& options,
                        const std::function<void(const UniformShape&)>& visit);

}  // namespace ductile::plan
