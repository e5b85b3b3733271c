#include <algorithm>
#include <memory>

#include "ductile/base/json_value.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/optim/grown_batch_impl.h"
#include "ductile/spec/methods.h"

namespace ductile::optim {
namespace {

// A batch below the noise scale of its gradients is cheap to enlarge: a step of twice the batch
// makes almost twice the progress (McCandlish et al. 2018). So the batch is doubled whenever twice
// the batch is still at most the measured noise scale.
class Noise final : public RateControl {
 public:
  explicit Noise(const spec::JobOptions& job)
      : grown_(job), options_(job.train.noise), most_(spec::most_batch(job)) {}

  Hyper next(const Observed& observed, nlohmann::json& memory) const override {
    int64_t batch = memory.value("batch_size", grown_.first());
    const int64_t since = memory.value("since", int64_t{0});
    const auto& noise = observed.noise;
    // Twice the batch has to fit in an epoch.
    if (noise && observed.updates - since >= options_.patience && 2 * batch <= most_ &&
        2 * batch <= observed.steps_per_epoch * grown_.first() &&
        static_cast<double>(2 * batch) <=
            options_.factor * noise::noise_scale(*noise, static_cast<double>(grown_.first()))) {
      batch *= 2;
      memory["since"] = observed.updates;
    }
    memory["batch_size"] = batch;
    return grown_.hyper(observed, batch);
  }

 private:
  GrownBatch grown_;
  spec::NoiseOptions options_;
  int64_t most_;  // batch
};

}  // namespace

std::unique_ptr<RateControl> make_noise_control(const spec::JobOptions& job) {
  return std::make_unique<Noise>(job);
}

}  // namespace ductile::optim
