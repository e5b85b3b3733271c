#include "ductile/train/step_method.h"

#include <algorithm>

#include "ductile/base/error.h"
#include "ductile/data/cursor.h"

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

namespace {

// Of a run at `cursor` that updates once for each batch of the stream.
Progress by_stream(int64_t cursor, int64_t batch, int64_t num_samples, int64_t epochs) {
  const int64_t per_epoch = num_samples / batch;
  const int64_t epoch = cursor / num_samples, done = cursor % num_samples;
  // What does not fill a batch is dropped, as samples_of_step() does. The epoch is the samples that
  // were used and those that will be: other batches before may have used up another number.
  const int64_t left = (num_samples - done) / batch;
  const int64_t used = done + left * batch;
  const auto in_epoch = used == per_epoch * batch
                            ? static_cast<double>(per_epoch - left)
                            : static_cast<double>(per_epoch) *
                                  (static_cast<double>(done) / static_cast<double>(used));
  return {static_cast<double>(epoch * per_epoch) + in_epoch,
          std::max<int64_t>(0, (epochs - epoch - 1) * per_epoch + left), true};
}

}  // namespace

Progress progress_of(const StepMethod& method, const JobState& state, int64_t num_samples,
                     int64_t epochs) {
  return method.progress(
      state, by_stream(state.counters.cursor, state.hyper.batch_size, num_samples, epochs));
}

Progress progress_after_batch(const JobState& state, int64_t num_samples, int64_t epochs) {
  const int64_t batch = state.hyper.batch_size;
  const int64_t next = data::samples_of_step(state.counters.cursor, batch, num_samples).next;
  return by_stream(next, batch, num_samples, epochs);
}

Way way_of(const Progress& progress, const JobState& state, const spec::JobOptions& job,
           int64_t num_samples) {
  const int64_t own = num_samples / job.train.batch_size;
  const int64_t present = num_samples / state.hyper.batch_size;
  // Whole epochs stay whole, to the bit: schedules change there.
  const auto in_own = [&](double steps) {
    return own == present ? steps : steps / static_cast<double>(present) * static_cast<double>(own);
  };
  Way out;
  out.done = in_own(progress.position);
  const int64_t most = job.train.max_steps, updates = state.counters.updates;
  if (most > 0 && !progress.by_batches) {
    const int64_t left = std::min(progress.left, std::max<int64_t>(0, most - updates));
    out.total = std::max(1.0, in_own(progress.position + static_cast<double>(left)));
    return out;
  }
  out.total = static_cast<double>(job.train.epochs * own);
  if (most > 0) {
    // Of two ends the nearer one: the total with which the share of the updates is done.
    const double of_done = updates > 0 ? out.done / static_cast<double>(updates) : 1;
    out.total = std::min(out.total, of_done * static_cast<double>(most));
  }
  out.total = std::max(out.total, out.done);
  return out;
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
