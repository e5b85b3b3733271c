#include "ductile/data/cursor.h"

#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"

namespace ductile::data {
namespace {

TEST(Cursor, AStepTakesWhatFollowsOrBeginsTheNextEpoch) {
  EXPECT_EQ(samples_of_step(0, 4, 10), (StepSamples{0, 0, 4}));
  EXPECT_EQ(samples_of_step(4, 4, 10), (StepSamples{0, 4, 8}));
  EXPECT_EQ(samples_of_step(8, 4, 10), (StepSamples{1, 0, 14}));   // two samples are dropped
  EXPECT_EQ(samples_of_step(8, 2, 10), (StepSamples{0, 8, 10}));   // a smaller step takes them
  EXPECT_EQ(samples_of_step(10, 2, 10), (StepSamples{1, 0, 12}));  // the end is the next beginning
  EXPECT_EQ(samples_of_step(37, 10, 10), (StepSamples{4, 0, 50}));
}

RC_GTEST_PROP(Cursor, CountsSamplesAsALoopThatTakesThemOneByOneDoes, ()) {
  const int64_t size = *rc::gen::inRange<int64_t>(1, 60);
  const auto batch_sizes =
      *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(1, size + 1));
  int64_t epoch = 0, position = 0, cursor = 0;
  for (const int64_t batch_size : batch_sizes) {
    int64_t left = 0;
    for (int64_t i = position; i < size; ++i) ++left;
    if (left < batch_size) {
      ++epoch;
      position = 0;
    }
    const StepSamples step = samples_of_step(cursor, batch_size, size);
    RC_ASSERT(step.epoch == epoch);
    RC_ASSERT(step.first == position);
    for (int64_t i = 0; i < batch_size; ++i) ++position;
    cursor = step.next;
    RC_ASSERT(cursor == epoch * size + position);
  }
}

// With one batch size, step s holds what it always held: positions [s * B, (s + 1) * B).
RC_GTEST_PROP(Cursor, AfterStepsOfOneBatchSizeIsWhereTheyLead, ()) {
  const int64_t size = *rc::gen::inRange<int64_t>(1, 60);
  const int64_t batch_size = *rc::gen::inRange<int64_t>(1, size + 1);
  const int64_t per_epoch = size / batch_size;
  int64_t cursor = 0;
  for (int64_t s = 0; s < 3 * per_epoch + 2; ++s) {
    RC_ASSERT(cursor_after(s, batch_size, size) == cursor);
    const StepSamples step = samples_of_step(cursor, batch_size, size);
    RC_ASSERT(step.epoch == s / per_epoch);
    RC_ASSERT(step.first == s % per_epoch * batch_size);
    cursor = step.next;
  }
}

TEST(Cursor, RefusesStepsThatDoNotExist) {
  EXPECT_THROW(samples_of_step(-1, 4, 10), Error);
  EXPECT_THROW(samples_of_step(0, 0, 10), Error);
  EXPECT_THROW(samples_of_step(0, 11, 10), Error);
  EXPECT_THROW(cursor_after(-1, 4, 10), Error);
  EXPECT_THROW(cursor_after(0, 11, 10), Error);
}

}  // namespace
}  // namespace ductile::data
