#include <algorithm>

#include "ductile/plan/stage_cost_impl.h"

namespace ductile::plan {

namespace {

StageShape stage_shape(const Shape& shape, const Island& island, int64_t micro_batch) {
  StageShape how;
  how.replicas = shape.replicas;
  how.tensor = shape.tensor;
  how.micro_batch = micro_batch;
  how.shard_optimizer = shape.shard;
  how.speed = island.speed;
  how.tensor_link = island.among(shape.tensor);
  how.sync_link = island.among(shape.devices());
  return how;
}

}  // namespace

StageCost stage_cost(const StageSums& sums, const Boundary& boundary, const Shape& shape,
                     const graph::Graph& graph, const Island& island, int64_t micro_batch,
                     int64_t batch, Objective objective) {
  const int n = shape.devices();
  const StageShape how = stage_shape(shape, island, micro_batch);
  const StageTimes times = stage_times(sums, how);
  const Link link = island.between_stages();
  const double b = static_cast<double>(micro_batch);
  StageCost c;
  c.forward = times.forward;
  c.transfer = transfer_seconds(boundary.in * b, n, n, link);
  const double messages = c.transfer + transfer_seconds(boundary.out * b, n, n, link);
  c.tau = c.round = std::max(times.micro_batch(), messages);
  c.sync = times.sync;
  if (objective == Objective::zero_bubble) {
    const double waits =
        round_without_weights(times.forward, times.backward_input, times.backward_weight);
    c.round = std::max(waits, messages);
    c.sync += c.tau - c.round;
  }
  if (objective == Objective::throughput) {
    c.tau = c.tau / b + c.sync / static_cast<double>(batch);
    c.forward = c.transfer = c.sync = 0;
  }
  const double fixed = stage_fixed_memory(sums, boundary, how, graph);
  const double each = stage_held_bytes(sums, boundary, how, graph) * b;
  const int64_t all = batch / micro_batch;
  const double room = island.memory * (1 - 1e-12) - fixed;
  if (room < 0) {
    c.most = 0;
  } else {
    c.most = each * static_cast<double>(all) <= room ? all : static_cast<int64_t>(room / each);
  }
  return c;
}

}  // namespace ductile::plan
