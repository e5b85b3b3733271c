#pragma once

#include <cstdint>
#include <memory>
#include <tuple>

#include "ductile/base/json_value.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/optim/rate_control.h"

namespace ductile::optim {

// The hyperparameters of a batch that may be larger than the job's own: the learning rate follows
// [schedule], times what the larger batch permits.
class GrownBatch {
 public:
  explicit GrownBatch(const spec::JobOptions& job)
      : schedule_(make_schedule_control(job)),
        first_(job.train.batch_size),
        sgd_(job.optimizer.name == "sgd") {}

  int64_t first() const { return first_; }  // the job's own batch

  Hyper hyper(const Observed& observed, int64_t batch) const {
    nlohmann::json none;
    Observed at = observed;
    if (at.way_with) std::tie(at.position, at.total) = at.way_with(batch);
    Hyper out = schedule_->next(at, none);
    out.batch_size = batch;
    const double scale = static_cast<double>(batch) / static_cast<double>(first_);
    if (scale > 1 && observed.noise)
      out.lr *=
          sgd_ ? noise::adascale_factor(*observed.noise, scale) : noise::square_root_factor(scale);
    return out;
  }

 private:
  std::unique_ptr<RateControl> schedule_;
  int64_t first_;
  bool sgd_;
};

}  // namespace ductile::optim
