#include "ductile/base/pages.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace ductile {
namespace {

constexpr int64_t kSize = 4 << 20;  // floats, 16 MiB

// The process's own memory that is resident, in bytes.
int64_t resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return 1024 * std::atoll(line.c_str() + 8);
  }
  return 0;
}

TEST(Pages, WhatIsGivenBackIsZeroAndItsNeighboursStay) {
  AlignedArray<float> values(kSize);
  std::ranges::fill(values.span(), 1.0F);
  const int64_t before = resident();
  const auto asked = std::as_writable_bytes(values.span().subspan(5, kSize - 10));
  const std::span<std::byte> given = give_back(asked);
  ASSERT_GT(given.size(), asked.size() / 2);
  EXPECT_LT(resident(), before - kSize * 2);
  for (size_t i = 0; i < values.span().size(); ++i) {
    const auto* const at = reinterpret_cast<const std::byte*>(values.data() + i);
    const bool gone = given.data() <= at && at < given.data() + given.size();
    ASSERT_EQ(values.span()[i], gone ? 0.0F : 1.0F) << i;
    ASSERT_FALSE(gone && (i < 5 || i >= values.span().size() - 5)) << i;
  }
}

TEST(Pages, ALittleHasNoPageOfItsOwn) {
  std::vector<std::byte> values(100, std::byte{1});
  EXPECT_TRUE(give_back(values).empty());
  EXPECT_TRUE(give_back({}).empty());
  EXPECT_EQ(values, std::vector<std::byte>(100, std::byte{1}));
}

TEST(Pages, UntouchedZerosAreZeroAndTakeNoMemory) {
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{5000}, kSize}) {
    if (size < kSize) {
      AlignedArray<float> used(size);
      std::ranges::fill(used.span(), 1.0F);
    }
    const int64_t before = resident();
    const auto values = untouched_zeros<float>(size);
    EXPECT_LT(resident() - before, kSize * 2);
    EXPECT_EQ(values.size(), size);
    EXPECT_TRUE(std::ranges::all_of(values.span(), [](float x) { return x == 0; })) << size;
  }
}

// Small pieces between which others live do not come back by themselves.
TEST(Pages, WhatWasFreedComesBack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
  GTEST_SKIP() << "another allocator";
#endif
  std::vector<std::vector<char>> pieces;
  for (int i = 0; i < 2048; ++i) pieces.emplace_back(32'000, 'x');
  const int64_t before = resident();
  for (size_t i = 0; i + 1 < pieces.size(); ++i) std::vector<char>().swap(pieces[i]);
  give_back_freed();
  EXPECT_LT(resident(), before - (int64_t{32} << 20));
  EXPECT_EQ(pieces.back(), std::vector<char>(32'000, 'x'));
}

}  // namespace
}  // namespace ductile
