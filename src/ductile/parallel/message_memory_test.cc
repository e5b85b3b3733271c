#include "ductile/parallel/message_memory.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "ductile/base/aligned_array.h"
#include "ductile/comm/arena.h"
#include "ductile/parallel/allocation_count.h"

namespace ductile::parallel {
namespace {

// 24 bytes, in columns.
TensorForm small_form() { return {{2, 3}, {1, 2}, at::kFloat}; }

struct MessageMemoryTest : ::testing::Test {
  AlignedArray<float> array{256};
  MessageMemory memory{{std::as_writable_bytes(array.span()), nullptr}};
};

TEST_F(MessageMemoryTest, LendsABlockAgainOnceNoTensorRefersToIt) {
  at::Tensor a = memory.tensor(small_form());
  const at::Tensor b = memory.tensor(small_form());
  ASSERT_TRUE(a.defined() && b.defined());
  EXPECT_EQ(a.sizes().vec(), small_form().sizes);
  EXPECT_EQ(a.strides().vec(), small_form().strides);
  a.fill_(1);
  b.fill_(2);
  EXPECT_EQ(a.sum().item<float>(), 6);
  EXPECT_EQ(memory.lent(), 128U);
  const void* const place = a.data_ptr();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place) % 64, 0U);
  at::Tensor column = a.select(1, 2);
  a.reset();
  EXPECT_EQ(memory.lent(), 128U) << "a view still refers to it";
  EXPECT_EQ(column.sum().item<float>(), 2);
  column.reset();
  EXPECT_EQ(memory.lent(), 64U);
  EXPECT_EQ(memory.tensor(small_form()).data_ptr(), place);
  EXPECT_EQ(memory.taken_up(), 128U);
}

TEST_F(MessageMemoryTest, HasNothingWhereNoRoomIsLeft) {
  std::vector<at::Tensor> all;
  for (int i = 0; i < 16; ++i) all.push_back(memory.tensor(small_form()));
  EXPECT_TRUE(all.back().defined());
  EXPECT_FALSE(memory.tensor(small_form()).defined());
  EXPECT_EQ(memory.refused(), 1);
  EXPECT_FALSE(memory.tensor({{0, 3}, {3, 1}, at::kFloat}).defined());
  all.clear();
  EXPECT_TRUE(memory.tensor(small_form()).defined());
  EXPECT_FALSE(memory.tensor({{32}, {1}, at::kFloat}).defined()) << "blocks stay as they are";
  EXPECT_EQ(memory.lent(), 0U);
}

TEST_F(MessageMemoryTest, IsCountedAsWhatTheAllocatorGivesOut) {
  const auto count = std::make_shared<AllocationCount>();
  const AllocationCount::Watch watch(count);
  count->begin(7);
  at::Tensor a = memory.tensor(small_form());
  EXPECT_EQ(count->live_of(7), 24);
  count->begin(8);
  a.reset();
  EXPECT_EQ(count->live_of(7), 0);
  EXPECT_EQ(count->most_of(7), 24);
}

TEST(MessageMemory, ATensorOutlivesTheExchangeAndTheArena) {
  const ExchangeLayout layout{.cut = {0, 1, 2}, .vector_size = 10, .message_bytes = 4096};
  at::Tensor kept;
  {
    auto arenas = comm::Arena::for_threads(2, {.region_bytes = arena_bytes(layout)});
    const std::shared_ptr<comm::Arena> own = std::move(arenas[1]);
    const auto exchange = make_exchange(own, layout);
    ReceiveMemory received = exchange->receive_memory();
    ASSERT_EQ(received.bytes.size(), 4096U);
    EXPECT_TRUE(own->holds(received.bytes.data(), received.bytes.size()));
    MessageMemory memory(std::move(received));
    kept = memory.tensor(small_form());
    kept.fill_(3);
  }
  EXPECT_EQ(kept.sum().item<float>(), 18);
}

TEST(MessageMemory, AWorkerThatIsAloneOrReceivesNothingNeedsNone) {
  for (const ExchangeLayout& layout :
       {ExchangeLayout{.cut = {0, 2}, .vector_size = 10, .message_bytes = 4096},
        ExchangeLayout{.cut = {0, 1, 2}, .vector_size = 10}}) {
    auto arenas =
        comm::Arena::for_threads(layout.num_workers(), {.region_bytes = arena_bytes(layout)});
    const auto exchange = make_exchange(std::shared_ptr(std::move(arenas[0])), layout);
    EXPECT_TRUE(exchange->receive_memory().bytes.empty());
  }
}

}  // namespace
}  // namespace ductile::parallel
