#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "ductile/optim/rate_control.h"
#include "ductile/spec/job.h"
#include "ductile/train/step_method.h"

namespace ductile::train {

// The extra part of the state that is the memory of the rate control.
inline constexpr std::string_view kControlPart = "rate_control";

// Adds to a step method the probes that a rate control asks for (RateControl::probing): steps
// between two updates, in which every virtual rank evaluates the loss of a few mini-batches at a
// point on the line through the weights that the control had kept and the present ones. The weights
// of the state stay as they are, to the bit. The mini-batches are drawn from the whole training
// set, anew after each update, by (seed, updates, rank) alone; dropout draws the same in all probes
// of a round, and batch norm computes as in training. `control` outlives the result. Returns
// `inner` itself if the control never probes.
std::unique_ptr<StepMethod> with_probes(std::unique_ptr<StepMethod> inner,
                                        const optim::RateControl& control,
                                        const spec::JobOptions& job);

// The loss that the last step found, if it was a probe.
std::optional<double> probe_loss(const JobState& state);

}  // namespace ductile::train
