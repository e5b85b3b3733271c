#include "ductile/train/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "ductile/data/loader.h"
#include "ductile/nn/threads.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/ingredients.h"

namespace ductile::train {
namespace {

// A batch in training moves each running statistic s to (1 - m) s + m b, where b is the batch's own
// and m the momentum of its layer. So the mean of b over batches is known from what each of them
// makes of the same s. Other buffers stay as they are.
class MeanStatistics {
  static constexpr double kLeastMomentum = 1e-5, kMostSpread = 0.1;

 public:
  // `from`: s. A pass is one of a batch in training, and moves `buffers`.
  MeanStatistics(std::vector<float> from, std::span<float> buffers)
      : from_(std::move(from)), buffers_(buffers), sum_(from_.size()) {}

  // Before add(), of any batch: by two passes, of which one begins with s and one with s + d.
  void find_momenta(const std::vector<FlatModel::Entry>& entries,
                    const std::function<void()>& pass) {
    std::ranges::copy(from_, buffers_.begin());
    pass();
    const std::vector<float> once(buffers_.begin(), buffers_.end());
    std::vector<Moved> moved;
    for (const FlatModel::Entry& entry : entries) {
      const auto begin = static_cast<size_t>(entry.offset),
                 end = begin + static_cast<size_t>(entry.size);
      bool moves = false;
      for (size_t i = begin; i < end; ++i) moves = moves || once[i] != from_[i];
      if (moves) moved.push_back({begin, end, 0});
    }
    std::ranges::copy(from_, buffers_.begin());
    // As far away as s is large, since fp32 rounds.
    for (const Moved& m : moved)
      for (size_t i = m.begin; i < m.end; ++i) buffers_[i] += 1 + std::abs(from_[i]);
    const std::vector<float> shifted(buffers_.begin(), buffers_.end());
    pass();
    for (Moved& m : moved) {
      double sum = 0, least = 1, largest = 0;  // of what stays: 1 - m
      for (size_t i = m.begin; i < m.end; ++i) {
        const double stays = (double{buffers_[i]} - once[i]) / (double{shifted[i]} - from_[i]);
        sum += stays;
        least = std::min(least, stays);
        largest = std::max(largest, stays);
      }
      m.momentum = 1 - sum / static_cast<double>(m.end - m.begin);
      // Not what is only counted up, nor what moves by another rule.
      if (m.momentum > kLeastMomentum && largest - least < kMostSpread) moved_.push_back(m);
    }
  }

  void add(const std::function<void()>& pass) {
    std::ranges::copy(from_, buffers_.begin());
    pass();
    ++batches_;
    for (const Moved& m : moved_)
      for (size_t i = m.begin; i < m.end; ++i)
        sum_[i] += (buffers_[i] - (1 - m.momentum) * from_[i]) / m.momentum;
  }

  // Leaves the means in the buffers.
  void finish() {
    std::ranges::copy(from_, buffers_.begin());
    for (const Moved& m : moved_)
      for (size_t i = m.begin; i < m.end; ++i)
        buffers_[i] = static_cast<float>(sum_[i] / static_cast<double>(batches_));
  }

 private:
  struct Moved {
    size_t begin, end;
    double momentum;
  };

  std::vector<float> from_;  // s
  std::span<float> buffers_;
  std::vector<Moved> moved_;
  std::vector<double> sum_;
  int64_t batches_ = 0;
};

}  // namespace

void add_statistics(JobState& state, JobState::EvaluationWeights& evaluated, nn::Model& model,
                    const spec::JobOptions& job, const spec::AugmentOptions& augment,
                    const std::function<std::shared_ptr<const data::Dataset>()>& train_set) {
  const std::span<const float> trained = state.flat.buffer_values();
  if (!evaluated.of_the_rule || trained.empty() || job.train.statistics_batches == 0) return;
  evaluated.statistics = AlignedArray<float>(static_cast<int64_t>(trained.size()));
  evaluated.buffers = evaluated.statistics.span();
  std::ranges::copy(trained, evaluated.buffers.begin());
  data::LoaderTask task;
  task.seed = static_cast<uint64_t>(job.seed);
  task.batch_size = state.hyper.batch_size / spec::batch_parts(job) * job.train.bn_group;
  task.channels_last = lies_channels_last(job, model);
  const std::shared_ptr<const data::Dataset> samples = train_set();
  // A large batch needs no more than each sample once.
  const int64_t batches =
      std::clamp<int64_t>(samples->info().size / task.batch_size, 1, job.train.statistics_batches);
  data::Loader loader(samples, augment, job.loader, task);
  const WeightsSwap swap(state.flat, evaluated.weights, evaluated.buffers);
  const at::NoGradGuard no_grad;
  model.train(true);
  MeanStatistics statistics({trained.begin(), trained.end()}, state.flat.buffer_values());
  for (int64_t i = 0; i < batches; ++i) {
    const auto batch = loader.next();
    const auto pass = [&] {
      // Dropout is the same in each.
      nn::seed_step(static_cast<uint64_t>(job.seed) + static_cast<uint64_t>(i));
      forward(model, *batch);
    };
    if (i == 0) statistics.find_momenta(state.flat.buffers(), pass);
    statistics.add(pass);
  }
  statistics.finish();
}

}  // namespace ductile::train
