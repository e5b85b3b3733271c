#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "ductile/spec/job.h"

namespace ductile::optim {

// The hyperparameters that may change from one step to the next. A RateControl (rate_control.h)
// chooses them for every step; every option that is neither here nor live (spec/live_options.h) is
// fixed for the life of a job.
struct Hyper {
  double lr = 0;
  double momentum = 0;
  double weight_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double clip_norm = 0;    // 0: the gradient is not clipped
  int64_t batch_size = 1;  // samples per step, over all virtual ranks
  int64_t staleness = 0;   // updates by which a virtual rank's weights may be behind
  // Live options that have another value in this step than in the job file, by key. Those above
  // are not among them.
  std::map<std::string, double> options = {};

  // Sets the option of this key of a job: a number above, or one of `options`.
  void set(std::string_view key, double value);

  bool operator==(const Hyper&) const = default;

  // The values in the job file; `lr` is the peak. Given only the optimiser's options, the batch
  // size is 1 and the staleness 0.
  static Hyper of(const spec::OptimizerOptions& options);
  static Hyper of(const spec::JobOptions& job);
};

// A real-valued field of Hyper with its name and the key of its option, for code that tunes or
// prints it.
struct HyperField {
  std::string_view name;
  double Hyper::*field;
  std::string_view key;
};
std::span<const HyperField> hyper_fields();

// {"lr": 0.1, ..., "batch_size": 128, "staleness": 0}, and "options", an object, where there are
// any; the same bits come back. Reading throws invalid_argument that names the field which is
// missing or of the wrong type.
nlohmann::json to_json(const Hyper& hyper);
Hyper hyper_from_json(const nlohmann::json& value);

}  // namespace ductile::optim
