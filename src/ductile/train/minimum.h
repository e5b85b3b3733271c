#pragma once

#include <functional>

#include "ductile/base/json_value.h"
#include "ductile/minima/measure.h"
#include "ductile/train/trained.h"

namespace ductile::train {

// The sharpness of the minimum at the model's weights, on samples of the job's training set that
// the options' seed draws, without augmentation (minima/measure.h, training_loss.h), with its cost:
// a line of minima.jsonl (docs/reference/run-folder.md) without its time. each() gets the share
// that is done, and may throw. Throws errors of the data, and conflict if a weight is not finite.
nlohmann::json measure_minimum(Trained& trained, const minima::Options& options,
                               const std::function<void(double share)>& each);

}  // namespace ductile::train
