#include "ductile/run/progress_line.h"

#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/page/terminal.h"

namespace ductile::run {
namespace {

Progress sample() {
  return {.step = 120,
          .total_steps = 468,
          .epoch = 2.25,
          .epochs = 10,
          .loss = 0.31,
          .accuracy = 0.912,
          .samples_per_second = 4310,
          .eta_seconds = 42};
}

TEST(ProgressLine, TellsWhatPeopleAskFirst) {
  EXPECT_EQ(page::plain_line(progress_line(sample())),
            "epoch 3/10  26%  step 120/468  loss 0.310  acc 91.2%  4,310 samples/s  ETA 0:42");
  Progress p = sample();
  p.phase = Phase::eval;
  p.phase_share = 0.5;
  p.workers = 4;
  EXPECT_EQ(page::live_line(progress_line(p), 50, false),
            "epoch 3/10  evaluating  50%  loss 0.310  ETA 0:42");
}

TEST(ProgressLine, NamesTheEpochThatIsEvaluatedOrThatTheRunEndedWith) {
  const auto first = [](const Progress& p) { return progress_line(p).parts.front().text; };
  Progress p = sample();
  p.epoch = 1;
  EXPECT_EQ(first(p), "epoch 2/10");
  p.phase = Phase::eval;
  EXPECT_EQ(first(p), "epoch 1/10");
  p.epoch = 1.5;
  EXPECT_EQ(first(p), "epoch 2/10") << "an evaluation amid an epoch";
  p.epoch = 0;
  EXPECT_EQ(first(p), "epoch 1/10");
  p.phase = Phase::train;
  p.epoch = 2;
  p.epochs = 2;
  p.step = p.total_steps = 100;
  EXPECT_EQ(first(p), "epoch 2/2");
  p.epochs = 0;
  EXPECT_EQ(first(p), "epoch 2");
}

TEST(ProgressLine, EachEpochIsAChapter) {
  Progress p = sample();
  const auto chapter = progress_line(p).chapter;
  p.epoch = 2.99;
  EXPECT_EQ(progress_line(p).chapter, chapter);
  p.epoch = 3;
  EXPECT_NE(progress_line(p).chapter, chapter);
}

RC_GTEST_PROP(ProgressLine, NeverWrapsWhateverTheNumbers, ()) {
  Progress p = sample();
  p.step = *rc::gen::arbitrary<int64_t>();
  p.total_steps = *rc::gen::arbitrary<int64_t>();
  p.epoch = *rc::gen::element(0.0, 1e300, -5.0, std::nan(""), 9.99);
  p.loss = *rc::gen::element(1e300, std::nan(""), -HUGE_VAL, 1e-300, 0.0);
  p.phase = *rc::gen::element(Phase::train, Phase::eval, Phase::tune);
  p.workers = *rc::gen::inRange<int64_t>(1, 100000);
  const int columns = *rc::gen::inRange(1, 300);
  const bool unicode = *rc::gen::arbitrary<bool>();
  const page::ProgressLine line = progress_line(p);
  RC_ASSERT(line.share >= 0 && line.share <= 1);
  RC_ASSERT(page::columns_of(page::live_line(line, columns, unicode)) <= std::max(columns, 2) - 1);
}

}  // namespace
}  // namespace ductile::run
