#include "ductile/train/step_method.h"

namespace ductile::train {
namespace {

// Every sample of the batch runs forward and backward; the update is by their mean gradient.
class Plain final : public StepMethod {
 public:
  at::Tensor contribute(RankContext& rank) override {
    const data::Batch& batch = rank.batch();
    const nn::LossOutput loss = rank.forward(batch);
    const at::Tensor mean = rank.mean(loss.losses);
    rank.figure(kLoss, mean.item<float>());
    rank.figure(kCorrect, static_cast<double>(loss.correct));
    rank.figure(kPredictions, static_cast<double>(loss.predictions));
    rank.figure(kSamplesBackward, static_cast<double>(batch.num_samples));
    return mean;
  }
};

}  // namespace

std::unique_ptr<StepMethod> make_plain_method(const spec::JobOptions&) {
  return std::make_unique<Plain>();
}

}  // namespace ductile::train
