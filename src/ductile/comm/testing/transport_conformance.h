#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/comm/arena.h"
#include "ductile/comm/transport.h"

// The promises of transport.h as tests that every transport runs. A test file includes this header
// and names its makers:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance, ::testing::Values(
//       TransportMaker{"tcp", [](int size) { return ...; }}));
//
// A maker returns the connected transports of ranks 0 .. size - 1 of a new job in this process; it
// may use threads to connect them. What must outlive the transports (folders, listeners) is kept
// alive by `keep`.
namespace ductile::comm {

struct TransportSet {
  std::vector<std::unique_ptr<Transport>> ranks;
  std::shared_ptr<void> keep;
  std::vector<std::shared_ptr<Arena>> arenas;  // of each rank, for its communicator; or none
};

struct TransportMaker {
  std::string name;
  std::function<TransportSet(int size)> make;
};

inline void PrintTo(const TransportMaker& maker, std::ostream* out) { *out << maker.name; }

class TransportConformance : public ::testing::TestWithParam<TransportMaker> {
 protected:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPatience{20};  // nothing here may take as long

  void make(int size) {
    set_ = GetParam().make(size);
    ASSERT_EQ(static_cast<int>(set_.ranks.size()), size);
    for (int r = 0; r < size; ++r) {
      ASSERT_EQ(set_.ranks[r]->rank(), r);
      ASSERT_EQ(set_.ranks[r]->size(), size);
    }
  }

  Transport& at(int rank) { return *set_.ranks[rank]; }

  // Runs `body` for every rank on a thread of its own.
  void each(const std::function<void(Transport&)>& body) {
    std::vector<std::jthread> threads;
    for (auto& t : set_.ranks) threads.emplace_back([&body, &t] { body(*t); });
  }

  static std::vector<std::byte> pattern(size_t size, uint64_t seed) {
    std::vector<std::byte> bytes(size);
    Rng rng(seed);
    for (auto& b : bytes) b = static_cast<std::byte>(rng.next());
    return bytes;
  }

  // Progresses until every transfer is done; false if one failed or patience ran out.
  static bool finish(Transport& t, std::initializer_list<const Transfer*> transfers) {
    const auto deadline = Clock::now() + kPatience;
    for (const Transfer* transfer : transfers) {
      while (!transfer->settled()) {
        if (Clock::now() > deadline) return false;
        t.progress(std::chrono::milliseconds(50));
      }
      if (transfer->state != Transfer::State::done) return false;
    }
    return true;
  }

  // The code of the error that progress() ends with; internal if patience ran out.
  static ErrorCode failure_of(Transport& t) {
    const auto deadline = Clock::now() + kPatience;
    while (Clock::now() < deadline) {
      try {
        t.progress(std::chrono::milliseconds(50));
      } catch (const Error& e) {
        return e.code();
      }
    }
    return ErrorCode::internal;
  }

  TransportSet set_;
};

TEST_P(TransportConformance, AMessageArrivesWhicheverSideComesFirst) {
  make(2);
  for (const bool receive_first : {false, true}) {
    const Tag tag = receive_first ? 7 : 8;
    each([&](Transport& t) {
      auto data = pattern(1000, tag);
      Transfer transfer;
      const bool receives = t.rank() == 1;
      if (receives != receive_first) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      if (!receives) {
        t.send(1, tag, data, transfer);
        EXPECT_TRUE(finish(t, {&transfer}));
      } else {
        std::vector<std::byte> got(1000);
        t.receive(0, tag, got, transfer);
        EXPECT_TRUE(finish(t, {&transfer}));
        EXPECT_EQ(got, data);
      }
    });
  }
}

TEST_P(TransportConformance, SizesFromZeroToLargeAndUnalignedMemoryArriveIntact) {
  make(2);
  const std::vector<size_t> sizes = {0, 1, 3, 63, 64, 65, 4095, 4096, 65537, 1 << 20, 9'000'001};
  each([&](Transport& t) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (const size_t shift : {size_t{0}, size_t{1}, size_t{13}}) {
        const auto data = pattern(sizes[i] + shift, i);
        std::vector<std::byte> got(sizes[i] + shift + 1, std::byte{0x5a});
        const int peer = 1 - t.rank();
        const Tag tag = i * 16 + shift;
        Transfer send;
        Transfer receive;
        t.send(peer, tag, std::span(data).subspan(shift), send);
        t.receive(peer, tag, std::span(got).subspan(shift, sizes[i]), receive);
        ASSERT_TRUE(finish(t, {&send, &receive})) << sizes[i];
        ASSERT_TRUE(std::equal(data.begin() + shift, data.end(), got.begin() + shift)) << sizes[i];
        ASSERT_EQ(got.back(), std::byte{0x5a});
      }
    }
  });
}

TEST_P(TransportConformance, TagsAreMatchedInAnyOrderOfPosting) {
  make(3);
  constexpr int kMessages = 500;
  each([&](Transport& t) {
    const int right = (t.rank() + 1) % 3;
    const int left = (t.rank() + 2) % 3;
    std::vector<uint64_t> out(kMessages);
    std::vector<uint64_t> in(kMessages, 0);
    auto sends = std::make_unique<Transfer[]>(kMessages);
    auto receives = std::make_unique<Transfer[]>(kMessages);
    for (int i = 0; i < kMessages; ++i) {
      out[i] = mix(t.rank(), i);
      const int j = (i * 7 + 3) % kMessages;  // 7 and 500 have no common divisor
      // The same tags run in both directions, on two rails.
      const Tag rail = static_cast<Tag>(j % 2) << kRailShift;
      t.receive(left, rail | static_cast<Tag>(j), std::as_writable_bytes(std::span(&in[j], 1)),
                receives[j]);
      const Tag own_rail = static_cast<Tag>(i % 2) << kRailShift;
      t.send(right, own_rail | static_cast<Tag>(i), std::as_bytes(std::span(&out[i], 1)), sends[i]);
    }
    for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(finish(t, {&sends[i], &receives[i]}));
    for (int i = 0; i < kMessages; ++i) ASSERT_EQ(in[i], mix(left, i)) << i;
  });
}

TEST_P(TransportConformance, AllRanksExchangeWithAllAtOnce) {
  constexpr int kSize = 5;
  make(kSize);
  each([&](Transport& t) {
    constexpr size_t kBytes = 200'000;
    std::vector<std::vector<std::byte>> out(kSize);
    std::vector<std::vector<std::byte>> in(kSize, std::vector<std::byte>(kBytes));
    auto transfers = std::make_unique<Transfer[]>(2 * kSize);
    for (int peer = 0; peer < kSize; ++peer) {
      if (peer == t.rank()) continue;
      out[peer] = pattern(kBytes, mix(t.rank(), peer));
      t.send(peer, 1, out[peer], transfers[2 * peer]);
      t.receive(peer, 1, in[peer], transfers[2 * peer + 1]);
    }
    for (int peer = 0; peer < kSize; ++peer) {
      if (peer == t.rank()) continue;
      ASSERT_TRUE(finish(t, {&transfers[2 * peer], &transfers[2 * peer + 1]}));
      ASSERT_EQ(in[peer], pattern(kBytes, mix(peer, t.rank())));
    }
  });
}

TEST_P(TransportConformance, ASendDoesNotWaitForAnEarlierOneThatNobodyReceivesYet) {
  make(2);
  each([&](Transport& t) {
    std::vector<std::byte> large(3'000'000, std::byte{1});
    std::vector<std::byte> small(100, std::byte{2});
    Transfer first;
    Transfer second;
    if (t.rank() == 0) {
      t.send(1, 1, large, first);
      t.send(1, 2, small, second);
    } else {
      std::vector<std::byte> got(100);
      t.receive(0, 2, got, second);
      ASSERT_TRUE(finish(t, {&second}));
      ASSERT_EQ(got, small);
      t.receive(0, 1, large, first);
    }
    ASSERT_TRUE(finish(t, {&first, &second}));
  });
}

TEST_P(TransportConformance, ProgressWaitsNoLongerThanAskedAndWakeEndsIt) {
  make(2);
  const auto start = Clock::now();
  at(0).progress(std::chrono::nanoseconds(0));
  at(0).progress(std::chrono::milliseconds(30));
  EXPECT_LT(Clock::now() - start, kPatience);

  const auto woken = Clock::now();
  std::jthread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    at(0).wake();
  });
  // Other things may end a wait too, so ask until the wake came; patience is far beyond it.
  at(0).progress(std::chrono::seconds(60));
  waker.join();
  at(0).wake();
  at(0).progress(std::chrono::seconds(60));
  EXPECT_LT(Clock::now() - woken, kPatience);
}

TEST_P(TransportConformance, AMessageOfAnotherLengthIsRefusedAsDataLoss) {
  for (const size_t length : {size_t{10}, size_t{100'000}}) {
    make(2);
    // They outlive the transports: the sender may leave with its transfer pending.
    std::vector<std::byte> memory[] = {std::vector<std::byte>(length),
                                       std::vector<std::byte>(length + 1)};
    Transfer transfers[2];
    each([&](Transport& t) {
      const std::span<std::byte> bytes = memory[t.rank()];
      Transfer& transfer = transfers[t.rank()];
      if (t.rank() == 0) {
        try {
          t.send(1, 1, bytes, transfer);
          // The receiver breaks off; the sender may finish, or see the receiver go.
          const auto deadline = Clock::now() + std::chrono::seconds(1);
          while (!transfer.settled() && Clock::now() < deadline) {
            t.progress(std::chrono::milliseconds(10));
          }
        } catch (const Error&) {
        }
      } else {
        try {
          t.receive(0, 1, bytes, transfer);
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::data_loss);
        }
        EXPECT_EQ(failure_of(t), ErrorCode::data_loss);
        EXPECT_EQ(transfer.state, Transfer::State::failed);
      }
    });
    set_ = {};
  }
}

TEST_P(TransportConformance, AReportedLossLatchesAndSettlesWhatIsPending) {
  make(3);
  std::vector<std::byte> in(100'000);
  std::vector<std::byte> out(9'000'000);
  Transfer receive;
  Transfer send;
  at(0).receive(1, 1, in, receive);
  at(0).send(2, 1, out, send);
  std::jthread detector([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    at(0).fail({{1}, "rank 1 no longer answers"});
    at(0).fail({{2}, "a second loss"});
  });
  ErrorCode code = ErrorCode::internal;
  std::string text;
  try {
    const auto deadline = Clock::now() + kPatience;
    while (Clock::now() < deadline) at(0).progress(std::chrono::seconds(5));
  } catch (const Error& e) {
    code = e.code();
    text = e.what();
  }
  EXPECT_EQ(code, ErrorCode::peer_lost);
  EXPECT_NE(text.find("rank 1 no longer answers"), std::string::npos) << text;
  EXPECT_EQ(receive.state, Transfer::State::failed);
  EXPECT_TRUE(send.settled());
  Transfer another;
  EXPECT_THROW(at(0).send(2, 2, out, another), Error);
  EXPECT_THROW(at(0).receive(2, 2, in, another), Error);
  EXPECT_THROW(at(0).progress(std::chrono::nanoseconds(0)), Error);
  EXPECT_NE(another.state, Transfer::State::done);
}

TEST_P(TransportConformance, MemoryIsLeftAloneAfterAFailure) {
  make(2);
  std::vector<std::byte> in(100'000, std::byte{7});
  Transfer receive;
  at(0).receive(1, 1, in, receive);
  at(0).fail({{1}, "lost"});
  EXPECT_EQ(failure_of(at(0)), ErrorCode::peer_lost);
  ASSERT_EQ(receive.state, Transfer::State::failed);
  std::vector<std::byte> out(100'000, std::byte{1});
  Transfer send;
  try {
    at(1).send(0, 1, out, send);
    at(1).progress(std::chrono::milliseconds(100));
  } catch (const Error&) {
  }
  set_.ranks[1].reset();  // nobody receives: the transfer is pending until its transport ends
  EXPECT_EQ(in, std::vector<std::byte>(100'000, std::byte{7}));
}

TEST_P(TransportConformance, WhoWaitsForAPeerThatLeftLosesIt) {
  make(2);
  std::vector<std::byte> in(64);
  Transfer receive;
  at(0).receive(1, 1, in, receive);
  set_.ranks[1].reset();
  EXPECT_EQ(failure_of(at(0)), ErrorCode::peer_lost);
  EXPECT_EQ(receive.state, Transfer::State::failed);
}

TEST_P(TransportConformance, WhatAPeerSentBeforeItLeftStillArrives) {
  make(2);
  const auto data = pattern(100'000, 1);
  std::vector<std::byte> got(data.size());
  Transfer posted;
  at(0).receive(1, 1, got, posted);
  std::thread leaver([&] {
    Transfer send;
    at(1).send(0, 1, data, send);
    EXPECT_TRUE(finish(at(1), {&send}));
    set_.ranks[1].reset();
  });
  EXPECT_TRUE(finish(at(0), {&posted}));
  leaver.join();
  EXPECT_EQ(got, data);
}

TEST_P(TransportConformance, APeerThatLeftDoesNotDisturbTheOthers) {
  make(3);
  set_.ranks[2].reset();
  for (int r : {0, 1}) {
    const auto until = Clock::now() + std::chrono::milliseconds(100);
    while (Clock::now() < until) ASSERT_NO_THROW(at(r).progress(std::chrono::milliseconds(20)));
  }
  std::vector<std::byte> out(10'000, std::byte{3});
  std::vector<std::byte> got(10'000);
  std::jthread sender([&] {
    Transfer send;
    at(0).send(1, 1, out, send);
    EXPECT_TRUE(finish(at(0), {&send}));
  });
  Transfer receive;
  at(1).receive(0, 1, got, receive);
  EXPECT_TRUE(finish(at(1), {&receive}));
  EXPECT_EQ(got, out);
}

TEST_P(TransportConformance, ItCanBeDestroyedWithTransfersPending) {
  make(2);
  std::vector<std::byte> out(9'000'000);
  std::vector<std::byte> in(100);
  Transfer send;
  Transfer receive;
  at(0).send(1, 1, out, send);
  at(0).receive(1, 2, in, receive);
  at(0).progress(std::chrono::milliseconds(10));
  const auto start = Clock::now();
  set_.ranks[0].reset();
  EXPECT_LT(Clock::now() - start, kPatience);
  set_.ranks[1].reset();
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);

}  // namespace ductile::comm
