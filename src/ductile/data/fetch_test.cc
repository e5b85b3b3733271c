#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/data/cursor.h"
#include "ductile/data/loader.h"
#include "ductile/data/testing/loader_twin.h"

namespace ductile::data {
namespace {

class Fetch : public ::testing::Test {
 protected:
  Fetch() { options_.cache_mb = 0; }

  const SmallSets sets_;
  const SmallSets::Kind& digits_ = sets_.kinds()[0];
  const SmallSets::Kind& folder_ = sets_.kinds()[1];  // samples 2 and 3 are bad and skipped
  spec::LoaderOptions options_;
};

// Any lists of samples of any epoch, between the steps of a stream: both are what the twin reads.
TEST_F(Fetch, GivesTheSamplesAskedForAndLeavesTheStreamAlone) {
  for (const auto& kind : sets_.kinds()) {
    const int64_t size = kind.dataset->info().size;
    for (unsigned seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(kind.name + ", seed " + std::to_string(seed));
      std::mt19937 random(seed);
      const auto draw = [&](int64_t least, int64_t most) {
        return std::uniform_int_distribution<int64_t>(least, most)(random);
      };
      options_.threads = draw(0, 4);
      options_.prefetch = draw(1, 6);
      const int64_t batch_size = draw(1, size);
      Loader loader(kind.dataset, kind.augment, options_, {.seed = 7, .batch_size = batch_size});
      Twin stream(kind.dataset, kind.augment, 7), twin(kind.dataset, kind.augment, 7);
      for (int step = 0; step < 12; ++step) {
        for (int64_t times = draw(0, 2); times > 0; --times) {
          std::vector<int64_t> indices(static_cast<size_t>(draw(0, 2 * size)));
          for (int64_t& index : indices) index = draw(0, size - 1);
          const int64_t epoch = draw(0, 3);
          Copy expected;
          for (const int64_t index : indices) expected += twin.sample(index, epoch);
          const auto b = loader.fetch(indices, epoch);
          ASSERT_EQ(copy_of(*b), expected);
          ASSERT_EQ(b->epoch, epoch);
          ASSERT_EQ(b->shape[0], static_cast<int64_t>(indices.size()));
          ASSERT_EQ(reinterpret_cast<uintptr_t>(b->input) % 64, 0u);
        }
        ASSERT_EQ(copy_of(*loader.next()), stream.step(batch_size));
      }
    }
  }
}

// Without the twin, and with the cache of decoded images: an epoch of the stream, fetched in
// another order by a loader that is elsewhere.
TEST_F(Fetch, GivesTheBytesOfTheStream) {
  options_.cache_mb = 64;
  for (const auto& kind : sets_.kinds()) {
    const int64_t size = kind.dataset->info().size;
    Loader stream(kind.dataset, kind.augment, options_,
                  {.seed = 2, .batch_size = size, .start = 3 * size});
    const auto epoch = stream.next();
    ASSERT_EQ(epoch->epoch, 3);
    const Copy whole = copy_of(*epoch);
    Loader other(kind.dataset, kind.augment, options_, {.seed = 2, .batch_size = 1});
    const std::vector<int64_t> order = other.indices_of(3, 0, size);
    std::vector<size_t> shuffled(static_cast<size_t>(size));
    std::iota(shuffled.begin(), shuffled.end(), size_t{0});
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(1));
    const size_t bytes = whole.input.size() / shuffled.size();
    std::vector<int64_t> asked;
    std::string expected;
    for (const size_t at : shuffled) {
      asked.push_back(order[at]);
      expected += whole.input.substr(at * bytes, bytes);
    }
    EXPECT_TRUE(copy_of(*other.fetch(asked, 3)).input == expected) << kind.name;
    EXPECT_EQ(copy_of(*other.fetch(asked, 2)).input == expected, kind.dataset->info().tokens)
        << "augmentation draws anew in each epoch";
  }
}

TEST_F(Fetch, TheSampleAtAPlaceOfAnEpochIsThatOfTheStream) {
  Loader loader(digits_.dataset, digits_.augment, options_, {.seed = 4, .batch_size = 9});
  for (int step = 0; step < 15; ++step) {
    const auto b = loader.next();
    const auto indices = loader.indices_of(b->epoch, b->first, b->num_samples);
    EXPECT_TRUE(std::equal(indices.begin(), indices.end(), b->samples.begin(), b->samples.end(),
                           [](int64_t i, uint64_t s) { return static_cast<uint64_t>(i) == s; }));
    EXPECT_EQ(copy_of(*loader.fetch(indices, b->epoch)), copy_of(*b));
  }
  const std::vector<int64_t> in_order{5, 6, 7};
  options_.shuffle = false;
  EXPECT_EQ(Loader(digits_.dataset, {}, options_, {}).indices_of(1, 5, 3), in_order);
  options_.shuffle = true;
  EXPECT_EQ(Loader(digits_.dataset, {}, options_, {.training = false}).indices_of(0, 5, 3),
            in_order);
  EXPECT_TRUE(loader.indices_of(0, 61, 0).empty());
  EXPECT_THROW(loader.indices_of(0, 60, 2), Error);
  EXPECT_THROW(loader.indices_of(0, -1, 2), Error);
  EXPECT_THROW(loader.indices_of(0, 2, -1), Error);
  EXPECT_THROW(loader.indices_of(-1, 0, 2), Error);
}

TEST_F(Fetch, HasNoPlaceInTheStream) {
  Loader loader(digits_.dataset, digits_.augment, options_,
                {.batch_size = 12, .parts = 3, .first_part = 1, .num_parts = 2});
  const std::vector<int64_t> indices{5, 5, 0};
  const auto b = loader.fetch(indices, 2);
  EXPECT_EQ(b->epoch, 2);
  EXPECT_EQ(b->first, -1);
  EXPECT_EQ(b->next_cursor, -1);
  EXPECT_EQ(b->part, 0);
  EXPECT_EQ(b->num_samples, 3);
  EXPECT_EQ(loader.stats().batches, 1);
  EXPECT_EQ(loader.next()->part, 1);
  EXPECT_EQ(loader.stats().batches, 2);
}

TEST_F(Fetch, NothingIsAnEmptyBatch) {
  Loader loader(digits_.dataset, digits_.augment, options_, {.batch_size = 12});
  for (const auto& b : {loader.fetch({}, 0), loader.fetch({}, 1)}) {
    EXPECT_EQ(b->num_samples, 0);
    EXPECT_EQ(b->shape, (Shape{0, 1, 28, 28}));
    EXPECT_TRUE(b->samples.empty());
  }
}

TEST_F(Fetch, RefusesSamplesThatDoNotExist) {
  Loader loader(digits_.dataset, digits_.augment, options_, {.batch_size = 12});
  for (const int64_t wrong : {int64_t{-1}, int64_t{61}, int64_t{1} << 40}) {
    const std::vector<int64_t> indices{3, wrong};
    try {
      loader.fetch(indices, 0);
      FAIL() << wrong;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(e.what()).find("sample " + std::to_string(wrong)), std::string::npos)
          << e.what();
    }
  }
  EXPECT_THROW(loader.fetch(std::vector<int64_t>{0}, -1), Error);
  EXPECT_EQ(loader.next()->num_samples, 12);
}

TEST_F(Fetch, BatchesOutliveTheLoader) {
  std::shared_ptr<const Batch> kept;
  const std::vector<int64_t> indices{8, 1};
  {
    Loader loader(digits_.dataset, digits_.augment, options_, {.batch_size = 12});
    kept = loader.fetch(indices, 0);
    EXPECT_EQ(loader.fetch(std::vector<int64_t>{4}, 0)->samples[0], 4u);  // memory of its own
  }
  Twin twin(digits_.dataset, digits_.augment, 0);
  Copy expected = twin.sample(8, 0);
  EXPECT_EQ(copy_of(*kept), expected += twin.sample(1, 0));
}

TEST_F(Fetch, ABadSampleIsReplacedInTrainingLeftOutInEvaluationAndCounted) {
  const std::vector<int64_t> indices{1, 2, 7, 3, 2};
  options_.shuffle = false;
  Loader train(folder_.dataset, folder_.augment, options_, {.batch_size = 1, .start = 10});
  const auto replaced = train.fetch(indices, 0);
  EXPECT_EQ(copy_of(*replaced).samples, (std::vector<uint64_t>{1, 4, 7, 4, 4}));
  EXPECT_EQ(train.stats().bad_samples, 2);
  ASSERT_EQ(train.stats().bad_items.size(), 2u);
  for (const BadItem& item : train.stats().bad_items) {
    EXPECT_NE(item.where.find("train/cat/1"), std::string::npos) << item.where;
    EXPECT_EQ(item.what.find("train/cat"), std::string::npos) << item.what;  // named once
    EXPECT_FALSE(item.what.empty());
  }

  Loader test(folder_.dataset, folder_.augment, options_,
              {.batch_size = 1, .training = false, .start = 10});
  const auto shorter = test.fetch(indices, 0);
  EXPECT_EQ(copy_of(*shorter).samples, (std::vector<uint64_t>{1, 7}));
  EXPECT_EQ(shorter->shape[0], 2);
  EXPECT_EQ(test.stats().bad_samples, 2);
  EXPECT_EQ(test.fetch(std::vector<int64_t>{3}, 0)->num_samples, 0);
}

TEST_F(Fetch, ABadSampleThatIsNotSkippedFailsAndTheStreamGoesOn) {
  const TempFolder folder;
  make_image_folder(folder.path(), 6);
  write_file_atomic(folder.path() / "train/cat/102.jpg", "not an image");
  spec::DataOptions data;
  data.format = "folder";
  data.path = folder.path().string();
  options_.shuffle = false;
  Loader loader(open_dataset(data, Split::train), folder_.augment, options_,
                {.batch_size = 2, .start = 4});
  std::vector<int64_t> indices(12);
  std::iota(indices.begin(), indices.end(), 0);
  for (int again = 0; again < 2; ++again) {
    try {
      loader.fetch(indices, 0);
      FAIL() << "a corrupt file went unnoticed";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data_loss);
      EXPECT_NE(std::string(e.what()).find("train/cat/102.jpg"), std::string::npos) << e.what();
    }
    EXPECT_EQ(loader.next()->samples[0], static_cast<uint64_t>(4 + 2 * again));
  }
  EXPECT_EQ(loader.fetch(std::vector<int64_t>{0, 1, 3}, 0)->num_samples, 3);
}

}  // namespace
}  // namespace ductile::data
