#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/data/cursor.h"
#include "ductile/data/loader.h"
#include "ductile/data/testing/loader_twin.h"

namespace ductile::data {
namespace {

int64_t draw(std::mt19937& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

// Loaders that host the parts [0, cut) and [cut, parts) of the same run.
struct Hosts {
  Hosts(const SmallSets::Kind& kind, std::mt19937& random, uint64_t seed, int64_t parts,
        int64_t batch_size) {
    spec::LoaderOptions options;
    options.cache_mb = 0;
    const int64_t cut = draw(random, 1, parts);
    for (const auto& [first, end] : {std::pair(int64_t{0}, cut), std::pair(cut, parts)}) {
      if (first == end) continue;
      options.threads = draw(random, 0, 4);
      options.prefetch = draw(random, 1, 6);
      loaders.push_back(std::make_unique<Loader>(kind.dataset, kind.augment, options,
                                                 LoaderTask{.seed = seed,
                                                            .batch_size = batch_size,
                                                            .parts = parts,
                                                            .first_part = first,
                                                            .num_parts = end - first}));
      counts.push_back(end - first);
    }
  }

  void restart(int64_t cursor, int64_t batch_size) {
    for (const auto& loader : loaders) loader->restart(cursor, batch_size);
  }
  void skip_one() { loaders.back()->next(); }

  // All parts of the next step, which must be the one `at` this place.
  Copy step(const StepSamples& at, int64_t part_size) {
    Copy whole;
    int64_t part = 0;
    for (size_t i = 0; i < loaders.size(); ++i) {
      for (int64_t k = 0; k < counts[i]; ++k, ++part) {
        const auto b = loaders[i]->next();
        EXPECT_EQ(b->part, part);
        EXPECT_EQ(b->epoch, at.epoch);
        EXPECT_EQ(b->first, at.first + part * part_size);
        EXPECT_EQ(b->next_cursor, at.next);
        EXPECT_EQ(b->num_samples, part_size);
        whole += copy_of(*b);
      }
    }
    return whole;
  }

  std::vector<std::unique_ptr<Loader>> loaders;
  std::vector<int64_t> counts;
};

class Restart : public ::testing::Test {
 protected:
  const SmallSets sets_;
};

// The batch size changes, the cursor jumps and stays, steps are left half taken: at every step each
// loader gives its parts of what the twin reads.
TEST_F(Restart, FollowsAnySequenceOfBatchSizesAndCursors) {
  for (const auto& kind : sets_.kinds()) {
    const int64_t size = kind.dataset->info().size;
    for (unsigned seed = 0; seed < 12; ++seed) {
      SCOPED_TRACE(kind.name + ", seed " + std::to_string(seed));
      std::mt19937 random(seed);
      const int64_t parts = draw(random, 1, 4);
      const auto any_batch_size = [&] { return parts * draw(random, 1, size / parts); };
      int64_t batch_size = any_batch_size();
      Hosts hosts(kind, random, seed, parts, batch_size);
      Twin twin(kind.dataset, kind.augment, seed);
      for (int step = 0; step < 20; ++step) {
        switch (draw(random, 0, 5)) {
          case 0:  // other steps from here on
            batch_size = any_batch_size();
            hosts.restart(twin.cursor(), batch_size);
            break;
          case 1:  // nothing new
            hosts.restart(twin.cursor(), batch_size);
            break;
          case 2:  // anywhere
            twin.go_to(draw(random, 0, 5 * size));
            hosts.restart(twin.cursor(), batch_size);
            break;
          case 3:  // a step that began and is repeated
            hosts.skip_one();
            hosts.restart(twin.cursor(), batch_size);
            break;
          default:
            break;
        }
        const StepSamples at = samples_of_step(twin.cursor(), batch_size, size);
        ASSERT_EQ(hosts.step(at, batch_size / parts), twin.step(batch_size));
        ASSERT_EQ(twin.cursor(), at.next);
      }
    }
  }
}

// What a run gave before cursors existed: step s of an epoch holds positions [s * B, (s + 1) * B).
TEST_F(Restart, OneBatchSizeGivesTheBatchesOfNumberedSteps) {
  for (const auto& kind : sets_.kinds()) {
    const int64_t size = kind.dataset->info().size;
    for (const int64_t batch_size : {int64_t{4}, int64_t{7}, size}) {
      spec::LoaderOptions options;
      options.cache_mb = 0;
      Twin twin(kind.dataset, kind.augment, 3);
      const int64_t per_epoch = size / batch_size;
      Loader loader(kind.dataset, kind.augment, options, {.seed = 3, .batch_size = batch_size});
      for (int64_t step = 0; step < 2 * per_epoch + 1; ++step) {
        const int64_t epoch = step / per_epoch, first = step % per_epoch * batch_size;
        const Permutation order(3, static_cast<uint64_t>(epoch), size);
        Copy expected;
        for (int64_t i = 0; i < batch_size; ++i) expected += twin.sample(order[first + i], epoch);
        const auto b = loader.next();
        ASSERT_EQ(b->epoch, epoch);
        ASSERT_EQ(b->first, first);
        ASSERT_EQ(copy_of(*b), expected) << kind.name << ", step " << step;
        // And so does a loader that starts there.
        if (step % 5 != 0) continue;
        Loader late(
            kind.dataset, kind.augment, options,
            {.seed = 3, .batch_size = batch_size, .start = cursor_after(step, batch_size, size)});
        ASSERT_EQ(copy_of(*late.next()), expected) << kind.name << ", step " << step;
      }
    }
  }
}

// Counts how often each sample is read.
class CountingDataset final : public Dataset {
 public:
  explicit CountingDataset(int64_t size) : reads_(static_cast<size_t>(size)) {
    info_.format = "counting";
    info_.size = size;
    info_.num_classes = 2;
    info_.channels = 1;
    info_.height = info_.width = 4;
    info_.mean = info_.std = {0.5};
  }
  int64_t label(int64_t index) const override { return index % 2; }
  Sample read(int64_t index, std::vector<std::byte>&) const override {
    ++reads_[static_cast<size_t>(index)];
    ++total_;
    return {Encoding::pixels, pixels_, 4, 4, 1};
  }
  std::string where(int64_t index) const override { return "sample " + std::to_string(index); }
  bool in_memory() const override { return true; }

  int64_t total() const { return total_; }
  int reads(int64_t index) const { return reads_[static_cast<size_t>(index)]; }

 private:
  mutable std::vector<std::atomic<int>> reads_;
  mutable std::atomic<int64_t> total_ = 0;
  const std::vector<std::byte> pixels_ = std::vector<std::byte>(16);
};

TEST_F(Restart, ThrowsNothingAwayWhereTheNextBatchStaysTheSame) {
  const auto set = std::make_shared<CountingDataset>(103);
  spec::LoaderOptions options;
  options.prefetch = 3;
  Loader loader(set, {}, options, {.batch_size = 10});
  const auto all_read = [&](int64_t count) {
    while (set->total() < count) std::this_thread::yield();
  };
  int64_t cursor = 0;
  for (int64_t step = 0; step < 7; ++step) {
    all_read(10 * (step + 3));
    loader.restart(cursor, 10);
    const auto b = loader.next();
    EXPECT_EQ(b->first, cursor);
    cursor = b->next_cursor;
  }
  for (int64_t i = 0; i < 103; ++i) EXPECT_LE(set->reads(i), 1) << i;
  // The end of the epoch, where three samples are dropped, and the next epoch's start are one.
  for (int step = 0; step < 3; ++step) loader.next();
  all_read(10 * 13);
  loader.restart(100, 10);
  loader.restart(103, 10);
  EXPECT_EQ(loader.next()->epoch, 1);
  all_read(10 * 14);
  EXPECT_EQ(set->total(), 140);
  // Another batch size reads anew.
  loader.restart(113, 20);
  all_read(140 + 60);
}

TEST_F(Restart, RefusesWhatDoesNotFitAndGoesOnAsBefore) {
  const auto& kind = sets_.kinds().front();
  Loader loader(kind.dataset, kind.augment, {}, {.batch_size = 12, .parts = 3, .num_parts = 3});
  EXPECT_THROW(loader.restart(0, 10), Error);
  EXPECT_THROW(loader.restart(0, 63), Error);
  EXPECT_THROW(loader.restart(0, 0), Error);
  EXPECT_THROW(loader.restart(-1, 12), Error);
  Twin twin(kind.dataset, kind.augment, 0);
  Copy step;
  for (int part = 0; part < 3; ++part) step += copy_of(*loader.next());
  EXPECT_EQ(step, twin.step(12));
}

TEST_F(Restart, ForgetsAnError) {
  const TempFolder folder;
  make_image_folder(folder.path(), 6);
  write_file_atomic(folder.path() / "train/cat/102.jpg", "not an image");
  spec::DataOptions data;
  data.format = "folder";
  data.path = folder.path().string();
  spec::AugmentOptions augment;
  augment.crop = 16;
  spec::LoaderOptions options;
  options.shuffle = false;
  Loader loader(open_dataset(data, Split::train), augment, options, {.batch_size = 2});
  EXPECT_EQ(loader.next()->samples[0], 0u);
  EXPECT_THROW(loader.next(), Error);  // samples 2 and 3
  EXPECT_THROW(loader.next(), Error);  // it is final
  loader.restart(4, 2);
  EXPECT_EQ(loader.next()->samples[0], 4u);
  loader.restart(2, 2);
  EXPECT_THROW(loader.next(), Error);
}

TEST_F(Restart, AnEvaluationLoaderMakesAnotherPass) {
  const auto& kind = sets_.kinds().front();
  Loader loader(kind.dataset, kind.augment, {}, {.batch_size = 25, .training = false});
  const auto pass = [&] {
    std::vector<std::pair<int64_t, int64_t>> seen;  // first sample, how many
    while (const auto b = loader.next()) {
      EXPECT_EQ(b->samples[0], static_cast<uint64_t>(b->first));
      EXPECT_EQ(b->next_cursor, b->first + b->num_samples);
      seen.emplace_back(b->first, b->num_samples);
    }
    return seen;
  };
  using Seen = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(pass(), (Seen{{0, 25}, {25, 25}, {50, 11}}));
  EXPECT_EQ(pass(), Seen{});
  loader.restart(0, 40);
  EXPECT_EQ(pass(), (Seen{{0, 40}, {40, 21}}));
  loader.restart(50, 40);
  loader.restart(55, 40);  // ends where the other would have ended
  EXPECT_EQ(pass(), (Seen{{55, 6}}));
  loader.restart(1000, 40);
  EXPECT_EQ(pass(), Seen{});
}

}  // namespace
}  // namespace ductile::data
