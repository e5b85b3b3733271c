// data.format = "synthetic": samples of several inputs, the same whoever draws them.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/data/convert.h"
#include "ductile/data/dataset.h"
#include "ductile/data/inspect.h"
#include "ductile/data/loader.h"

namespace ductile::data {
namespace {

spec::DataOptions small_set() {
  spec::DataOptions options;
  options.format = "synthetic";
  options.synthetic.inputs = {"vector:5", "tokens:3:9", "indices:2:1000"};
  options.synthetic.classes = 4;
  options.synthetic.samples = 300;
  options.synthetic.test_samples = 40;
  return options;
}

std::vector<std::byte> bytes_of(const Dataset& set, int64_t index) {
  std::vector<std::byte> scratch;
  const Sample sample = set.read(index, scratch);
  return {sample.bytes.begin(), sample.bytes.end()};
}

TEST(Synthetic, ASampleDependsOnSeedSplitAndIndexAlone) {
  spec::DataOptions options = small_set();
  const auto set = open_dataset(options, Split::train), again = open_dataset(options, Split::train);
  EXPECT_EQ(set->info().size, 300);
  EXPECT_EQ(set->info().inputs.size(), 3U);
  EXPECT_EQ(bytes_of(*set, 7).size(), 5 * sizeof(float) + 6 * sizeof(int64_t));
  EXPECT_EQ(bytes_of(*set, 7), bytes_of(*again, 7));
  EXPECT_NE(bytes_of(*set, 7), bytes_of(*set, 8));
  EXPECT_NE(bytes_of(*set, 7), bytes_of(*open_dataset(options, Split::test), 7));
  options.synthetic.samples = 8;  // the size changes no sample
  EXPECT_EQ(bytes_of(*set, 7), bytes_of(*open_dataset(options, Split::train), 7));
  options.synthetic.seed = 2;
  EXPECT_NE(bytes_of(*set, 7), bytes_of(*open_dataset(options, Split::train), 7));
}

TEST(Synthetic, NumbersAreInTheirRangesAndEveryClassIsThere) {
  const auto set = open_dataset(small_set(), Split::train);
  std::vector<int64_t> classes(4, 0);
  int64_t small = 0;
  for (int64_t i = 0; i < set->info().size; ++i) {
    const std::vector<std::byte> bytes = bytes_of(*set, i);
    int64_t numbers[6];
    std::memcpy(numbers, bytes.data() + 5 * sizeof(float), sizeof numbers);
    for (int n = 0; n < 3; ++n) EXPECT_TRUE(numbers[n] >= 0 && numbers[n] < 9) << numbers[n];
    for (int n = 3; n < 5; ++n) {
      EXPECT_TRUE(numbers[n] >= 0 && numbers[n] < 1000) << numbers[n];
      small += numbers[n] < 125;
    }
    EXPECT_EQ(set->label(i), numbers[5]);
    ++classes.at(static_cast<size_t>(set->label(i)));
  }
  EXPECT_GT(std::ranges::min(classes), 5);
  EXPECT_NEAR(static_cast<double>(small) / 600, 0.5, 0.1);  // u^3 < 1/8
}

TEST(Synthetic, ABatchHoldsEachInputByItself) {
  const auto set = open_dataset(small_set(), Split::train);
  spec::LoaderOptions options;
  options.threads = 2;
  LoaderTask task;
  task.batch_size = 30;
  task.parts = 3;
  task.first_part = 1;
  task.num_parts = 2;
  Loader loader(set, {}, options, task);
  for (int n = 0; n < 25; ++n) {  // over the end of an epoch
    const auto batch = loader.next();
    ASSERT_EQ(batch->num_samples, 10);
    ASSERT_EQ(batch->inputs.size(), 3U);
    EXPECT_EQ(batch->inputs[0].data, batch->input);
    EXPECT_EQ(batch->inputs[1].dtype, DType::i64);
    EXPECT_EQ(batch->inputs[2].shape, Shape({10, 2}));
    for (int64_t i = 0; i < 10; ++i) {
      const auto index = static_cast<int64_t>(batch->samples[static_cast<size_t>(i)]);
      const std::vector<std::byte> want = bytes_of(*set, index);
      size_t at = 0;
      for (const BatchInput& input : batch->inputs) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(input.data) % 64, 0U);
        const size_t size = static_cast<size_t>(input.shape[1]) * size_of(input.dtype);
        EXPECT_EQ(std::memcmp(input.data + static_cast<size_t>(i) * size, want.data() + at, size),
                  0);
        at += size;
      }
      EXPECT_EQ(batch->labels[i], set->label(index));
    }
  }
}

TEST(Synthetic, ATeacherThatWouldFillTheMemoryIsRefused) {
  spec::DataOptions options = small_set();
  options.synthetic.inputs = {"15*vector:65536"};
  options.synthetic.classes = 1000;
  try {
    open_dataset(options, Split::train);
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(e.message().find("983040000 weights"), std::string::npos) << e.message();
  }
}

TEST(Synthetic, EvaluationEndsWithAShortBatch) {
  LoaderTask task;
  task.batch_size = 32;
  task.training = false;
  Loader loader(open_dataset(small_set(), Split::test), {}, {}, task);
  EXPECT_EQ(loader.next()->num_samples, 32);
  const auto last = loader.next();
  EXPECT_EQ(last->inputs[2].shape, Shape({8, 2}));
  EXPECT_EQ(loader.next(), nullptr);
}

TEST(Synthetic, IsInspectedAndNotConverted) {
  const InspectResult result = inspect(small_set(), Split::train);
  EXPECT_EQ(result.good, 300);
  EXPECT_TRUE(result.bad.empty());
  EXPECT_EQ(result.class_counts.size(), 4U);
  ConvertOptions options;
  options.out = "/nonexistent";
  EXPECT_THROW(convert(small_set(), Split::train, options), Error);
}

}  // namespace
}  // namespace ductile::data
