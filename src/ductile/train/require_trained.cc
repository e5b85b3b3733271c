#include "ductile/train/require_trained.h"

#include <algorithm>

#include "ductile/base/error.h"
#include "ductile/spec/methods.h"

namespace ductile::train {
namespace {

// Where the last step begins, in epochs, as the run will say it. With other batches in mid-run
// train.max_steps come further or less far than with the job's own, so the whole run is counted
// there, in the smallest batches.
double last_step_of(const spec::JobOptions& job, int64_t train_size) {
  int64_t batch = job.train.batch_size;
  bool may_change = spec::may_enlarge(job);
  if (job.tune.online) {
    for (const int64_t size : job.tune.batch_size) {
      may_change = may_change || size != batch;
      batch = std::min(batch, size);
    }
  }
  const int64_t steps = std::max<int64_t>(1, train_size / batch);
  int64_t last = job.train.epochs * steps - 1;
  if (job.train.max_steps > 0 && !may_change) last = std::min(last, job.train.max_steps - 1);
  return static_cast<double>(last) / static_cast<double>(steps);
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
  fail(ErrorCode::invalid_argument,
       "all parameters are frozen after {0:g} epochs (by the model, or by optimizer.freeze), and "
       "the run has train.epochs = {1}; train one of them longer, or set train.epochs = {0:g}",
       longest, job.train.epochs);
}

}  // namespace ductile::train
