#pragma once

#include <cstdint>

namespace ductile::data {

// A run's place in its training data is a cursor: a position in the endless stream of samples that
// the epochs make one after the other. It lies in epoch cursor / size, at position cursor % size.
// Because it counts samples, not steps, the batch size may change at any step.

// What one training step takes: the positions [first, first + batch_size) of the epoch.
struct StepSamples {
  int64_t epoch = 0;
  int64_t first = 0;
  int64_t next = 0;  // the cursor after the step
  bool operator==(const StepSamples&) const = default;
};

// The step of `batch_size` samples that a run at `cursor` takes next. A step lies in one epoch:
// where fewer samples than that are left, they are dropped and the next epoch begins. Throws
// invalid_argument for a negative cursor and unless 1 <= batch_size <= size.
StepSamples samples_of_step(int64_t cursor, int64_t batch_size, int64_t size);

// The cursor after `steps` steps of one batch size, the first at cursor 0.
int64_t cursor_after(int64_t steps, int64_t batch_size, int64_t size);

}  // namespace ductile::data
