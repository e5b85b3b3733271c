#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/ckpt/layout_impl.h"

namespace ductile::ckpt {
namespace {

std::vector<TensorView> tensors_of(const std::vector<std::pair<std::string, size_t>>& sizes,
                                   const std::vector<std::byte>& room) {
  std::vector<TensorView> all;
  for (const auto& [name, n] : sizes) {
    all.push_back({name, DType::u8, {static_cast<int64_t>(n)}, std::span(room).first(n)});
  }
  return all;
}

RC_GTEST_PROP(Layout, TilesTheStreamWhateverTheOrderGiven, ()) {
  const std::vector<std::byte> room(50000);
  std::vector<std::pair<std::string, size_t>> sizes;
  const int count = *rc::gen::inRange(0, 30);
  for (int i = 0; i < count; ++i) {
    const char* section = *rc::gen::element("", "a/", "b/");
    sizes.emplace_back(
        section + std::to_string(i),
        static_cast<size_t>(*rc::gen::inRange(0, 3) == 0 ? *rc::gen::inRange(0, 50000)
                                                         : *rc::gen::inRange(0, 500)));
  }
  const int64_t chunk_bytes = 4096 * *rc::gen::inRange(1, 5);
  const Layout layout = plan_layout(tensors_of(sizes, room), chunk_bytes);
  int64_t end = 0;
  for (size_t i : layout.order) {
    RC_ASSERT(layout.tensor_offsets[i] == end);
    end += static_cast<int64_t>(sizes[i].second);
  }
  RC_ASSERT(end == layout.total_bytes);
  RC_ASSERT(std::accumulate(layout.chunk_sizes.begin(), layout.chunk_sizes.end(), int64_t{0}) ==
            end);
  for (int64_t size : layout.chunk_sizes) RC_ASSERT(size >= 1 && size <= chunk_bytes);

  auto reversed = sizes;
  std::reverse(reversed.begin(), reversed.end());
  const Layout again = plan_layout(tensors_of(reversed, room), chunk_bytes);
  RC_ASSERT(again.chunk_sizes == layout.chunk_sizes);
}

TEST(Layout, SmallTensorsShareChunksWithinASectionAndLargeOnesHaveTheirOwn) {
  const std::vector<std::byte> room(10000);
  const auto chunks = [&](const std::vector<std::pair<std::string, size_t>>& sizes) {
    return plan_layout(tensors_of(sizes, room), 4096).chunk_sizes;
  };
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(chunks({{"m/a", 100}, {"m/b", 200}, {"o/a", 300}}), (Sizes{300, 300}));
  EXPECT_EQ(chunks({{"m/a", 100}, {"m/big", 10000}, {"m/c", 200}}), (Sizes{4096, 4096, 1808, 300}));
  EXPECT_EQ(chunks({{"a", 2000}, {"b", 2000}, {"c", 2000}}), (Sizes{4000, 2000}));
  EXPECT_EQ(chunks({{"a", 0}}), Sizes{});
}

TEST(Layout, ChunksGrowWithTheStateWithinBounds) {
  const std::vector<std::byte> room(40 << 20);
  EXPECT_EQ(default_chunk_bytes(tensors_of({{"a", 1000}}, room)), 256 << 10);
  EXPECT_EQ(default_chunk_bytes(tensors_of({{"a", 40 << 20}}, room)), 1 << 20);
  const std::vector<std::pair<std::string, size_t>> many(20, {"a", 40 << 20});
  EXPECT_EQ(default_chunk_bytes(tensors_of(many, room)), 4 << 20);
}

}  // namespace
}  // namespace ductile::ckpt
