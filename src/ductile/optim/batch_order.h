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

// The order that the step after `updates` updates carries if somebody wishes batches of `wish`
// samples: 0 if it may not be so, is so already, or was changed less than train.noise.patience
// updates ago. `memory`: of the rate control. A batch is at least train.batch_size, at most
// spec::most_batch() and the training set, and a whole number of samples for each rank.
int64_t order_of(const spec::JobOptions& job, const nlohmann::json& memory, int64_t train_size,
                 int64_t updates, int64_t wish);

}  // namespace ductile::optim
