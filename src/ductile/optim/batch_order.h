#pragma once

#include <cstdint>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "ductile/spec/job.h"

// Batches that somebody outside the job chooses (train.rate_control = "goodput"). An order reaches
// the job as a figure that the ranks sum in a step. So it belongs to a committed step, or to none:
// every worker that has the sum has the order, too.
namespace ductile::optim {

// The figure: samples per batch from the next step on; 0: nothing was ordered.
inline constexpr std::string_view kBatchOrder = "batch_order";

// The order of the step after `updates` updates if batches of `wish` samples are wished for. 0: it
// is so already, was changed less than train.noise.patience updates ago, or is below
// train.batch_size or no whole number for each rank. More than spec::most_batch() or the training
// set means the largest batch that is allowed. `memory`: of the rate control.
int64_t order_of(const spec::JobOptions& job, const nlohmann::json& memory, int64_t train_size,
                 int64_t updates, int64_t wish);

}  // namespace ductile::optim
