#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/comm/arena.h"
#include "ductile/comm/calibrate.h"
#include "ductile/comm/communicator.h"
#include "ductile/comm/inproc.h"
#include "ductile/comm/shm_transport.h"
#include "ductile/comm/testing/local_processes.h"
#include "ductile/comm/testing/split_conformance.h"
#include "ductile/comm/testing/transport_conformance.h"

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

// The same memory carries the sums of the groups, and their messages or not.
TransportMaker maker(const char* name, bool messages_too) {
  return {name, [messages_too](int size) {
            TransportSet set;
            auto arenas = Arena::for_threads(size, {.region_bytes = 4 << 20});
            set.arenas.assign(std::make_move_iterator(arenas.begin()),
                              std::make_move_iterator(arenas.end()));
            if (!messages_too) set.ranks = make_inproc_transports(size);
            for (int r = 0; messages_too && r < size; ++r) {
              set.ranks.push_back(make_shm_transport(set.arenas[static_cast<size_t>(r)]));
            }
            return set;
          }};
}

INSTANTIATE_TEST_SUITE_P(Arena, SplitConformance,
                         ::testing::Values(maker("beside_messages", false),
                                           maker("with_messages", true)),
                         [](const auto& info) { return info.param.name; });

TEST(ArenaCommunicator, GroupsSumDataInPlaceWhereItLiesAtEqualOffsets) {
  run_with_arena(4, [](Communicator& comm, Arena& arena) {
    const int64_t n = 100'000;
    auto* const a = reinterpret_cast<float*>(arena.allocate(n * sizeof(float)));
    auto* const b = reinterpret_cast<float*>(arena.allocate(n * sizeof(float)));
    const bool low = comm.rank() < 2;
    const auto row = comm.split(low ? std::vector<int>{1, 0} : std::vector<int>{2, 3});
    const auto column =
        comm.split(comm.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{3, 1});
    EXPECT_TRUE(row->uses_arena(Collective::all_reduce, DType::f32));
    EXPECT_EQ(row->arena(), nullptr);
    for (int round = 0; round < 5; ++round) {
      std::fill_n(a, n, static_cast<float>(comm.rank()));
      std::fill_n(b, n, static_cast<float>(comm.rank()));
      // Ranks differ in which of their groups they come to first.
      Communicator& first = low ? *row : *column;
      Communicator& second = low ? *column : *row;
      float* const x = low ? a : b;
      float* const y = low ? b : a;
      const Work one = first.start_all_reduce(x, x, n, DType::f32);
      const Work two = second.start_all_reduce(y, y, n, DType::f32);
      (round % 2 == 0 ? one : two).wait();
      (round % 2 == 0 ? two : one).wait();
      EXPECT_EQ(a[n - 1], low ? 1.0F : 5.0F);
      EXPECT_EQ(b[n - 1], comm.rank() % 2 == 0 ? 2.0F : 4.0F);
    }
    comm.barrier();
  });
}

TEST(ArenaCommunicator, MoreGroupsThanTheMemoryHasRoomForGoByMessages) {
  run_with_arena(2, [](Communicator& comm, Arena&) {
    std::vector<std::unique_ptr<Communicator>> groups;
    const auto shared = [&] {
      return std::count_if(groups.begin(), groups.end(), [](const auto& g) {
        return g->uses_arena(Collective::all_reduce, DType::f32);
      });
    };
    for (int i = 0; i < 12; ++i) groups.push_back(comm.split(std::vector<int>{1, 0}));
    EXPECT_EQ(shared(), 8);
    for (const auto& g : groups) {
      float x = 1;
      g->all_reduce(&x, &x, 1, DType::f32);
      EXPECT_EQ(x, 2.0F);
    }
    groups.clear();
    comm.barrier();
    for (int i = 0; i < 8; ++i) groups.push_back(comm.split(std::vector<int>{1, 0}));
    EXPECT_EQ(shared(), 8) << "what the first ones had";
    comm.barrier();
  });
}

TEST(ArenaCommunicator, AGroupIsMeasuredForItself) {
  run_with_arena(3, [](Communicator& comm, Arena&) {
    const auto group = comm.rank() != 1 ? comm.split(std::vector<int>{2, 0}) : nullptr;
    if (group != nullptr) {
      EXPECT_EQ(group->fabric().shared_bandwidth, 0) << "not known of fewer ranks";
      const Calibration measured = calibrate(*group);
      EXPECT_GT(measured.fabric.shared_bandwidth, 0);
      EXPECT_EQ(measured.fabric.ranks, 2);
      EXPECT_EQ(group->fabric().inside.latency, measured.fabric.inside.latency);
    }
    EXPECT_EQ(comm.fabric().inside.latency, Fabric{}.inside.latency);
    comm.barrier();
  });
}

// Real processes that sum in two groups and in all at once; one is killed at some moment.
TEST(ArenaCommunicator, AKilledMemberEndsTheGroupsItIsInAndThoseItIsNotIn) {
  for (int trial = 0; trial < 6; ++trial) {
    const int size = 4;
    const std::string name = fresh_arena_name();
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    LocalProcesses processes(size, [&](int rank) {
      using namespace std::chrono_literals;
      std::vector<float> x(50'000), y(50'000), z(50'000);  // outlive what is done with them
      std::shared_ptr<Arena> arena = Arena::meet(name, rank, size, {.region_bytes = 1}, 20s);
      CommunicatorOptions options;
      options.arena = arena;
      Communicator comm(make_shm_transport(arena), options);
      const auto pair = comm.split(rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{3, 2});
      const auto three = rank > 0 ? comm.split(std::vector<int>{3, 1, 2}) : nullptr;
      try {
        for (int i = 0;; ++i) {
          const Work a = pair->start_all_reduce(x.data(), x.data(), 50'000, DType::f32);
          Work b;
          if (three) b = three->start_all_reduce(y.data(), y.data(), 50'000, DType::f32);
          comm.all_reduce(z.data(), z.data(), trial % 2 == 0 ? 50'000 : 3, DType::f32);
          a.wait();
          b.wait();
          if (i == 3 && write(told[1], "r", 1) != 1) return 9;
        }
      } catch (const Error& e) {
        if (e.code() != ErrorCode::peer_lost) return 1;
      }
      for (Communicator* c : {&comm, pair.get(), three.get()}) {
        try {
          if (c != nullptr) c->barrier();
          if (c != nullptr) return 2;
        } catch (const Error& e) {
          if (e.code() != ErrorCode::peer_lost) return 3;
        }
      }
      return 0;
    });
    char ready;
    for (int r = 0; r < size; ++r) ASSERT_EQ(read(told[0], &ready, 1), 1);
    std::this_thread::sleep_for(std::chrono::microseconds(317 * trial));
    const int victim = trial % size;
    processes.signal(victim, SIGKILL);
    for (int r = 0; r < size; ++r) EXPECT_EQ(processes.wait(r), r == victim ? -SIGKILL : 0) << r;
    close(told[0]);
    close(told[1]);
  }
}

}  // namespace
}  // namespace ductile::comm
