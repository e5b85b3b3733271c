#include "ductile/spec/stage_state.h"

#include <bit>

namespace ductile::spec {

int64_t optimizer_arrays(const OptimizerOptions& options) {
  const std::string& name = options.name;
  if (name == "sgd") return static_cast<float>(options.momentum) == 0 ? 0 : 1;
  if (name == "lars") return 1;
  if (name == "ademamix" || name == "schedule_free") return 3;
  if (name == "muon") return options.muon.rest == "sgd" ? 1 : 2;
  if (name == "nlcg") {
    return 1 + (options.nlcg.preconditioner == "bfgs" ? 2 : 0) +
           (options.nlcg.update == "polak_ribiere" ? 1 : 0);
  }
  if (name == "python") return 0;  // its state is not ours
  return 2;
}

double stage_state_factor(const JobOptions& job) {
  const auto micro_batches = static_cast<uint64_t>(job.train.pipelined.micro_batches);
  const double gradients =
      job.train.pipeline_exact ? static_cast<double>(std::bit_width(micro_batches)) : 1;
  const bool averages = job.train.ema_decay > 0 || job.train.tail_average > 0;
  const bool halves = job.train.precision != "fp32";
  return 3 + gradients + (averages ? 1 : 0) + (halves ? 0.5 : 0);
}

}  // namespace ductile::spec
