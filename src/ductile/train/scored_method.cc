#include <algorithm>
#include <limits>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/train/scored_impl.h"

namespace ductile::train {
namespace {

// Of a sample that was never trained: above all others, and in no mean.
constexpr float kFirstScore = std::numeric_limits<float>::infinity();

std::span<const float> array_of(const ExtraPart& part, const char* name) {
  return part.arrays.at(name).span();
}

}  // namespace

ScoredMethod::ScoredMethod(const spec::JobOptions& job)
    : seed_(static_cast<uint64_t>(job.seed)),
      epochs_(job.train.epochs),
      name_(job.train.method),
      batch_size_(job.train.batch_size),
      num_ranks_(job.train.virtual_ranks),
      max_steps_(job.train.max_steps) {}

void ScoredMethod::prepare(const spec::JobOptions& job, Ingredients& ingredients) {
  order_ = StreamOrder::of(job, ingredients);
  require_sample_losses(job, ingredients);
}

// Absent in the first state, in which every sample counts.
const ExtraPart* ScoredMethod::part_of(const JobState& state) const {
  const auto part = state.extras().find(name_);
  return part == state.extras().end() ? nullptr : &part->second;
}

int64_t ScoredMethod::updates_of(const JobState& state) const {
  const ExtraPart* part = part_of(state);
  return part == nullptr ? order_.num_samples() / batch_size_
                         : part->values.at("updates").get<int64_t>();
}

int64_t ScoredMethod::updates_done(const JobState& state) const {
  const ExtraPart* part = part_of(state);
  return part == nullptr ? 0 : part->values.at("done").get<int64_t>();
}

std::optional<Samples> ScoredMethod::samples(const JobState& state, const StepKind&) const {
  if (state.hyper.batch_size != batch_size_) {
    fail(ErrorCode::invalid_argument,
         "a batch of {} samples: train.method = \"{}\" needs train.batch_size = {} in every step; "
         "choose another train.rate_control",
         state.hyper.batch_size, name_, batch_size_);
  }
  const int64_t size = order_.num_samples();
  const ExtraPart* part = part_of(state);
  Samples out;
  out.epoch = state.counters.cursor / size;
  out.per_rank = batch_size_ / num_ranks_;
  const int64_t first = state.counters.cursor % size;
  int64_t position = first;
  // Enough are left in the epoch, or the last step would have ended it.
  while (static_cast<int64_t>(out.indices.size()) < batch_size_) {
    DUCTILE_CHECK(position < size, "epoch {} has no full batch left", out.epoch);
    const int64_t count =
        std::min(size - position, batch_size_ - static_cast<int64_t>(out.indices.size()));
    for (const int64_t index : order_.indices(out.epoch, position, count)) {
      if (part == nullptr || array_of(*part, "weight")[static_cast<size_t>(index)] > 0)
        out.indices.push_back(index);
    }
    position += count;
  }
  out.of_stream = position - first == batch_size_;
  const bool ends_epoch = updates_done(state) + 1 >= updates_of(state);
  out.next_cursor = ends_epoch ? (out.epoch + 1) * size : out.epoch * size + position;
  return out;
}

Progress ScoredMethod::progress(const JobState& state, const Progress&) const {
  const int64_t whole = order_.num_samples() / batch_size_;  // updates in an epoch without a choice
  const int64_t position = state.counters.cursor / order_.num_samples() * whole +
                           updates_done(state) * whole / updates_of(state);
  return {static_cast<double>(position), std::max<int64_t>(0, epochs_ * whole - position)};
}

at::Tensor ScoredMethod::contribute(RankContext& rank) {
  std::vector<float> weights;
  if (const ExtraPart* part = part_of(rank.state()); part != nullptr) {
    const std::span<const float> weight = array_of(*part, "weight");
    const auto own = std::span(rank.samples()->indices)
                         .subspan(static_cast<size_t>(rank.first()),
                                  static_cast<size_t>(rank.batch().num_samples));
    for (const int64_t index : own) weights.push_back(weight[static_cast<size_t>(index)]);
  }
  return train_on(rank, batch_size_ / num_ranks_, weights);
}

Verdict ScoredMethod::judge(const JobState& state, const StepKind& kind,
                            const std::map<std::string, double>& sums, int64_t num_ranks) const {
  Verdict out = StepMethod::judge(state, kind, sums, num_ranks);
  const ExtraPart* part = part_of(state);
  if (part == nullptr) return out;
  const std::span<const float> weight = array_of(*part, "weight");
  double total = 0;
  const std::vector<int64_t> indices = samples(state, kind)->indices;
  for (const int64_t index : indices) total += weight[static_cast<size_t>(index)];
  out.loss *= static_cast<float>(static_cast<double>(indices.size()) / total);
  return out;
}

void ScoredMethod::commit(JobState& state, const StepKind&, const Outcome& outcome) const {
  const int64_t size = order_.num_samples();
  const bool first = part_of(state) == nullptr;
  const std::span<float> score = state.extra_array(name_, "score", size);
  const std::span<float> weight = state.extra_array(name_, "weight", size);
  nlohmann::json& values = state.extra(name_).values;
  if (first) {
    std::ranges::fill(score, kFirstScore);
    std::ranges::fill(weight, 1.0F);
    values = {{"updates", size / batch_size_}, {"done", 0}};
  }
  const Samples& samples = *outcome.samples;
  double raised = 0;
  for (size_t i = 0; i < samples.indices.size(); ++i) {
    const auto sample = static_cast<size_t>(samples.indices[i]);
    score[sample] = as_rank(outcome.shared[i]);
    raised += weight[sample] != 1 ? 1 : 0;
  }
  state.window.sums["examined"] += static_cast<double>(samples.next_cursor - outcome.cursor);
  state.window.sums["selected"] += static_cast<double>(samples.indices.size());
  state.window.sums["reweighted"] += raised;
  values["done"] = values.at("done").get<int64_t>() + 1;
  if (samples.next_cursor == (samples.epoch + 1) * size) begin_epoch(state, samples.epoch + 1);
}

void ScoredMethod::begin_epoch(JobState& state, int64_t epoch) const {
  const int64_t size = order_.num_samples();
  const std::span<float> weight = state.extra_array(name_, "weight", size);
  std::ranges::fill(weight, 1.0F);
  weigh(epoch, state.extra_array(name_, "score", size), weight);
  auto kept = std::ranges::count_if(weight, [](float w) { return w > 0; });
  // A run that train.max_steps cuts short has its last share in its last updates.
  const auto until = static_cast<double>(state.counters.updates + kept / batch_size_);
  const bool is_late = max_steps_ > 0 && until > end() * static_cast<double>(max_steps_);
  if (is_late || kept < batch_size_) {  // or not even one step: nothing is skipped
    std::ranges::fill(weight, 1.0F);
    kept = size;
  }
  state.extra(name_).values = {{"updates", kept / batch_size_}, {"done", 0}};
}

}  // namespace ductile::train
