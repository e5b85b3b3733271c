#include <algorithm>
#include <cmath>
#include <utility>

#include "ductile/train/scored_impl.h"

namespace ductile::train {

// Of the samples whose loss is below the mean, a fixed share, drawn at random, is skipped, and the
// others of them count for more, so that the expectation of an epoch's gradient is what it is
// without a choice. In the last epochs nothing is skipped.
void weigh_infobatch(const spec::InfoBatchOptions& options, uint64_t seed, int64_t epochs,
                     int64_t epoch, std::span<const float> scores, std::span<float> weights) {
  if (static_cast<double>(epoch + 1) > options.end * static_cast<double>(epochs)) return;
  // A score that is no finite number has no part in the mean, and its sample is kept.
  double sum = 0;
  int64_t finite = 0;
  for (const float score : scores) {
    if (!std::isfinite(score)) continue;
    sum += score;
    ++finite;
  }
  if (finite == 0) return;
  const double mean = sum / static_cast<double>(finite);
  std::vector<std::pair<double, int64_t>> learned;  // (draw, sample)
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto sample = static_cast<int64_t>(i);
    if (scores[i] < mean) learned.emplace_back(draw_of(seed, epoch, sample), sample);
  }
  const double share = 1 - options.ratio;
  const auto kept = static_cast<ptrdiff_t>(share * static_cast<double>(learned.size()));
  std::nth_element(learned.begin(), learned.begin() + kept, learned.end());
  for (size_t i = 0; i < learned.size(); ++i) {
    weights[static_cast<size_t>(learned[i].second)] =
        static_cast<ptrdiff_t>(i) < kept ? static_cast<float>(1 / share) : 0.0F;
  }
}

namespace {

// InfoBatch (Qin et al., ICLR 2024).
class InfoBatch final : public ScoredMethod {
 public:
  explicit InfoBatch(const spec::JobOptions& job)
      : ScoredMethod(job), options_(job.train.infobatch) {}

  void set_options(const spec::JobOptions& job) override { options_ = job.train.infobatch; }

 protected:
  void weigh(int64_t epoch, std::span<const float> scores,
             std::span<float> weights) const override {
    weigh_infobatch(options_, seed_, epochs_, epoch, scores, weights);
  }
  double end() const override { return options_.end; }

 private:
  spec::InfoBatchOptions options_;
};

}  // namespace

std::unique_ptr<StepMethod> make_infobatch_method(const spec::JobOptions& job) {
  return std::make_unique<InfoBatch>(job);
}

}  // namespace ductile::train
