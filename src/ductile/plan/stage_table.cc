#include <cmath>

#include "ductile/plan/stage_table_impl.h"

namespace ductile::plan {

namespace {

// True where `again` is nowhere cheaper in time or weights than `keep`.
bool costs_time_only(const SearchSpace& space, int keep, int again) {
  const auto no_less = [](const graph::Affine& a, const graph::Affine& b) {
    return a.fixed >= b.fixed && a.per_sample >= b.per_sample;
  };
  for (OpId v = 0; v < static_cast<OpId>(space.graph().ops.size()); ++v) {
    const graph::OpCost& a = space.op_cost(v, again);
    const graph::OpCost& k = space.op_cost(v, keep);
    if (!no_less(a.forward, k.forward) || !no_less(a.backward_input, k.backward_input) ||
        !no_less(a.backward_weight, k.backward_weight) || a.parameter_bytes < k.parameter_bytes ||
        a.tensor_forward_bytes < k.tensor_forward_bytes ||
        a.tensor_forward_rounds < k.tensor_forward_rounds ||
        a.tensor_backward_rounds < k.tensor_backward_rounds ||
        a.tensor_backward_bytes < k.tensor_backward_bytes) {
      return false;
    }
  }
  return true;
}

// Of the operators of a state.
template <class Row>
void set_sums(const StageSums& sums, Row& row) {
  row.forward_fixed = sums.forward.fixed;
  row.forward_each = sums.forward.per_sample;
  row.input_fixed = sums.backward_input.fixed;
  row.input_each = sums.backward_input.per_sample;
  row.time_fixed = sums.forward.fixed + sums.backward_input.fixed + sums.backward_weight.fixed;
  row.time_each =
      sums.forward.per_sample + sums.backward_input.per_sample + sums.backward_weight.per_sample;
  row.param = sums.parameter_bytes;
  row.fixed = sums.fixed_bytes;
  row.activation = sums.activation_bytes;
  row.activation_fixed = sums.activation_fixed;
  row.tensor_forward = sums.tensor_forward_bytes;
  row.tensor_forward_rounds = sums.tensor_forward_rounds;
  row.tensor_rounds = sums.tensor_forward_rounds + sums.tensor_backward_rounds;
  row.tensor_backward = sums.tensor_backward_bytes;
}

}  // namespace

StageTable::StageTable(const SearchSpace& space, std::span<const Island> islands,
                       const PlannerOptions& options, int64_t micro_batch)
    : space_(space),
      num_states_(space.states().size()),
      num_micro_(options.batch / micro_batch),
      batch_(static_cast<double>(options.batch)),
      micro_batch_(static_cast<double>(micro_batch)),
      state_factor_(space.graph().state_factor),
      state_whole_(space.graph().state_factor + space.graph().optimizer_factor),
      latency_(options.objective != Objective::throughput),
      counted_(space.graph().counted),
      zero_bubble_(options.objective == Objective::zero_bubble) {
  const auto variants = space.variants();
  std::vector<bool> used(variants.size(), false);
  for (int v = 0; v < static_cast<int>(variants.size()); ++v) {
    if (variants[v].tensor > 1 && !options.split) continue;
    if (variants[v].recompute && !options.recompute) continue;
    int again = -1;
    if (!variants[v].recompute && options.recompute && v + 1 < static_cast<int>(variants.size()) &&
        variants[v + 1].tensor == variants[v].tensor) {
      again = v + 1;  // variants come in pairs
    }
    if (again >= 0 && !costs_time_only(space, v, again)) again = -1;
    if (variants[v].recompute && costs_time_only(space, v - 1, v)) continue;  // of the cell before
    for (int g = 0; g < static_cast<int>(islands.size()); ++g) {
      const Island& island = islands[g];
      for (int64_t r = 1; r <= micro_batch && r * variants[v].tensor <= island.devices; ++r) {
        if (micro_batch % r != 0 || (options.replicas > 0 && r != options.replicas)) continue;
        Cell c;
        c.replicas = static_cast<int>(r);
        c.tensor = variants[v].tensor;
        c.group = g;
        c.keep = v;
        c.again = again;
        c.may_shard = r > 1 && options.shard_optimizer && space.graph().optimizer_factor > 0;
        c.weight = c.devices() * island.speed;
        c.share = micro_batch_ / static_cast<double>(r);
        c.speed = island.speed;
        c.seconds = 1 / island.speed;
        c.memory = island.memory * (1 - 1e-12);
        c.tensor_per_byte = c.share / island.among(c.tensor).bandwidth;
        c.tensor_latency = island.among(c.tensor).latency;
        const Link sync = island.among(c.devices());
        if (r > 1) {
          const double n = static_cast<double>(r);
          c.sync_per_byte = 2.0 * (n - 1) / n / sync.bandwidth;
          c.sync_latency = 2 * std::ceil(std::log2(n)) * sync.latency;
        }
        const Link link = island.between_stages();
        c.stage_per_byte = micro_batch_ / c.devices() / link.bandwidth;
        c.stage_latency = link.latency;
        // A stage that leaves room on a node may have its neighbours there.
        const bool beside = c.devices() < island.per_node;
        const Link& inside = beside ? island.intra : island.inter;
        c.least_per_byte =
            micro_batch_ / c.devices() / std::max(inside.bandwidth, island.inter.bandwidth);
        c.least_latency = std::min(inside.latency, island.inter.latency);
        cells_.push_back(c);
        used[v] = true;
        if (again >= 0) used[again] = true;
      }
    }
  }
  for (const Island& island : islands) capacity_ += island.devices * island.speed;
  std::stable_sort(cells_.begin(), cells_.end(),
                   [](const Cell& a, const Cell& b) { return a.weight < b.weight; });
  rows_.resize(variants.size() * num_states_);
  for (int v = 0; v < static_cast<int>(variants.size()); ++v) {
    if (!used[v]) continue;
    for (size_t s = 0; s < num_states_; ++s) {
      const StageSums& sums = space.rest_sums(static_cast<int>(s), v);
      Row& row = rows_[static_cast<size_t>(v) * num_states_ + s];
      set_sums(sums, row);
      row.splittable = space.splittable(static_cast<int>(s), v);
    }
  }
}

Shape StageTable::shape(int from, int transition, const Cell& cell, int variant, int64_t w) const {
  CellCost c;
  cost(from, transition, cell, variant, c);
  return {cell.replicas, cell.tensor, variant, w > c.most_whole, cell.group};
}

}  // namespace ductile::plan
