// What other threads, and callbacks, leave for a loop.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/net/loop.h"
#include "ductile/net/testing/socket_pair.h"

namespace ductile::net {
namespace {

using testing::SocketPair;
using namespace std::chrono_literals;

TEST(Loop, TakesWhatManyThreadsPostInTheOrderOfEach) {
  constexpr int kThreads = 8, kEach = 5000;
  Loop loop;
  std::vector<int> last(kThreads, -1);
  int wrong = 0, count = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        loop.post([&, t, i] {
          wrong += last[static_cast<size_t>(t)] + 1 == i ? 0 : 1;
          last[static_cast<size_t>(t)] = i;
          if (++count == kThreads * kEach) loop.stop();
        });
      }
    });
  }
  EXPECT_TRUE(loop.run_until(Clock::now() + 60s));
  EXPECT_EQ(count, kThreads * kEach);
  EXPECT_EQ(wrong, 0);
}

// One at a time, so that each post has to wake a loop that sleeps.
TEST(Loop, EachPostWakesALoopThatSleeps) {
  LoopThread thread;
  for (int i = 0; i < 2000; ++i) {
    bool called = false;
    thread.call([&] { called = true; });
    ASSERT_TRUE(called);
  }
}

TEST(Loop, AFloodOfPostsKeepsNeitherDescriptorsNorTimersWaiting) {
  Loop loop;
  const SocketPair pair;
  int posts = 0, reads = 0, timers = 0;
  std::function<void()> flood = [&] {
    ++posts;
    loop.post(flood);
    loop.post([] {});
  };
  loop.post(flood);
  Loop::Watch watch = loop.watch(pair.near.get(), Interest::read, [&](Ready) { ++reads; });
  const Loop::Timer timer = loop.at(loop.now(), [&] { ++timers; });
  pair.say();
  for (int turn = 0; turn < 10; ++turn) loop.turn(loop.now());
  EXPECT_EQ(reads, 10);
  EXPECT_EQ(timers, 1);
  EXPECT_EQ(posts, 10);  // what is posted in a turn waits for the next
}

TEST(Loop, WhatIsPostedWhileTheLoopEndsIsCalledOrDestroyedAndNeverLost) {
  std::atomic<int> called = 0, refused = 0;
  for (int round = 0; round < 50; ++round) {
    auto token = std::make_shared<int>(0);
    std::weak_ptr<int> alive = token;
    std::vector<std::jthread> threads;
    std::atomic<bool> go = false;
    {
      auto loop = std::make_unique<Loop>();
      for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&, mailbox = loop->mailbox(), token] {
          while (!go) std::this_thread::yield();
          for (int i = 0; i < 200; ++i)
            if (!mailbox.post([&called, token] { ++called; })) ++refused;
        });
      }
      token.reset();
      go = true;
      loop->turn(loop->now());
    }
    threads.clear();
    EXPECT_TRUE(alive.expired()) << "a posted function was kept";
  }
  EXPECT_LE(called + refused, 50 * 3 * 200);
}

TEST(Loop, AFunctionThatIsDestroyedWithTheLoopMayPost) {
  auto loop = std::make_unique<Loop>();
  struct Poster {
    explicit Poster(Loop::Mailbox m) : mailbox(std::move(m)) {}
    ~Poster() {
      mailbox.post([] {});
    }
    Loop::Mailbox mailbox;
  };
  loop->post([poster = std::make_shared<Poster>(loop->mailbox())] {});
  loop.reset();
}

}  // namespace
}  // namespace ductile::net
