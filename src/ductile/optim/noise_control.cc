#include <algorithm>
#include <memory>

#include "ductile/base/json_value.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/optim/rate_control.h"

namespace ductile::optim {
namespace {

// A batch below the noise scale of its gradients is cheap to enlarge: a step of twice the batch
// makes almost twice the progress (McCandlish et al. 2018). So the batch is doubled whenever twice
// the batch is still at most the measured noise scale. The learning rate follows [schedule], times
// what the larger batch permits.
class Noise final : public RateControl {
 public:
  explicit Noise(const spec::JobOptions& job)
      : schedule_(make_schedule_control(job)),
        options_(job.train.noise),
        first_(job.train.batch_size),
        most_(options_.max_batch > 0 ? options_.max_batch : 8 * first_),
        sgd_(job.optimizer.name == "sgd") {}

  Hyper next(const Observed& observed, nlohmann::json& memory) const override {
    int64_t batch = memory.value("batch_size", first_);
    const int64_t since = memory.value("since", int64_t{0});
    const auto& noise = observed.noise;
    // Twice the batch has to fit in an epoch.
    if (noise && observed.updates - since >= options_.patience && 2 * batch <= most_ &&
        observed.steps_per_epoch >= 2 &&
        static_cast<double>(2 * batch) <=
            options_.factor * noise::noise_scale(*noise, static_cast<double>(first_))) {
      batch *= 2;
      memory["since"] = observed.updates;
    }
    memory["batch_size"] = batch;
    nlohmann::json none;
    Hyper hyper = schedule_->next(observed, none);
    hyper.batch_size = batch;
    const double scale = static_cast<double>(batch) / static_cast<double>(first_);
    if (scale > 1 && noise)
      hyper.lr *= sgd_ ? noise::adascale_factor(*noise, scale) : noise::square_root_factor(scale);
    return hyper;
  }

 private:
  std::unique_ptr<RateControl> schedule_;
  spec::NoiseOptions options_;
  int64_t first_, most_;  // batches
  bool sgd_;
};

}  // namespace

std::unique_ptr<RateControl> make_noise_control(const spec::JobOptions& job) {
  return std::make_unique<Noise>(job);
}

}  // namespace ductile::optim
