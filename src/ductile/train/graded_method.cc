#include <algorithm>
#include <cmath>

#include "ductile/train/scored_impl.h"

namespace ductile::train {

// A sample whose loss is above the share q of all is kept with the probability
// floor + (1 - floor) * q ^ beta, and its loss is multiplied by that probability ^ -unbias: with 1
// the expectation of an epoch's gradient is what it is without a choice, with 0 the samples with
// large losses count for more. In the last epochs nothing is skipped.
void weigh_graded(const spec::GradedOptions& options, uint64_t seed, int64_t epochs, int64_t epoch,
                  std::span<const float> scores, std::span<float> weights) {
  if (static_cast<double>(epoch + 1) > options.end * static_cast<double>(epochs)) return;
  std::vector<float> sorted(scores.begin(), scores.end());
  std::ranges::sort(sorted);
  if (sorted.empty() || sorted.front() == sorted.back()) return;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double graded = keep_probability(sorted, scores[i], options.beta);
    const double probability = options.floor + (1 - options.floor) * graded;
    const bool kept = draw_of(seed, epoch, static_cast<int64_t>(i)) < probability;
    weights[i] = kept ? static_cast<float>(std::pow(probability, -options.unbias)) : 0.0F;
  }
}

namespace {

// Ductile's own: the weights of InfoBatch with the emphasis of Selective-Backprop, by the losses
// with which samples were last trained.
class Graded final : public ScoredMethod {
 public:
  explicit Graded(const spec::JobOptions& job) : ScoredMethod(job), options_(job.train.graded) {}

  void set_options(const spec::JobOptions& job) override { options_ = job.train.graded; }

 protected:
  void weigh(int64_t epoch, std::span<const float> scores,
             std::span<float> weights) const override {
    weigh_graded(options_, seed_, epochs_, epoch, scores, weights);
  }
  double end() const override { return options_.end; }

 private:
  spec::GradedOptions options_;
};

}  // namespace

std::unique_ptr<StepMethod> make_graded_method(const spec::JobOptions& job) {
  return std::make_unique<Graded>(job);
}

}  // namespace ductile::train
