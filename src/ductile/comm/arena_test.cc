#include "ductile/comm/arena.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/comm/arena_impl.h"
#include "ductile/comm/shm_collectives.h"
#include "ductile/comm/testing/local_processes.h"

namespace ductile::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The patience of these tests with a loaded machine.
constexpr auto kPatience = 20s;

// Memory that the test and its child processes share, to tell what happened when.
struct Board {
  std::atomic<int> ready[8];
  std::atomic<int64_t> ended[8];  // steady clock, microseconds
  std::atomic<int> code[8];
  char text[8][600];
};

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch())
      .count();
}

class ArenaFaults : public ::testing::Test {
 protected:
  ArenaFaults() {
    board_ = new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0)) Board{};
  }
  ~ArenaFaults() override { munmap(board_, sizeof(Board)); }

  // Processes that run `body` until it throws, and note when and why.
  LocalProcesses start(int size, size_t region_bytes, std::chrono::nanoseconds stall_deadline,
                       const std::function<void(Arena&)>& body) {
    const std::string name = fresh_arena_name();
    return LocalProcesses(size, [=, this](int rank) {
      const auto arena = Arena::meet(
          name, rank, size,
          {.region_bytes = region_bytes, .generation = 7, .stall_deadline = stall_deadline},
          kPatience);
      try {
        body(*arena);
      } catch (const Error& e) {
        board_->ended[rank] = now_us();
        std::strncpy(board_->text[rank], e.what(), sizeof board_->text[rank] - 1);
        board_->code[rank] = e.code() == ErrorCode::peer_lost ? 1 : 2;
        return 0;
      }
      return 1;
    });
  }

  template <class Ready>
  static bool await(const Ready& ready) {
    const auto deadline = Clock::now() + kPatience;
    while (!ready()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }
  bool await_ready(int size, int value) {
    return await([&] {
      return std::all_of(board_->ready, board_->ready + size,
                         [&](const auto& r) { return r >= value; });
    });
  }

  Board* board_;
};

TEST(Arena, BlocksLieAtEqualOffsetsAndAreAligned) {
  const auto arenas = Arena::for_threads(3, {.region_bytes = 8 << 20});
  std::vector<std::byte*> blocks[3];
  for (int r = 0; r < 3; ++r) {
    for (const size_t bytes : {100, 3 << 20, 5, 1000}) {
      blocks[r].push_back(arenas[r]->allocate(bytes));
      const size_t align = bytes >= 2 << 20 ? 2 << 20 : 64;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks[r].back()) % align, 0u);
    }
  }
  for (int r = 0; r < 3; ++r) {
    for (size_t b = 0; b < blocks[0].size(); ++b) {
      for (int p = 0; p < 3; ++p) EXPECT_EQ(arenas[r]->peer(p, blocks[r][b]), blocks[p][b]);
    }
    EXPECT_TRUE(arenas[r]->holds(blocks[r][0], 8 << 20));
    EXPECT_FALSE(arenas[r]->holds(blocks[r][0], (8 << 20) + 1));
    EXPECT_FALSE(arenas[r]->holds(blocks[(r + 1) % 3][0], 1));
  }
  int outside = 0;
  EXPECT_EQ(arenas[0]->peer(1, reinterpret_cast<std::byte*>(&outside)), nullptr);
}

TEST(Arena, AFullRegionSaysSoAndReleasedMemoryComesBack) {
  const auto arenas = Arena::for_threads(1, {.region_bytes = 4 << 20});
  Arena& arena = *arenas[0];
  const size_t mark = arena.mark();
  std::byte* const first = arena.allocate(3 << 20);
  try {
    arena.allocate(2 << 20);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unavailable);
  }
  arena.release(mark);
  EXPECT_EQ(arena.allocate(4 << 20), first);
}

TEST(Arena, AWaitYieldsAFewTimesBeforeItSleeps) {
  for (const int spins : {0, 200}) {
    Patience patience(spins);
    while (patience.pause()) {
    }
    EXPECT_GE(patience.yields(), 1);
    EXPECT_LE(patience.yields(), kMostYields);
    EXPECT_FALSE(patience.pause());
  }
}

TEST(Arena, ARankThatLeavesIsLostOnlyToThoseWhoWaitForIt) {
  auto arenas = Arena::for_threads(3, {.region_bytes = 1});
  arenas[2].reset();
  EXPECT_NO_THROW(arenas[0]->check(true));
  std::vector<std::jthread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      try {
        barrier(*arenas[r]);
        ADD_FAILURE();
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::peer_lost);
        EXPECT_NE(std::string(e.what()).find("rank 2 left"), std::string::npos) << e.what();
      }
    });
  }
}

TEST(Arena, AReportedLossEndsEveryWaitWithTheFirstReason) {
  const auto arenas = Arena::for_threads(4, {.region_bytes = 1, .labels = {10, 11, 12, 13}});
  std::vector<std::jthread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      try {
        barrier(*arenas[r]);
        ADD_FAILURE();
      } catch (const Error& e) {
        const std::string text = e.what();
        EXPECT_NE(text.find("no heartbeat"), std::string::npos) << text;
        EXPECT_NE(text.find("waiting for rank 13"), std::string::npos) << text;
      }
      EXPECT_TRUE(arenas[r]->failed());
      EXPECT_EQ(arenas[r]->loss().value_or(PeerLoss{}).ranks, std::vector<int>{3});
      EXPECT_THROW(barrier(*arenas[r]), Error);
    });
  }
  std::this_thread::sleep_for(30ms);
  EXPECT_NE(arenas[3]->stall_report().find("waiting for rank 13 (last in #0)"), std::string::npos)
      << arenas[3]->stall_report();
  arenas[3]->fail({{3}, "no heartbeat"});
  arenas[3]->fail({{2}, "a second reason"});
}

TEST(Arena, AStallIsToldOnceWithTheRanksThatHaveNotComeAndTheCollectiveGoesOn) {
  auto arenas = Arena::for_threads(4, {.region_bytes = 1 << 20, .labels = {10, 11, 12, 13}});
  std::mutex mutex;
  std::vector<Stall> told;
  std::atomic<bool> go{false};
  std::vector<std::jthread> threads;
  for (int r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      Arena& arena = *arenas[r];
      arena.report_stalls(50ms, [&](const Stall& stall) {
        const std::lock_guard lock(mutex);
        told.push_back(stall);
      });
      barrier(arena);
      while (r % 2 == 1 && !go) std::this_thread::sleep_for(1ms);
      auto* data = arena.allocate(80'000);
      all_reduce(arena, DType::f32, data, 20'000);
      EXPECT_FALSE(arena.stall());
    });
  }
  const auto deadline = Clock::now() + kPatience;
  const auto enough = [&] {
    const std::lock_guard lock(mutex);
    return told.size() >= 2;
  };
  while (!enough() && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(120ms);  // no second report
  const auto now = arenas[0]->stall();
  EXPECT_TRUE(now && now->ranks == std::vector<int>({11, 13}) && now->seconds > 0.1);
  EXPECT_FALSE(arenas[1]->stall()) << "it waits for nobody";
  go = true;
  threads.clear();
  ASSERT_EQ(told.size(), 2u);
  for (const Stall& stall : told) {
    EXPECT_EQ(stall.operation, "all_reduce of 80000 bytes (shared memory)");
    EXPECT_EQ(stall.ranks, (std::vector<int>{11, 13}));
    EXPECT_GE(stall.seconds, 0.05);
    EXPECT_NE(to_string(stall).find("for ranks 11 and 13"), std::string::npos) << to_string(stall);
  }
}

TEST(Arena, AMeetingRefusesStrangersAndOtherGenerationsAndGoesOn) {
  const std::string name = fresh_arena_name();
  LocalProcesses processes(4, [&](int process) {
    const auto meet = [&](int rank, uint64_t generation, std::chrono::nanoseconds patience) {
      return Arena::meet(name, rank, 2, {.region_bytes = 4096, .generation = generation}, patience);
    };
    if (process == 2) {  // comes from the generation before
      try {
        meet(1, 4, 200ms);
      } catch (const Error& e) {
        return e.code() == ErrorCode::deadline ? 0 : 1;
      }
      return 2;
    }
    if (process == 3) {  // writes nonsense, and more nonsense than fits
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      const std::string path = fmt::format("ductile/{}/{}", geteuid(), name);
      std::copy(path.begin(), path.end(), address.sun_path + 1);
      const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
      for (const size_t bytes : {1, 40, 100000}) {
        const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        const auto deadline = Clock::now() + 200ms;
        while (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 &&
               Clock::now() < deadline) {
          std::this_thread::sleep_for(1ms);
        }
        const std::vector<char> nonsense(bytes, 'x');
        (void)send(fd, nonsense.data(), bytes, MSG_NOSIGNAL);
        close(fd);
      }
      return 0;
    }
    if (process == 1) std::this_thread::sleep_for(400ms);
    const auto arena = meet(process, 5, kPatience);
    barrier(*arena);
    return arena->generation() == 5 ? 0 : 1;
  });
  for (int p = 0; p < 4; ++p) EXPECT_EQ(processes.wait(p), 0) << p;
}

TEST(Arena, AMeetingThatStaysIncompleteNamesTheMissing) {
  try {
    Arena::meet(fresh_arena_name(), 0, 3, {.region_bytes = 4096}, 50ms);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::deadline);
    EXPECT_NE(std::string(e.what()).find("1, 2"), std::string::npos) << e.what();
  }
  EXPECT_THROW(Arena::meet(fresh_arena_name(), 1, 3, {.region_bytes = 4096}, 50ms), Error);
}

// Kills a rank at a random moment of a stream of collectives of all sizes; the dead process stays a
// zombie, since the test reaps it only afterwards.
TEST_F(ArenaFaults, SigkillAtAnyMomentEndsEverySurvivorAndNothingHangs) {
  std::vector<int64_t> latencies;
  for (int round = 0; round < 12; ++round) {
    const int size = 3, victim = round % size;
    new (board_) Board{};
    LocalProcesses processes = start(size, 16 << 20, 0ns, [this](Arena& arena) {
      const size_t n = 2 << 20;
      std::byte* const data = arena.allocate(4 * n);
      std::memset(data, 0, 4 * n);
      for (int i = 0;; ++i) {
        board_->ready[arena.rank()] = i + 1;
        all_reduce(arena, DType::f32, data, i % 2 ? n : 100);
        if (i % 3 == 0) broadcast(arena, data, n, i % arena.size());
      }
    });
    ASSERT_TRUE(await_ready(size, 1 + round % 5));
    std::this_thread::sleep_for(std::chrono::microseconds(317 * round));
    const int64_t killed = now_us();
    processes.signal(victim, SIGKILL);
    for (int r = 0; r < size; ++r) {
      if (r == victim) continue;
      EXPECT_EQ(processes.wait(r), 0);
      EXPECT_EQ(board_->code[r], 1);
      EXPECT_NE(std::string(board_->text[r]).find(fmt::format("rank {} died", victim)),
                std::string::npos)
          << board_->text[r];
      latencies.push_back(board_->ended[r] - killed);
    }
    EXPECT_EQ(processes.wait(victim), -SIGKILL);
  }
  std::sort(latencies.begin(), latencies.end());
  RecordProperty("median_us", static_cast<int>(latencies[latencies.size() / 2]));
  RecordProperty("max_us", static_cast<int>(latencies.back()));
  fmt::print("from SIGKILL to the survivors' error: median {} us, largest {} us\n",
             latencies[latencies.size() / 2], latencies.back());
}

TEST_F(ArenaFaults, SigkillOfAllButOneIsSeenByTheLast) {
  LocalProcesses processes = start(4, 1 << 20, 0ns, [this](Arena& arena) {
    board_->ready[arena.rank()] = 1;
    if (arena.rank() != 2) std::this_thread::sleep_for(kPatience);
    barrier(arena);
  });
  ASSERT_TRUE(await_ready(4, 1));
  for (const int r : {0, 1, 3}) processes.signal(r, SIGKILL);
  EXPECT_EQ(processes.wait(2), 0);
  EXPECT_EQ(board_->code[2], 1);
}

TEST_F(ArenaFaults, AStoppedRankIsNamedAfterTheStallDeadlineAndCannotHoldTheOthers) {
  LocalProcesses processes = start(3, 1 << 20, 300ms, [this](Arena& arena) {
    std::byte* const data = arena.allocate(400);
    for (int i = 0;; ++i) {
      board_->ready[arena.rank()] = i + 1;
      all_reduce(arena, DType::f32, data, 100);
    }
  });
  ASSERT_TRUE(await_ready(3, 3));
  processes.signal(1, SIGSTOP);
  for (const int r : {0, 2}) {
    EXPECT_EQ(processes.wait(r), 0);
    EXPECT_EQ(board_->code[r], 1);
    EXPECT_NE(std::string(board_->text[r]).find("rank 1"), std::string::npos) << board_->text[r];
  }
  processes.signal(1, SIGCONT);  // it wakes up, and finds itself shut out
  EXPECT_EQ(processes.wait(1), 0);
  EXPECT_EQ(board_->code[1], 1);
}

TEST_F(ArenaFaults, ADetachedRegionIsOutOfReachOfPeersThatWakeUpLate) {
  const std::string name = fresh_arena_name();
  LocalProcesses processes(2, [&](int rank) {
    const auto arena = Arena::meet(name, rank, 2, {.region_bytes = 4 << 20}, kPatience);
    std::byte* const data = arena->allocate(3 << 20);
    std::memset(data, rank, 3 << 20);
    barrier(*arena);
    if (rank == 0) {
      arena->detach();
      board_->ready[0] = 1;
      if (!await([&] { return board_->ready[1] == 1; })) return 1;
      return std::all_of(data, data + (3 << 20), [](std::byte b) { return b == std::byte{0}; }) ? 0
                                                                                                : 2;
    }
    if (!await([&] { return board_->ready[0] == 1; })) return 1;
    std::memset(arena->peer(0, data), 9, 3 << 20);
    board_->ready[1] = 1;
    return 0;
  });
  EXPECT_EQ(processes.wait(0), 0);
  EXPECT_EQ(processes.wait(1), 0);
}

TEST_F(ArenaFaults, ADetachedRegionTakesMemoryOnlyForWhatWasTouched) {
  constexpr size_t kRoom = size_t{64} << 20, kTouched = size_t{1} << 20;
  const std::string name = fresh_arena_name();
  LocalProcesses processes(2, [&](int rank) {
    const auto arena = Arena::meet(name, rank, 2, {.region_bytes = kRoom}, kPatience);
    std::byte* const data = arena->allocate(kRoom / 2);
    std::memset(data + kRoom / 4, 7, kTouched);
    barrier(*arena);
    arena->detach();
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages(kRoom / 2 / page);
    if (mincore(data, kRoom / 2, pages.data()) != 0) return 1;
    const auto taken = static_cast<size_t>(
        std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; }));
    if (taken * page < kTouched || taken * page > 4 * kTouched) return 2;  // of huge pages: more
    const bool whole = std::all_of(data + kRoom / 4, data + kRoom / 4 + kTouched,
                                   [](std::byte b) { return b == std::byte{7}; });
    return whole && data[0] == std::byte{0} && data[kRoom / 2 - 1] == std::byte{0} ? 0 : 3;
  });
  EXPECT_EQ(processes.wait(0), 0);
  EXPECT_EQ(processes.wait(1), 0);
}

TEST(Arena, NothingIsLeftBehind) {
  const auto count = [](const char* folder) {
    // Tests beside this one have folders of their own in /dev/shm.
    return std::count_if(std::filesystem::directory_iterator(folder),
                         std::filesystem::directory_iterator{}, [](const auto& entry) {
                           std::error_code error;
                           return !entry.is_directory(error);
                         });
  };
  const auto shm = count("/dev/shm"), fds = count("/proc/self/fd");
  {
    const std::string name = fresh_arena_name();
    LocalProcesses processes(3, [&](int rank) {
      if (rank == 2) {
        const auto arena = Arena::meet(name, 2, 4, {.region_bytes = 1 << 20}, kPatience);
        raise(SIGKILL);
      }
      const auto arena = Arena::meet(name, rank, 4, {.region_bytes = 1 << 20}, kPatience);
      try {
        barrier(*arena);
      } catch (const Error&) {
        return 0;
      }
      return 1;
    });
    const auto arena = Arena::meet(name, 3, 4, {.region_bytes = 1 << 20}, kPatience);
    EXPECT_THROW(barrier(*arena), Error);
    EXPECT_EQ(processes.wait(0), 0);
  }
  EXPECT_EQ(count("/dev/shm"), shm);
  EXPECT_EQ(count("/proc/self/fd"), fds);
}

}  // namespace
}  // namespace ductile::comm
