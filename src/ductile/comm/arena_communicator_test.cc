#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/comm/arena.h"
#include "ductile/comm/communicator.h"
#include "ductile/comm/inproc.h"

namespace ductile::comm {
namespace {

// Ranks as threads that share an arena, with messages beside it.
void run_with_arena(int size, const std::function<void(Communicator&, Arena&)>& body,
                    CommunicatorOptions options = {}) {
  auto arenas = Arena::for_threads(size, {.region_bytes = 4 << 20});
  auto transports = make_inproc_transports(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r, options]() mutable {
      options.arena = std::move(arenas[r]);
      const auto arena = options.arena;
      Communicator comm(std::move(transports[r]), options);
      body(comm, *arena);
    });
  }
  for (auto& t : threads) t.join();
}

TEST(ArenaCommunicator, AStallInSharedMemoryNamesTheMissingRank) {
  std::atomic<int> told{0};
  std::atomic<bool> go{false};
  CommunicatorOptions options;
  options.engine.soft_deadline = std::chrono::milliseconds(50);
  options.engine.on_stall = [&](const Stall& stall) {
    EXPECT_EQ(stall.operation, "all_reduce of 16 bytes (shared memory)");
    EXPECT_EQ(stall.ranks, std::vector<int>{1});
    if (++told == 2) go = true;
  };
  run_with_arena(
      3,
      [&](Communicator& comm, Arena&) {
        float data[4] = {1, 1, 1, 1};
        while (comm.rank() == 1 && !go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const Work work = comm.start_all_reduce(data, data, 4, DType::f32);
        if (comm.rank() == 0) {
          while (told < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        work.wait();
        EXPECT_EQ(data[3], 3.0f);
      },
      options);
  EXPECT_EQ(told, 2);
}

TEST(ArenaCommunicator, SumsThroughSharedMemoryBesideMessages) {
  run_with_arena(3, [](Communicator& comm, Arena& arena) {
    EXPECT_TRUE(comm.uses_arena(Collective::all_reduce, DType::f32));
    EXPECT_FALSE(comm.uses_arena(Collective::all_gather, DType::f32));
    auto* shared = reinterpret_cast<float*>(arena.allocate(40'000));
    std::vector<float> own(10'000, 2.0f);
    std::vector<float> out(10'000);
    for (int round = 0; round < 5; ++round) {
      std::fill_n(shared, 10'000, 1.0f + comm.rank());
      const Work a = comm.start_all_reduce(shared, shared, 10'000, DType::f32);
      std::vector<int32_t> ring(777, comm.rank());
      CallOptions by_messages;
      by_messages.algorithm = Algorithm::ring;
      const Work b = comm.start_all_reduce(ring.data(), ring.data(), 777, DType::i32, by_messages);
      const Work c = comm.start_all_reduce(own.data(), out.data(), 10'000, DType::f32);
      std::byte x{1};
      std::byte y{};
      const Work d = comm.start_receive((comm.rank() + 2) % 3, 5, {&y, 1});
      comm.send((comm.rank() + 1) % 3, 5, {&x, 1});
      (round % 2 == 0 ? c : a).wait();
      d.wait();
      b.wait();
      a.wait();
      c.wait();
      EXPECT_EQ(shared[9'999], 6.0f);
      EXPECT_EQ(out[9'999], 6.0f);
      EXPECT_EQ(ring[776], 3);
      EXPECT_EQ(y, x);
      comm.barrier();
      double value = comm.rank() == 1 ? 7.0 : 0.0;
      comm.broadcast(&value, 1, DType::f64, 1);
      EXPECT_EQ(value, 7.0);
    }
  });
}

TEST(ArenaCommunicator, ALossSeenByEitherEndsBoth) {
  run_with_arena(3, [](Communicator& comm, Arena& arena) {
    comm.barrier();
    if (comm.rank() == 2) return;
    float x = 1;
    std::byte y{};
    const Work message = comm.start_receive(1 - comm.rank(), 5, {&y, 1});
    const Work sum = comm.start_all_reduce(&x, &x, 1, DType::f32);
    if (comm.rank() == 0) comm.report_loss({{2}, "rank 2 is gone"});
    EXPECT_THROW(sum.wait(), Error);
    EXPECT_THROW(message.wait(), Error);
    EXPECT_TRUE(arena.failed());
    EXPECT_THROW(comm.barrier(), Error);
  });
}

}  // namespace
}  // namespace ductile::comm
