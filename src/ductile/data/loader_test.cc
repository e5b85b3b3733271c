#include "ductile/data/loader.h"

#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/data/augment.h"
#include "ductile/data/sampler.h"
#include "ductile/data/testing/loader_twin.h"

namespace ductile::data {
namespace {

spec::DataOptions small_digits() {
  spec::DataOptions o;
  o.train_limit = 200;
  o.test_limit = 50;
  return o;
}

using Key = std::pair<int64_t, int64_t>;  // epoch, position in it

std::map<Key, Copy> collect(Loader& loader, int count) {
  std::map<Key, Copy> batches;
  for (int i = 0; i < count; ++i) {
    const auto b = loader.next();
    if (!b) break;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b->input) % 64, 0u);
    batches[{b->epoch, b->first}] = copy_of(*b);
  }
  return batches;
}

class LoaderTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Dataset> train_ = open_dataset(small_digits(), Split::train);
  spec::LoaderOptions options_;
};

TEST_F(LoaderTest, GivesTheSameBytesForAnyThreadsPartsAndRestart) {
  LoaderTask task{.seed = 5, .batch_size = 24, .parts = 4, .num_parts = 4};
  options_.threads = 1;
  Loader reference(train_, strong_augment(), options_, task);
  const auto expected = collect(reference, 4 * 8 * 3);
  ASSERT_EQ(expected.size(), 96u);

  for (const int64_t threads : {0, 2, 7}) {
    for (const int64_t prefetch : {1, 5}) {
      options_.threads = threads;
      options_.prefetch = prefetch;
      Loader loader(train_, strong_augment(), options_, task);
      EXPECT_EQ(collect(loader, 96), expected) << threads << " threads, prefetch " << prefetch;
    }
  }
  // Each part alone, from the middle of an epoch on.
  for (int64_t part = 0; part < 4; ++part) {
    LoaderTask one = task;
    one.first_part = part;
    one.num_parts = 1;
    one.start = 200 + 5 * 24;
    Loader loader(train_, strong_augment(), options_, one);
    const auto got = collect(loader, 11);
    EXPECT_TRUE(got.contains({1, 5 * 24 + part * 6}));
    for (const auto& [key, batch] : got) EXPECT_EQ(batch, expected.at(key));
  }
  // Parts are slices of the same global batch.
  LoaderTask whole = task;
  whole.parts = 1;
  whole.num_parts = 1;
  Loader loader(train_, strong_augment(), options_, whole);
  for (const auto& [key, batch] : collect(loader, 10)) {
    Copy joined;
    for (int64_t part = 0; part < 4; ++part) {
      joined += expected.at({key.first, key.second + part * 6});
    }
    EXPECT_EQ(batch, joined);
  }
}

TEST_F(LoaderTest, FollowsTheSampler) {
  const LoaderTask task{.seed = 9, .batch_size = 50};
  Loader loader(train_, {}, options_, task);
  for (int i = 0; i < 6; ++i) {
    const auto b = loader.next();
    const Permutation order(9, static_cast<uint64_t>(b->epoch), 200);
    for (int64_t k = 0; k < 50; ++k) {
      const int64_t index = order[b->first + k];
      EXPECT_EQ(b->samples[static_cast<size_t>(k)], static_cast<uint64_t>(index));
      EXPECT_EQ(b->labels[k], train_->label(index));
    }
  }
}

TEST_F(LoaderTest, NormalisesToMeanZeroAndUnitVariance) {
  const LoaderTask task{.batch_size = 200};
  Loader loader(train_, {}, options_, task);
  const auto b = loader.next();
  EXPECT_EQ(b->shape, (Shape{200, 1, 28, 28}));
  const auto* x = reinterpret_cast<const float*>(b->input);
  double sum = 0, squares = 0;
  const int64_t n = num_elements(b->shape);
  for (int64_t i = 0; i < n; ++i) {
    sum += x[i];
    squares += double(x[i]) * x[i];
  }
  EXPECT_NEAR(sum / double(n), 0, 1e-4);
  EXPECT_NEAR(squares / double(n), 1, 1e-3);
}

TEST_F(LoaderTest, EvaluatesInOrderWithAShortLastBatch) {
  const auto test = open_dataset(small_digits(), Split::test);
  LoaderTask task{.batch_size = 20, .parts = 2, .num_parts = 2, .training = false};
  Loader loader(test, resolve_augment(strong_augment(), train_->info()), options_, task);
  std::vector<int64_t> sizes;
  uint64_t next = 0;
  while (const auto b = loader.next()) {
    sizes.push_back(b->num_samples);
    for (const uint64_t s : b->samples) EXPECT_EQ(s, next++);
  }
  EXPECT_EQ(next, 50u);
  EXPECT_EQ(sizes, (std::vector<int64_t>{10, 10, 10, 10, 10}));
  EXPECT_EQ(loader.next(), nullptr);
}

TEST_F(LoaderTest, BatchesOutliveTheLoader) {
  std::shared_ptr<const Batch> kept;
  {
    Loader loader(train_, {}, options_, {.batch_size = 10});
    kept = loader.next();
  }
  EXPECT_EQ(kept->num_samples, 10);
  EXPECT_EQ(kept->labels[0], train_->label(static_cast<int64_t>(kept->samples[0])));
}

TEST_F(LoaderTest, RefusesTasksThatDoNotFit) {
  const auto make = [&](LoaderTask task) { Loader loader(train_, {}, options_, task); };
  EXPECT_THROW(make({.batch_size = 201}), Error);
  EXPECT_THROW(make({.batch_size = 10, .parts = 3}), Error);
  EXPECT_THROW(make({.batch_size = 10, .parts = 2, .first_part = 1, .num_parts = 2}), Error);
  EXPECT_THROW(make({.batch_size = 0}), Error);
  EXPECT_THROW(make({.batch_size = 10, .start = -1}), Error);
}

TEST_F(LoaderTest, CountsThreadsAndBatches) {
  options_.threads = 3;
  Loader loader(train_, {}, options_, {.batch_size = 10});
  for (int i = 0; i < 5; ++i) loader.next();
  EXPECT_EQ(loader.stats().threads, 3);
  EXPECT_EQ(loader.stats().batches, 5);
  EXPECT_EQ(loader.stats().bad_samples, 0);
}

}  // namespace
}  // namespace ductile::data
