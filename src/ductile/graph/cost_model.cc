#include "ductile/graph/cost_model.h"

#include <algorithm>

namespace ductile::graph {

OpCost analytic_cost(const Work& work, const DeviceModel& device) {
  const double traffic = work.weight_traffic >= 0 ? work.weight_traffic : work.parameter_bytes;
  const double read_weights = traffic / device.memory_bandwidth;
  const auto pass = [&](double flops) {
    return Affine{device.overhead + read_weights,
                  std::max(flops / device.flops, work.bytes / device.memory_bandwidth)};
  };
  OpCost cost;
  cost.forward = pass(work.flops);
  cost.backward_input = pass(work.flops);
  const double weight_flops =
      work.weight_flops >= 0 ? work.weight_flops : (work.parameter_bytes > 0 ? work.flops : 0);
  if (weight_flops > 0) cost.backward_weight = pass(weight_flops);
  cost.parameter_bytes = work.parameter_bytes;
  cost.activation_bytes = work.activation_bytes;
  cost.workspace_bytes.per_sample = work.workspace_bytes;
  return cost;
}

}  // namespace ductile::graph
