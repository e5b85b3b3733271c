#include "ductile/serving/batch_queue.h"

#include <algorithm>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/serving/testing/small_model.h"

namespace ductile::serving {
namespace {

using std::chrono::microseconds;

Time at(int64_t us) { return Time(microseconds(1'000'000 + us)); }

WorkPtr work(size_t samples, int64_t arrived, bool idle = false) {
  auto out = std::make_shared<Work>();
  out->samples.resize(samples);
  out->arrived = at(arrived);
  out->idle = idle;
  return out;
}

TEST(BatchQueue, WhoFindsNothingToDoIsServedAtOnce) {
  BatchQueue queue({8, microseconds(100), 100});
  queue.push(work(1, 0, true));
  EXPECT_EQ(queue.next(at(0)).batch.size(), 1u);
  EXPECT_EQ(queue.waiting(), 0);
}

TEST(BatchQueue, OthersWaitForTheDelayOrForAFullBatch) {
  BatchQueue queue({4, microseconds(100), 100});
  queue.push(work(1, 0));
  queue.push(work(1, 30));
  const auto early = queue.next(at(99));
  EXPECT_TRUE(early.batch.empty());
  EXPECT_EQ(early.look_again, at(100));
  EXPECT_EQ(queue.next(at(100)).batch.size(), 2u);
  for (int i = 0; i < 4; ++i) queue.push(work(1, 200));
  EXPECT_EQ(queue.next(at(200)).batch.size(), 4u);
}

TEST(BatchQueue, DividesWhatIsLargerThanABatch) {
  BatchQueue queue({4, microseconds(0), 100});
  const WorkPtr large = work(6, 0), small = work(3, 1);
  queue.push(large);
  queue.push(small);
  auto one = queue.next(at(5)).batch;
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].count, 4u);
  auto two = queue.next(at(5)).batch;
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].first, 4u);
  EXPECT_EQ(two[0].count, 2u);
  EXPECT_EQ(two[1].count, 2u);
  auto three = queue.next(at(5)).batch;
  ASSERT_EQ(three.size(), 1u);
  EXPECT_EQ(three[0].first, 2u);
  EXPECT_EQ(queue.waiting(), 0);
}

TEST(BatchQueue, RefusesMoreThanMayWait) {
  BatchQueue queue({4, microseconds(0), 10});
  EXPECT_TRUE(queue.push(work(8, 0)));
  EXPECT_FALSE(queue.push(work(3, 0)));
  EXPECT_TRUE(queue.push(work(2, 0)));
  const WorkPtr goes_on = work(5, 0);  // accepted before
  goes_on->deployment.model = testing::make_small_model({}, 1);
  EXPECT_TRUE(queue.push(goes_on));
}

// Else its client would be told to come again for ever.
TEST(BatchQueue, TakesMoreThanMayWaitWhereNothingWaits) {
  BatchQueue queue({4, microseconds(0), 10});
  EXPECT_TRUE(queue.push(work(12, 0)));
  EXPECT_FALSE(queue.push(work(1, 0)));
}

TEST(BatchQueue, GivesUpWhatHasWaitedTooLong) {
  BatchQueue queue({4, microseconds(1000), 10});
  const WorkPtr late = work(1, 0), patient = work(1, 0);
  late->deadline = at(50);
  queue.push(late);
  queue.push(patient);
  EXPECT_EQ(queue.next(at(10)).look_again, at(50));
  const auto next = queue.next(at(50));
  EXPECT_TRUE(next.batch.empty());
  ASSERT_EQ(next.expired.size(), 1u);
  EXPECT_EQ(next.expired[0], late);
  EXPECT_EQ(queue.waiting(), 1);
}

TEST(BatchQueue, NeverMixesWeights) {
  BatchQueue queue({8, microseconds(0), 100});
  const std::shared_ptr<Model> old = testing::make_small_model({}, 1);
  const WorkPtr first = work(1, 0), second = work(1, 0);
  first->deployment.model = old;
  queue.push(first);
  queue.push(second);
  EXPECT_EQ(queue.next(at(0)).batch.size(), 1u);
  EXPECT_EQ(queue.next(at(0)).batch.size(), 1u);
}

// Every sample is taken once, in order, and no batch is too large.
TEST(BatchQueue, LosesNothingInRandomTraffic) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(11, seed);
    const BatchRules rules{1 + rng.below(9), microseconds(rng.below(50)), 40};
    BatchQueue queue(rules);
    std::map<Work*, size_t> taken;
    std::vector<WorkPtr> all;
    int64_t now = 0, held = 0;
    for (int i = 0; i < 200; ++i) {
      now += rng.below(20);
      if (rng.below(2) == 0) {
        const WorkPtr one = work(1 + rng.below(12), now, rng.below(2) == 0);
        const auto n = static_cast<int64_t>(one->samples.size());
        ASSERT_EQ(queue.push(one), held + n <= 40);
        if (held + n <= 40) {
          held += n;
          all.push_back(one);
        }
      }
      int64_t size = 0;
      const auto next = queue.next(at(now));
      for (const Piece& piece : next.batch) {
        ASSERT_EQ(piece.first, taken[piece.work.get()]);
        taken[piece.work.get()] += piece.count;
        size += static_cast<int64_t>(piece.count);
      }
      ASSERT_LE(size, rules.max_batch);
      held -= size;
      ASSERT_EQ(queue.waiting(), held);
      ASSERT_TRUE(!next.batch.empty() || held == 0 || next.look_again > at(now));
    }
    for (int i = 0; i < 100; ++i) {
      for (const Piece& piece : queue.next(at(now + 100)).batch)
        taken[piece.work.get()] += piece.count;
    }
    for (const WorkPtr& one : all) ASSERT_EQ(taken[one.get()], one->samples.size());
  }
}

}  // namespace
}  // namespace ductile::serving
