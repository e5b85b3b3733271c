#include "ductile/comm/shm_transport.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include <sys/mman.h>

#include "ductile/comm/testing/local_processes.h"
#include "ductile/comm/testing/split_conformance.h"
#include "ductile/comm/testing/transport_conformance.h"

namespace ductile::comm {
namespace {

using namespace std::chrono_literals;

std::vector<std::shared_ptr<Arena>> shared_arenas(int size, size_t region_bytes) {
  auto arenas = Arena::for_threads(size, {.region_bytes = region_bytes});
  return {std::make_move_iterator(arenas.begin()), std::make_move_iterator(arenas.end())};
}

TransportMaker maker(const char* name, size_t eager_bytes) {
  return {name, [eager_bytes](int size) {
            TransportSet set;
            for (auto& arena : shared_arenas(size, 1)) {
              set.ranks.push_back(make_shm_transport(std::move(arena), {eager_bytes}));
            }
            return set;
          }};
}

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance,
                         ::testing::Values(maker("eager", 1 << 16), maker("rendezvous", 0),
                                           maker("standard", 4096)),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Shm, SplitConformance,
                         ::testing::Values(maker("rendezvous", 0), maker("standard", 4096)),
                         [](const auto& info) { return info.param.name; });

void finish(Transport& t, const Transfer& transfer) {
  while (!transfer.settled()) t.progress(1s);
  ASSERT_EQ(transfer.state, Transfer::State::done);
}

TEST(ShmTransport, MessagesInTheArenaAreReadFromThereAndPeersMemoryIsAddressable) {
  const auto arenas = shared_arenas(2, 16 << 20);
  std::vector<std::jthread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const auto t = make_shm_transport(arenas[r]);
      const size_t n = 6'000'011;
      std::byte* const data = arenas[r]->allocate(n);
      std::byte* const got = arenas[r]->allocate(n);
      for (size_t i = 0; i < n; ++i) data[i] = static_cast<std::byte>(mix(r, i));
      Transfer send, receive;
      t->receive(1 - r, 5, {got, n}, receive);
      t->send(1 - r, 5, {data, n}, send);
      finish(*t, send);
      // The peer has copied it: what changes now does not reach it.
      std::fill(data, data + n, std::byte{1});
      finish(*t, receive);
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(got[i], static_cast<std::byte>(mix(1 - r, i)));
      EXPECT_EQ(t->peer_memory(1 - r, got), arenas[1 - r]->peer(1 - r, t->peer_memory(1 - r, got)));
      std::byte outside{};
      EXPECT_EQ(t->peer_memory(1 - r, &outside), nullptr);
    });
  }
}

struct PostedReceive {
  explicit PostedReceive(size_t bytes)
      : arenas(shared_arenas(2, 8 << 20)),
        data(bytes),
        got(arenas[1]->allocate(bytes), bytes),
        sender(make_shm_transport(arenas[0])),
        receiver(make_shm_transport(arenas[1])) {
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(mix(bytes, i));
  }
  void expect_done() {
    for (int i = 0; i < 20 && !receive.settled(); ++i) receiver->progress(0s);
    EXPECT_EQ(receive.state, Transfer::State::done);
    EXPECT_EQ(send.state, Transfer::State::done);
    EXPECT_TRUE(std::ranges::equal(got, data));
  }

  std::vector<std::shared_ptr<Arena>> arenas;
  std::vector<std::byte> data;  // outside of the arena
  std::span<std::byte> got;
  Transfer send, receive;
  std::unique_ptr<Transport> sender, receiver;
};

// Whoever drives the sender alone.
void drive(Transport& t, const Transfer& transfer) {
  for (int i = 0; i < 20 && !transfer.settled(); ++i) t.progress(0s);
}

TEST(ShmTransport, TheSenderPutsAMessageWhereItsReceiveWasPosted) {
  PostedReceive p(3'000'000);
  p.receiver->receive(0, 5, p.got, p.receive);
  p.sender->progress(0s);  // hears of it
  p.sender->send(1, 5, p.data, p.send);
  drive(*p.sender, p.send);
  // All of it, and the receiver has done nothing yet.
  EXPECT_EQ(p.send.state, Transfer::State::done);
  EXPECT_TRUE(std::ranges::equal(p.got, p.data));
  EXPECT_FALSE(p.receive.settled());
  p.expect_done();
}

TEST(ShmTransport, AReceiveThatIsPostedWhileItsMessageIsOfferedIsFilledOnce) {
  for (const size_t bytes : {size_t{5000}, size_t{65'536}, size_t{65'537}, size_t{3'000'000}}) {
    for (const bool heard : {false, true}) {
      PostedReceive p(bytes);
      p.sender->send(1, 5, p.data, p.send);
      if (heard) p.receiver->progress(0s);  // of the offer
      p.receiver->receive(0, 5, p.got, p.receive);
      for (int i = 0; i < 20 && !p.send.settled(); ++i) {
        p.sender->progress(0s);
        p.receiver->progress(0s);
      }
      p.expect_done();
      // The tag is free again, for a message the other way round in time.
      std::ranges::reverse(p.data);
      p.receiver->receive(0, 5, p.got, p.receive);
      p.sender->send(1, 5, p.data, p.send);
      for (int i = 0; i < 20 && !p.send.settled(); ++i) {
        p.receiver->progress(0s);
        p.sender->progress(0s);
      }
      p.expect_done();
    }
  }
}

TEST(ShmTransport, AMessageOfAnotherLengthThanAPostedReceiveIsRefused) {
  for (const size_t length : {size_t{10}, size_t{99'999}, size_t{100'001}}) {
    for (const bool told : {false, true}) {
      PostedReceive p(100'000);
      p.data.resize(length);
      p.receiver->receive(0, 5, p.got, p.receive);
      if (told) p.sender->progress(0s);
      try {
        p.sender->send(1, 5, p.data, p.send);
        for (int i = 0; i < 20; ++i) {
          p.sender->progress(0s);
          p.receiver->progress(0s);
        }
        ADD_FAILURE() << "nobody noticed";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::data_loss) << e.what();
      }
      EXPECT_EQ(p.receive.state, Transfer::State::failed);
    }
  }
}

TEST(ShmTransport, WhoHasLeftIsSentNothingToAPostedReceive) {
  PostedReceive p(100'000);
  p.receiver->receive(0, 5, p.got, p.receive);
  p.sender->progress(0s);
  p.receiver = nullptr;
  const auto before = std::vector<std::byte>(p.got.begin(), p.got.end());
  try {
    p.sender->send(1, 5, p.data, p.send);
    for (int i = 0; i < 20; ++i) p.sender->progress(0s);
    ADD_FAILURE() << "it was sent";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::peer_lost) << e.what();
  }
  EXPECT_TRUE(std::ranges::equal(p.got, before));
}

// The receiver of a message in the arena tells its sender that it has it. Here there is no room in
// the ring for that, and nobody drives the receiver once it has all that it waits for.
TEST(ShmTransport, AReceiveIsDoneOnlyWhenItsSenderCanHearOfIt) {
  const auto arenas = shared_arenas(2, 1 << 20);
  const size_t n = 100'000;
  std::byte* const data = arenas[0]->allocate(n);
  std::fill(data, data + n, std::byte{7});
  // With their headers of 32 bytes they fill the ring of 256 KB to the last byte.
  const std::vector<std::byte> small(4096 - 32);
  std::vector<Transfer> filling(64);
  Transfer send, receive;
  std::vector<std::byte> got(n);
  const auto sender = make_shm_transport(arenas[0]), receiver = make_shm_transport(arenas[1]);
  sender->send(1, 1, {data, n}, send);
  for (size_t i = 0; i < filling.size(); ++i) {
    receiver->send(0, static_cast<Tag>(i), small, filling[i]);
    ASSERT_EQ(filling[i].state, Transfer::State::done);
  }
  receiver->receive(0, 1, got, receive);
  receiver->progress(0s);
  while (!receive.settled()) {
    sender->progress(0s);
    receiver->progress(0s);
  }
  for (int i = 0; i < 3; ++i) sender->progress(0s);
  EXPECT_EQ(send.state, Transfer::State::done);
  EXPECT_EQ(got, std::vector<std::byte>(n, std::byte{7}));
}

// Many messages of all sizes and kinds at once, both ways, more than the rings hold.
TEST(ShmTransport, AFloodOfMessagesOfAllSizesArrivesIntact) {
  const int size = 3, count = 300;
  const auto arenas = shared_arenas(size, 64 << 20);
  std::vector<std::jthread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      const auto t = make_shm_transport(arenas[r]);
      std::vector<std::vector<std::byte>> keep;
      std::vector<std::pair<int, std::span<std::byte>>> got;
      std::vector<std::unique_ptr<Transfer>> transfers;
      const auto length = [](int from, int to, int i) {
        const uint64_t bits = mix(static_cast<uint64_t>(from * 8 + to), i);
        return static_cast<size_t>(bits % (bits % 5 == 0 ? 100000 : 3000));
      };
      const auto memory = [&](size_t bytes, bool inside) {
        if (inside) return std::span(arenas[r]->allocate(bytes), bytes);
        keep.emplace_back(bytes);
        return std::span(keep.back());
      };
      keep.reserve(2 * size * count);
      for (int i = 0; i < count; ++i) {
        for (int p = 0; p < size; ++p) {
          if (p == r) continue;
          const int tag = (i * 7 + 5) % count;
          const auto out = memory(length(r, p, i), i % 3 == 0);
          for (size_t k = 0; k < out.size(); ++k)
            out[k] = static_cast<std::byte>(mix(r + p + i, k));
          transfers.push_back(std::make_unique<Transfer>());
          t->send(p, static_cast<Tag>(i), out, *transfers.back());
          got.emplace_back(p + tag, memory(length(p, r, tag), i % 2 == 0));
          transfers.push_back(std::make_unique<Transfer>());
          t->receive(p, static_cast<Tag>(tag), got.back().second, *transfers.back());
        }
      }
      for (const auto& transfer : transfers) finish(*t, *transfer);
      for (const auto& [salt, bytes] : got) {
        for (size_t k = 0; k < bytes.size(); ++k) {
          ASSERT_EQ(bytes[k], static_cast<std::byte>(mix(r + salt, k)));
        }
      }
    });
  }
}

// A stream of messages around a ring of real processes; one is killed (and stays a zombie) at an
// arbitrary moment. All others must see peer_lost, and nothing may stay behind.
TEST(ShmTransport, SigkillAtAnyMomentIsSeenByEverySurvivor) {
  std::vector<std::string> names;
  struct Board {
    std::atomic<int> rounds[4];
    std::atomic<int64_t> ended[4];
  };
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  int64_t slowest = 0;
  for (int trial = 0; trial < 9; ++trial) {
    Board* const board = new (memory) Board{};
    const int size = 3, victim = trial % size;
    const std::string name = names.emplace_back(fresh_arena_name());
    LocalProcesses processes(size, [&](int rank) {
      std::shared_ptr<Arena> arena = Arena::meet(name, rank, size, {.region_bytes = 4 << 20}, 20s);
      const size_t n = trial % 2 ? 1'000'000 : 3000;
      std::byte* const inside = arena->allocate(n);
      std::vector<std::byte> outside(n), kept(n);
      const std::span<std::byte> got =
          trial / 2 % 2 == 0 ? std::span(kept) : std::span(arena->allocate(n), n);
      const auto t = make_shm_transport(arena);
      const int right = (rank + 1) % size, left = (rank + size - 1) % size;
      try {
        for (Tag tag = 0;; ++tag) {
          Transfer send, receive;
          t->receive(left, tag, got, receive);
          t->send(right, tag, tag % 2 ? std::span(outside) : std::span(inside, n), send);
          while (!send.settled() || !receive.settled()) t->progress(10s);
          ++board->rounds[rank];
        }
      } catch (const Error& e) {
        board->ended[rank] = now();
        return e.code() == ErrorCode::peer_lost ? 0 : 1;
      }
    });
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (board->rounds[victim] < 5 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(1ms);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(211 * trial));
    const int64_t killed = now();
    processes.signal(victim, SIGKILL);
    for (int r = 0; r < size; ++r) {
      if (r == victim) continue;
      EXPECT_EQ(processes.wait(r), 0);
      slowest = std::max<int64_t>(slowest, board->ended[r] - killed);
    }
    EXPECT_EQ(processes.wait(victim), -SIGKILL);
  }
  munmap(memory, sizeof(Board));
  for (const auto& left : std::filesystem::directory_iterator("/dev/shm")) {
    for (const std::string& name : names)
      EXPECT_EQ(left.path().string().find(name), std::string::npos) << left.path();
  }
  fmt::print("from SIGKILL to the last survivor's error: at most {} us\n", slowest);
}

}  // namespace
}  // namespace ductile::comm
