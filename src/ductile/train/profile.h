#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ductile/base/json_value.h"
#include "ductile/spec/job.h"

// A job's model as the graph that `ductile plan` reads: what each operator costs on this machine.
namespace ductile::train {

struct ProfileOptions {
  // Samples at once, each at least 1; empty: 1, 2, 4 ... up to the batch, or, of a model that was
  // captured for some numbers alone (model.library), those. What is larger than the
  // batch or the training set is left out.
  std::vector<int64_t> shares;
  int64_t rounds = 7;  // each runs all shares once; medians count

  // Throws invalid_argument.
  static ProfileOptions from_json(const nlohmann::json& value);
};

// What is measured at one number of samples.
struct MeasuredShare {
  double samples = 0, value = 0;
};

// fixed + per_sample n, neither below 0.
struct AffineFit {
  double fixed = 0, per_sample = 0;
  double at(double n) const { return fixed + per_sample * n; }
};

// The line whose relative errors have the least squares. One share alone is taken as proportional.
AffineFit fit_affine(std::span<const MeasuredShare> measured);

// What a pass of an operator takes at most, at rising numbers of samples, as graph JSON has it: the
// line above where it says each within half a per cent, else the measured bytes themselves, as the
// most is that of one kernel for few samples and of another one for many.
nlohmann::json most_bytes(std::span<const MeasuredShare> measured);

// Runs the operators of the job's model, with the loss, on samples of its training set as a
// pipeline stage runs them (parallel/stage_executor.h): forward, backward to the inputs, backward
// to the weights. The result is graph JSON (docs/reference/graph.schema.json) of this machine with
// the threads of this process: seconds of wall time as an affine function of the samples at once,
// bytes as libtorch's allocator counts them. Beside it `captured`, the numbers of samples that the
// model takes, where it does not take all. `row` gets the `share` of the work that is done now
// and then. Throws invalid_argument for a model without operators (one of Python), unavailable if
// `interrupted`.
nlohmann::json profile(const spec::JobOptions& job, const ProfileOptions& options,
                       const std::function<void(const nlohmann::json&)>& row,
                       const std::function<bool()>& interrupted);

}  // namespace ductile::train
