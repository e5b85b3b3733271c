#include "ductile/base/aligned_array.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace ductile {
namespace {

TEST(AlignedArray, BeginsOnACacheLineAndIsZeroed) {
  for (const int64_t size : {0, 1, 15, 16, 1000}) {
    AlignedArray<float> a(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 64, 0U);
    EXPECT_EQ(a.size(), size);
    EXPECT_TRUE(std::ranges::all_of(a.span(), [](float x) { return x == 0; }));
  }
}

TEST(AlignedArray, MovesItsMemoryAndIsEmptyByDefault) {
  AlignedArray<std::byte> a = AlignedArray<std::byte>::uninitialized(100), b;
  const std::byte* at = a.data();
  b = std::move(a);
  EXPECT_EQ(b.data(), at);
  EXPECT_EQ(b.span().size(), 100U);
  EXPECT_TRUE(a.span().empty());  // NOLINT(bugprone-use-after-move): specified
  EXPECT_TRUE(AlignedArray<double>().span().empty());
}

TEST(AlignedArray, GrowsOnNeedOnly) {
  AlignedArray<int> a(10);
  const int* at = a.data();
  a.need(10);
  EXPECT_EQ(a.data(), at);
  a.need(11);
  EXPECT_EQ(a.size(), 11);
}

}  // namespace
}  // namespace ductile
