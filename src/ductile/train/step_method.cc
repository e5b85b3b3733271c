#include "ductile/train/step_method.h"

#include <algorithm>

#include "ductile/base/error.h"

namespace ductile::train {
namespace {

constexpr StepMethodEntry kMethods[] = {DUCTILE_STEP_METHODS(DUCTILE_TABLE_ROW)};

}  // namespace

FigureList::FigureList(std::vector<std::string> more, int64_t num_shared)
    : num_shared_(num_shared) {
  for (const std::string_view name :
       {kLoss, kCorrect, kPredictions, kSamplesForward, kSamplesBackward, kGradientSquare})
    names_.emplace_back(name);
  for (std::string& name : more) {
    DUCTILE_CHECK(std::ranges::find(names_, name) == names_.end(), "figure {} is there twice",
                  name);
    names_.push_back(std::move(name));
  }
}

size_t FigureList::place(std::string_view name) const {
  const auto found = std::ranges::find(names_, name);
  if (found == names_.end()) {
    fail(ErrorCode::not_found, "the step method declares no figure \"{}\"", name);
  }
  return static_cast<size_t>(found - names_.begin());
}

std::map<std::string, double> FigureList::by_name(std::span<const float> tail) const {
  std::map<std::string, double> out;
  for (size_t i = 0; i < names_.size(); ++i) out[names_[i]] = tail[i];
  return out;
}

Progress progress_of(const StepMethod& method, const JobState& state, int64_t num_samples,
                     int64_t epochs) {
  const int64_t batch = state.hyper.batch_size, cursor = state.counters.cursor;
  const int64_t per_epoch = num_samples / batch;
  const int64_t position = cursor / num_samples * per_epoch + cursor % num_samples / batch;
  return method.progress(state, {position, std::max<int64_t>(0, epochs * per_epoch - position)});
}

Verdict StepMethod::judge(const JobState&, const StepKind& kind,
                          const std::map<std::string, double>& sums, int64_t num_ranks) const {
  const auto ranks = static_cast<float>(num_ranks);
  // As the sum itself, in fp32.
  return {kind.update, ranks, static_cast<float>(sums.at(std::string(kLoss))) / ranks};
}

Table<StepMethodEntry> step_methods() { return {"train.method =", kMethods}; }

std::unique_ptr<StepMethod> make_step_method(const spec::JobOptions& job) {
  return step_methods().at(job.train.method).make(job);
}

}  // namespace ductile::train
