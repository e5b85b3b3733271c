#include "ductile/net/loop.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/net/testing/socket_pair.h"

namespace {

// What the calls of this program to the kernel meet with; 0 or none: what they ask for.
thread_local int fail_next_control = 0;
thread_local int fail_next_wait = 0;
thread_local bool wake_for_nothing = false;

}  // namespace

extern "C" int epoll_ctl(int epoll, int what, int fd, epoll_event* event) noexcept {
  if (const int error = std::exchange(fail_next_control, 0); error != 0) {
    errno = error;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_epoll_ctl, epoll, what, fd, event));
}

extern "C" int epoll_wait(int epoll, epoll_event* events, int most, int wait) {
  if (const int error = std::exchange(fail_next_wait, 0); error != 0) {
    errno = error;
    return -1;
  }
  if (std::exchange(wake_for_nothing, false)) return 0;
  return static_cast<int>(::syscall(SYS_epoll_pwait, epoll, events, most, wait, nullptr, 8));
}

namespace ductile::net {
namespace {

using std::chrono::milliseconds;
using testing::SocketPair;
using namespace std::chrono_literals;

struct ManualClock {
  Deadline now{1s};
  Loop::Now function() {
    return [this] { return now; };
  }
};

// ---- Descriptors.

TEST(Loop, CallsWhatIsReadyUntilTheWatchEnds) {
  Loop loop;
  const SocketPair pair;
  std::vector<Ready> seen;
  Loop::Watch watch = loop.watch(pair.near.get(), Interest::read, [&](Ready r) {
    seen.push_back(r);
    pair.drain();
  });
  loop.turn(loop.now());
  EXPECT_TRUE(seen.empty());
  pair.say();
  loop.turn();
  EXPECT_EQ(seen, std::vector<Ready>({{true, false, false}}));
  watch.set(Interest::both);
  loop.turn();
  EXPECT_EQ(seen.back(), (Ready{false, true, false}));
  watch.set(Interest::none);
  pair.say();
  loop.turn(loop.now());
  EXPECT_EQ(seen.size(), 2u);
  watch.set(Interest::read);
  loop.turn();
  EXPECT_EQ(seen.size(), 3u);
  watch.end();
  pair.say();
  loop.turn(loop.now());
  EXPECT_EQ(seen.size(), 3u);
}

TEST(Loop, AClosedConnectionIsReadyForAllThatItIsWatchedFor) {
  Loop loop;
  for (const Interest interest : {Interest::read, Interest::write, Interest::both}) {
    SocketPair pair;
    Ready seen;
    Loop::Watch watch = loop.watch(pair.near.get(), interest, [&](Ready r) { seen = r; });
    pair.far.close();
    loop.turn(loop.now());
    EXPECT_EQ(seen.readable, interest != Interest::write);
    EXPECT_EQ(seen.writable, interest != Interest::read);
    EXPECT_TRUE(seen.closed);
    // Whoever wants nothing of it now is not woken by it.
    watch.set(Interest::none);
    seen = {};
    loop.turn(loop.now());
    EXPECT_EQ(seen, Ready{});
  }
}

// Whose last writer has gone: the kernel says that it hung up, and not that it can be read.
TEST(Loop, APipeThatEndedIsReadable) {
  Loop loop;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Descriptor read_end(ends[0]);
  Descriptor(ends[1]).close();
  Ready seen;
  const Loop::Watch watch = loop.watch(ends[0], Interest::read, [&](Ready r) { seen = r; });
  loop.turn(loop.now());
  EXPECT_EQ(seen, (Ready{true, false, true}));
}

TEST(Loop, ADescriptorThatGetsTheNumberOfOneThatEndedInTheSameTurnIsNotMistakenForIt) {
  for (int round = 0; round < 2; ++round) {  // whichever comes first
    Loop loop;
    std::array<SocketPair, 2> pairs;
    std::array<Loop::Watch, 2> watches;
    SocketPair fresh;
    Loop::Watch fresh_watch;
    int calls = 0, fresh_calls = 0;
    for (size_t i = 0; i < 2; ++i) {
      watches[i] = loop.watch(pairs[i].near.get(), Interest::read, [&, i](Ready) {
        ++calls;
        pairs[i].drain();
        const size_t other = 1 - i;
        const int number = pairs[other].near.get();
        watches[other].end();
        pairs[other].near.close();
        ASSERT_EQ(::dup3(fresh.near.get(), number, O_CLOEXEC), number);
        pairs[other].near = Descriptor(number);
        fresh_watch = loop.watch(number, Interest::read, [&](Ready) { ++fresh_calls; });
      });
    }
    pairs[0].say();
    pairs[1].say();
    loop.turn(loop.now());
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(fresh_calls, 0);
    fresh.say();
    loop.turn(loop.now());
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(fresh_calls, 1);
  }
}

// Against the rule. The end of the old watch must not take the new one along.
TEST(Loop, ADescriptorThatWasClosedBeforeItsWatchEndedHarmsNoOther) {
  Loop loop;
  SocketPair old, fresh;
  const int number = old.near.get();
  int old_calls = 0, calls = 0;
  Loop::Watch first = loop.watch(number, Interest::read, [&](Ready) { ++old_calls; });
  old.near.close();
  ASSERT_EQ(::dup3(fresh.near.get(), number, O_CLOEXEC), number);
  const Descriptor again(number);
  Loop::Watch second = loop.watch(number, Interest::read, [&](Ready) { ++calls; });
  first.end();
  fresh.say();
  loop.turn(loop.now());
  EXPECT_EQ(old_calls, 0);
  EXPECT_EQ(calls, 1);
}

// Against the rule, too: a copy of it lives on, so the kernel tells of it for ever.
TEST(Loop, ACopyOfAClosedDescriptorDoesNotWakeTheLoopForEver) {
  Loop loop;
  SocketPair old;
  const SocketPair other;
  const Descriptor copy(::dup(old.near.get()));
  int calls = 0, others = 0;
  Loop::Watch watch = loop.watch(old.near.get(), Interest::read, [&](Ready) { ++calls; });
  Loop::Watch other_watch = loop.watch(other.near.get(), Interest::read, [&](Ready) {
    ++others;
    other.drain();
  });
  old.near.close();
  watch.end();
  old.say();
  loop.turn(loop.now());
  // Only now would a wait that is not disturbed reach its deadline.
  const Deadline end = loop.now() + 30ms;
  int turns = 0;
  while (loop.now() < end && turns < 1000) {
    loop.turn(end);
    ++turns;
  }
  EXPECT_LT(turns, 20);
  EXPECT_EQ(calls, 0);
  other.say();
  loop.turn();
  EXPECT_EQ(others, 1);
}

TEST(Loop, AWatchMayEndItselfAndWhatItOwnsWithinItsCall) {
  Loop loop;
  const SocketPair pair;
  auto watch = std::make_shared<Loop::Watch>();
  std::weak_ptr<Loop::Watch> alive = watch;
  std::string after;
  *watch = loop.watch(pair.near.get(), Interest::read,
                      [owned = watch, text = std::string(100, 'y'), &after](Ready) {
                        owned->end();
                        after = text;  // of the callback itself, which must still be there
                      });
  watch.reset();
  pair.say();
  loop.turn();
  EXPECT_EQ(after, std::string(100, 'y'));
  EXPECT_TRUE(alive.expired());
  loop.turn(loop.now());
}

TEST(Loop, RefusesADescriptorThatIsWatchedAlready) {
  Loop loop;
  const SocketPair pair;
  int calls = 0;
  const Loop::Watch watch = loop.watch(pair.near.get(), Interest::read, [&](Ready) { ++calls; });
  try {
    const Loop::Watch second = loop.watch(pair.near.get(), Interest::read, [](Ready) {});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::conflict);
    EXPECT_NE(e.message().find(std::to_string(pair.near.get())), std::string::npos);
  }
  pair.say();
  loop.turn();
  EXPECT_EQ(calls, 1);
}

TEST(Loop, HandlesMayOutliveTheLoop) {
  const SocketPair pair;
  Loop::Watch watch;
  Loop::Timer timer;
  std::optional<Loop::Mailbox> mailbox;
  {
    Loop loop;
    watch = loop.watch(pair.near.get(), Interest::read, [](Ready) {});
    timer = loop.after(1h, [] {});
    mailbox = loop.mailbox();
  }
  watch.set(Interest::write);
  watch.end();
  EXPECT_FALSE(timer.armed());
  timer.cancel();
  EXPECT_FALSE(mailbox->post([] { ADD_FAILURE(); }));
}

TEST(Loop, ManyReadyDescriptorsTakeTurns) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  constexpr size_t kCount = 2 * Loop::kMost;
  if (limit.rlim_cur < 2 * kCount + 100) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 2 * kCount + 100);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  Loop loop;
  std::vector<SocketPair> pairs(kCount);
  std::vector<Loop::Watch> watches;
  std::vector<int> calls(kCount);
  int due = 0;
  for (size_t i = 0; i < kCount; ++i) {
    pairs[i].say();  // and nobody reads it
    watches.push_back(
        loop.watch(pairs[i].near.get(), Interest::read, [&, i](Ready) { ++calls[i]; }));
  }
  const Loop::Timer timer = loop.at(loop.now(), [&] { ++due; });
  int posted = 0;
  loop.post([&] { ++posted; });
  loop.turn();
  EXPECT_EQ(due, 1);
  EXPECT_EQ(posted, 1);
  for (int turn = 0; turn < 9; ++turn) loop.turn();
  EXPECT_GE(*std::min_element(calls.begin(), calls.end()), 3);
}

// ---- Timers.

TEST(Loop, TimersComeInTheOrderOfTheirTimesAndOfTheirMaking) {
  ManualClock clock;
  Loop loop(clock.function());
  std::vector<int> order;
  std::vector<Loop::Timer> timers;
  const auto add = [&](int id, milliseconds when) {
    timers.push_back(loop.at(clock.now + when, [&order, id] { order.push_back(id); }));
  };
  add(1, 20ms);
  add(2, 10ms);
  add(3, 20ms);
  add(4, 10ms);
  add(5, 30ms);
  timers[2].cancel();
  clock.now += 9ms;
  loop.turn(clock.now);
  EXPECT_TRUE(order.empty());
  clock.now += 20ms;
  loop.turn(clock.now);
  EXPECT_EQ(order, std::vector<int>({2, 4, 1}));
  EXPECT_FALSE(timers[0].armed());
  EXPECT_TRUE(timers[4].armed());
}

TEST(Loop, ATimerThatIsMadeInATimersCallWaitsForTheNextTurn) {
  ManualClock clock;
  Loop loop(clock.function());
  int rounds = 0;
  Loop::Timer timer;
  std::function<void()> again = [&] {
    ++rounds;
    timer = loop.at(clock.now - 1s, again);
  };
  timer = loop.at(clock.now, again);
  for (int turn = 1; turn <= 5; ++turn) {
    loop.turn(clock.now);
    EXPECT_EQ(rounds, turn);
  }
}

TEST(Loop, ATimerThatIsArmedOnceIsCalledHoweverOftenItIsAskedFor) {
  ManualClock clock;
  Loop loop(clock.function());
  Loop::Timer timer;
  std::vector<int> called;
  for (int i = 0; i < 6; ++i) {
    loop.arm_once(timer, 10ms, [&called, i] { called.push_back(i); });
    clock.now += 4ms;
    loop.turn(clock.now);
  }
  EXPECT_EQ(called, (std::vector<int>{0, 3}));
  EXPECT_FALSE(timer.armed());
}

TEST(Loop, ARepeatedTimerNeitherDriftsNorPilesUp) {
  ManualClock clock;
  Loop loop(clock.function());
  const Deadline start = clock.now;
  std::vector<int64_t> at;
  Loop::Timer timer = loop.every(100ms, [&] { at.push_back((clock.now - start) / 1ms); });
  for (const int64_t when : {99, 103, 199, 207, 649, 650, 700, 1000}) {
    clock.now = start + milliseconds(when);
    loop.turn(clock.now);
    loop.turn(clock.now);
  }
  // 300 to 600 were missed together, and count once.
  EXPECT_EQ(at, std::vector<int64_t>({103, 207, 649, 700, 1000}));
  timer.cancel();
  clock.now += 1s;
  loop.turn(clock.now);
  EXPECT_EQ(at.size(), 5u);
}

TEST(Loop, ARepeatedTimerMayEndItself) {
  ManualClock clock;
  Loop loop(clock.function());
  int calls = 0;
  Loop::Timer timer;
  timer = loop.every(1ms, [&calls, &timer, text = std::string(100, 'z')] {
    timer.cancel();
    calls += text.back() == 'z' ? 1 : 100;
  });
  for (int i = 0; i < 3; ++i) {
    clock.now += 5ms;
    loop.turn(clock.now);
  }
  EXPECT_EQ(calls, 1);
}

// A process that was stopped finds both: the bytes, and a timer that has long been due.
TEST(Loop, WhatHadArrivedBeforeATimersTimeIsDeliveredBeforeIt) {
  ManualClock clock;
  const SocketPair pair;
  std::string order;
  Loop loop([&] { return clock.now; });
  Loop::Watch watch = loop.watch(pair.near.get(), Interest::read, [&](Ready) {
    order += 'r';
    pair.drain();
  });
  const Loop::Timer timer = loop.at(clock.now + 1s, [&] { order += 't'; });
  // It becomes due within the turn, after the look.
  loop.post([&] {
    clock.now += 2s;
    pair.say();
  });
  loop.turn(clock.now);
  EXPECT_EQ(order, "");
  loop.turn(clock.now);
  EXPECT_EQ(order, "rt");
}

TEST(Loop, WaitsForItsTimersByTheRealClock) {
  Loop loop;
  const Deadline start = Clock::now();
  Deadline called{};
  const Loop::Timer timer = loop.after(20ms, [&] {
    called = Clock::now();
    loop.stop();
  });
  const Loop::Timer never = loop.at(Deadline::max(), [] { ADD_FAILURE(); });
  loop.run();
  EXPECT_GE(called, start + 20ms);
  EXPECT_FALSE(loop.run_until(Clock::now() + 5ms));
}

// ---- The course.

TEST(Loop, AStopThatComesFirstIsNotLost) {
  Loop loop;
  loop.stop();
  EXPECT_TRUE(loop.run_until(Clock::now() + 60s));
  EXPECT_FALSE(loop.run_until(Clock::now() + 1ms));
}

TEST(Loop, CanBeStoppedByAnyThread) {
  for (int round = 0; round < 200; ++round) {
    Loop loop;
    std::jthread other([&] { loop.stop(); });
    loop.run();
  }
}

TEST(Loop, AnExceptionOfACallbackLosesNothingElse) {
  Loop loop;
  std::array<SocketPair, 3> pairs;
  std::vector<Loop::Watch> watches;
  std::string order;
  for (size_t i = 0; i < 3; ++i) {
    pairs[i].say();
    watches.push_back(loop.watch(pairs[i].near.get(), Interest::read, [&, i](Ready) {
      order += static_cast<char>('0' + i);
      pairs[i].drain();
      fail(ErrorCode::internal, "descriptor {}", i);
    }));
  }
  for (int i = 0; i < 2; ++i)
    loop.post([&, i] {
      order += static_cast<char>('a' + i);
      fail(ErrorCode::internal, "post");
    });
  std::vector<Loop::Timer> timers;
  for (int i = 0; i < 2; ++i)
    timers.push_back(loop.at(loop.now(), [&, i] {
      order += static_cast<char>('A' + i);
      fail(ErrorCode::internal, "timer");
    }));
  int thrown = 0;
  for (int turn = 0; turn < 20; ++turn) {
    try {
      loop.turn(loop.now());
    } catch (const Error&) {
      ++thrown;
    }
  }
  EXPECT_EQ(thrown, 7);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, "012ABab");
}

TEST(Loop, SignalsAndWakesForNothingDisturbNobody) {
  Loop loop;
  const SocketPair pair;
  int reads = 0;
  Loop::Watch watch = loop.watch(pair.near.get(), Interest::read, [&](Ready) { ++reads; });
  pair.say();
  fail_next_wait = EINTR;
  loop.turn();
  EXPECT_EQ(reads, 0);
  wake_for_nothing = true;
  loop.turn();
  EXPECT_EQ(reads, 0);
  loop.turn();
  EXPECT_EQ(reads, 1);
  // A real one, in a real wait.
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};
  ::sigaction(SIGUSR2, &action, &before);
  pair.drain();
  const pthread_t self = ::pthread_self();
  {
    const std::jthread other([&] {
      for (int i = 0; i < 20; ++i) {
        ::pthread_kill(self, SIGUSR2);
        std::this_thread::sleep_for(1ms);
      }
      loop.stop();
    });
    loop.run();
  }
  ::sigaction(SIGUSR2, &before, nullptr);
  EXPECT_EQ(reads, 1);
}

TEST(Loop, WhatTheKernelRefusesIsThrownAndTheRestGoesOn) {
  Loop loop;
  const SocketPair first, second;
  int reads = 0;
  fail_next_control = ENOMEM;
  EXPECT_THROW({ const auto watch = loop.watch(first.near.get(), Interest::read, [](Ready) {}); },
               Error);
  // The attempt left nothing behind.
  Loop::Watch watch = loop.watch(first.near.get(), Interest::read, [&](Ready) { ++reads; });
  fail_next_control = ENOMEM;
  EXPECT_THROW(watch.set(Interest::both), Error);
  first.say();
  loop.turn();
  EXPECT_EQ(reads, 1);
  watch.set(Interest::none);
  fail_next_control = ENOMEM;
  EXPECT_THROW(watch.set(Interest::read), Error);
  loop.turn(loop.now());
  EXPECT_EQ(reads, 1);
  watch.set(Interest::read);
  loop.turn();
  EXPECT_EQ(reads, 2);
  fail_next_wait = EBADF;
  EXPECT_THROW(loop.turn(), Error);
  loop.turn();
  EXPECT_EQ(reads, 3);
}

}  // namespace
}  // namespace ductile::net
