#include "ductile/train/require_trained.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/spec/methods.h"

namespace ductile::train {
namespace {

// Whether an epoch of the method has fewer updates than one without a choice of samples.
bool shortens_epochs(const spec::JobOptions& job) {
  return (spec::selects_samples(job) && !spec::counts_updates(job)) || spec::weighs_samples(job);
}

// Where the last step begins at the latest, in epochs, as the run will say it: train.max_steps may
// all be in the largest batches, and the last epoch in the smallest ones.
double last_step_of(const spec::JobOptions& job, int64_t train_size) {
  const int64_t batch = job.train.batch_size;
  int64_t smallest = batch, largest = spec::may_enlarge(job) ? spec::most_batch(job) : batch;
  if (job.tune.online) {
    for (const int64_t size : job.tune.batch_size) {
      smallest = std::min(smallest, size);
      largest = std::max(largest, size);
    }
  }
  const auto steps = [&](int64_t of) {
    return static_cast<double>(std::max<int64_t>(1, train_size / of));
  };
  const double last = static_cast<double>(job.train.epochs) - 1 / steps(smallest);
  if (job.train.max_steps == 0) return last;
  const double of_steps = static_cast<double>(job.train.max_steps - 1) / steps(largest);
  // The first epoch has no choice yet, since it is what shows the losses.
  const bool has_whole_first = !spec::selects_samples(job) || job.train.selective.first_epochs > 0;
  if (shortens_epochs(job) && !(has_whole_first && of_steps < 1)) return last;
  return std::min(last, of_steps);
}

}  // namespace

void require_trained(const spec::JobOptions& job, const optim::ParamLayout& layout,
                     int64_t train_size) {
  double longest = 0;
  for (const optim::Segment& s : layout.segments()) {
    if (s.size > 0) longest = std::max(longest, s.trained_epochs);
  }
  if (train_size < 1 || longest > last_step_of(job, train_size)) return;
  if (longest == 0) {
    fail(ErrorCode::invalid_argument,
         "all parameters are frozen (by the model, or by optimizer.freeze), so there is nothing to "
         "train; leave one of them out");
  }
  const double whole = std::floor(longest);
  fail(
      ErrorCode::invalid_argument,
      "all parameters are frozen after {:g} epochs (by the model, or by optimizer.freeze), and the "
      "run has train.epochs = {}{}; train one of them longer{}",
      longest, job.train.epochs,
      job.train.max_steps > 0 ? fmt::format(" and train.max_steps = {}", job.train.max_steps) : "",
      whole >= 1 ? fmt::format(", or set train.epochs = {:g}", whole) : "");
}

}  // namespace ductile::train
