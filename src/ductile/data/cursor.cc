#include "ductile/data/cursor.h"

#include "ductile/base/error.h"

namespace ductile::data {
namespace {

void check_batch_size(int64_t batch_size, int64_t size) {
  if (batch_size < 1) {
    fail(ErrorCode::invalid_argument, "train.batch_size = {} must be positive", batch_size);
  }
  if (batch_size > size) {
    fail(ErrorCode::invalid_argument,
         "train.batch_size = {} is more than the {} samples of the training set", batch_size, size);
  }
}

}  // namespace

StepSamples samples_of_step(int64_t cursor, int64_t batch_size, int64_t size) {
  check_batch_size(batch_size, size);
  if (cursor < 0) fail(ErrorCode::invalid_argument, "a data cursor of {} samples", cursor);
  StepSamples step{cursor / size, cursor % size, 0};
  if (batch_size > size - step.first) step = {step.epoch + 1, 0, 0};
  step.next = step.epoch * size + step.first + batch_size;
  return step;
}

int64_t cursor_after(int64_t steps, int64_t batch_size, int64_t size) {
  check_batch_size(batch_size, size);
  if (steps < 0) fail(ErrorCode::invalid_argument, "a data cursor after {} steps", steps);
  if (steps == 0) return 0;
  const int64_t per_epoch = size / batch_size;
  // By the last step done: what its epoch has left is dropped by the next step, not by this one.
  return (steps - 1) / per_epoch * size + ((steps - 1) % per_epoch + 1) * batch_size;
}

}  // namespace ductile::data
