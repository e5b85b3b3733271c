#include <atomic>
#include <list>
#include <optional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/cluster/connection_impl.h"
#include "ductile/cluster/event_feed_impl.h"
#include "ductile/cluster/event_streams_impl.h"
#include "ductile/cluster/testing/failing_vfs.h"

namespace ductile::cluster {
namespace {

using namespace std::chrono_literals;

// One end of a connection, whose other end a stream has.
struct Watcher {
  explicit Watcher(JobId of, Revision after) : job(of), at(after) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    mine = Descriptor(ends[0]);
    theirs = Descriptor(ends[1]);
  }
  void read() {
    char block[4096];
    for (ssize_t n; (n = ::recv(mine.get(), block, sizeof block, 0)) > 0;)
      bytes.append(block, static_cast<size_t>(n));
  }
  // What came, without the sizes of its chunks.
  std::string text() {
    std::string out;
    chunks = 0;
    for (size_t begin = 0; begin < bytes.size(); ++chunks) {
      const size_t size = std::stoul(bytes.substr(begin, 16), nullptr, 16);
      begin = bytes.find("\r\n", begin) + 2;
      out += bytes.substr(begin, size);
      begin += size + 2;
    }
    return out;
  }

  const JobId job;
  const Revision at;
  Descriptor mine, theirs;
  std::optional<Wire> wire;
  std::atomic<bool> welcome = true, over = false;
  std::string bytes;
  int64_t chunks = 0;
};

class Streams : public ::testing::Test {
 protected:
  Streams() {
    queue.commit([](Change& change) {
      for (int i = 0; i < 2; ++i) change.submit({.name = "a", .owner = "ada"}, "{}", 1);
    });
  }
  void begin(EventStreams::Duration patience = 10min, EventStreams::Duration heartbeat = 10min) {
    streams.emplace(api, patience, heartbeat);
  }
  Watcher& watch(JobId job, Revision after) { return add(watchers.emplace_back(job, after)); }
  // All events, over a connection of the loopback interface.
  Watcher& watch_by_tcp(Revision after) {
    Watcher& watcher = watchers.emplace_back(0, after);
    const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const address = reinterpret_cast<sockaddr*>(&here);
    socklen_t size = sizeof here;
    EXPECT_EQ(::bind(listener.get(), address, size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), address, &size), 0);
    watcher.mine = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(watcher.mine.get(), address, size), 0);
    EXPECT_EQ(::fcntl(watcher.mine.get(), F_SETFL, O_NONBLOCK), 0);
    watcher.theirs =
        Descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    return add(watcher);
  }
  Watcher& add(Watcher& watcher) {
    watcher.wire.emplace(watcher.theirs.get());
    EventStreams::Stream stream;
    stream.wire = &*watcher.wire;
    stream.job = watcher.job;
    stream.at = watcher.at;
    stream.welcome = [&watcher] { return watcher.welcome.load(); };
    stream.over = [&watcher] { watcher.over = true; };
    EXPECT_TRUE(streams->add(std::move(stream)));
    return watcher;
  }
  void happen(JobId job, const std::string& body = "{}") {
    queue.commit([&](Change& change) { change.record(job, "test", body, 1); });
  }
  // All that the store has for it.
  std::string expected(const Watcher& watcher) {
    std::string out;
    for (const Event& event : Reader(file).events(
             watcher.at, 1 << 20, watcher.job == 0 ? std::nullopt : std::optional(watcher.job)))
      out += EventFeed::text_of(event);
    return out;
  }
  template <class Condition>
  static bool comes(const Condition& condition) {
    const auto deadline = std::chrono::steady_clock::now() + 2min;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }
  bool gets_all(Watcher& watcher) {
    const size_t size = expected(watcher).size();
    return comes([&] {
      watcher.read();
      return watcher.over || size == 0 ||
             (watcher.bytes.ends_with("\r\n") && watcher.text().size() >= size);
    });
  }

  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  Store store{file, testing::FailingVfs::name()};
  CommitQueue queue{store};
  Api api{file, queue};
  std::list<Watcher> watchers;
  std::optional<EventStreams> streams;
};

TEST_F(Streams, EachIsHandedAllThatItAskedForInOrder) {
  Rng rng(7);
  for (int i = 0; i < 500; ++i) happen(1 + rng.below(2));
  begin();
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 5; ++i) watch(rng.below(3), rng.below(500));
    for (uint32_t n = rng.below(50); n > 0; --n) happen(1 + rng.below(2));
    for (Watcher& watcher : watchers)
      if (rng.below(3) != 0) watcher.read();
  }
  for (Watcher& watcher : watchers) {
    ASSERT_TRUE(gets_all(watcher));
    EXPECT_EQ(watcher.text(), expected(watcher)) << watcher.job << " after " << watcher.at;
  }
}

// One write a stream and event would be a hundred thousand a second.
TEST_F(Streams, AWriteCarriesAllThatHappenedSinceTheLastOne) {
  constexpr int kEvents = 400;
  begin();
  Watcher& watcher = watch(0, Reader(file).last_event());
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kEvents; ++i) happen(1);
  ASSERT_TRUE(gets_all(watcher));
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(watcher.text(), expected(watcher));
  constexpr int64_t kFull = kEvents / static_cast<int64_t>(EventFeed::kMostOfOne);
  EXPECT_LE(watcher.chunks, took / EventStreams::kRest + 1 + kFull);
}

TEST_F(Streams, AClientThatTakesNothingHoldsUpNoOtherAndIsLetGo) {
  begin(3s);
  Watcher& deaf = watch(0, 0);
  Watcher& other = watch(0, 0);
  const std::string large = "{\"text\":\"" + std::string(20'000, 'x') + "\"}";
  for (int i = 0; i < 40; ++i) happen(1, large);  // more than its socket takes
  ASSERT_TRUE(comes([&] {
    other.read();
    return deaf.over.load();
  }));
  ASSERT_TRUE(gets_all(other));
  EXPECT_FALSE(other.over);
  EXPECT_EQ(other.text(), expected(other));
}

TEST_F(Streams, WhoIsNotWelcomeAnyMoreIsToldNothingOfWhatFollows) {
  begin();
  Watcher& watcher = watch(0, 0);
  ASSERT_TRUE(gets_all(watcher));
  watcher.welcome = false;
  happen(1);
  ASSERT_TRUE(comes([&] { return watcher.over.load(); }));
  watcher.read();
  EXPECT_EQ(watcher.text().find("event: test"), std::string::npos);
}

TEST_F(Streams, WhoIsToldNothingElseIsToldSo) {
  begin(10min, 5ms);
  Watcher& watcher = watch(0, Reader(file).last_event());
  ASSERT_TRUE(comes([&] {
    watcher.read();
    return watcher.bytes.find(": nothing new\n\n\r\n") != std::string::npos;
  }));
  EXPECT_FALSE(watcher.over);
}

// Nothing is said to it for ten minutes.
TEST_F(Streams, OneWhoseClientHasGoneIsOverAtOnce) {
  begin();
  const Revision last = Reader(file).last_event();
  for (int i = 0; i < 20; ++i) watch(i % 3, last);
  Watcher& stays = watch(0, last);
  for (Watcher& watcher : watchers)
    if (&watcher != &stays) watcher.mine.close();
  for (Watcher& watcher : watchers) {
    if (&watcher == &stays) continue;
    ASSERT_TRUE(comes([&] { return watcher.over.load(); }));
  }
  happen(1);
  ASSERT_TRUE(gets_all(stays));
  EXPECT_FALSE(stays.over);
  EXPECT_EQ(stays.text(), expected(stays));
}

// Over TCP a client that has closed its connection looks at first like one that says no more.
TEST_F(Streams, OneWhoseClientHasGoneIsOverAtOnceOverTcpToo) {
  begin();
  Watcher& goes = watch_by_tcp(Reader(file).last_event());
  goes.mine.close();
  EXPECT_TRUE(comes([&] { return goes.over.load(); }));
}

TEST_F(Streams, WhoSaysNoMoreAndStillListensIsTold) {
  begin();
  for (const bool by_tcp : {false, true}) {
    const Revision last = Reader(file).last_event();
    Watcher& watcher = by_tcp ? watch_by_tcp(last) : watch(0, last);
    ASSERT_EQ(::shutdown(watcher.mine.get(), SHUT_WR), 0);
    ASSERT_TRUE(comes([&] {  // once, to learn whether it has gone
      watcher.read();
      return watcher.over || watcher.bytes == "f\r\n: nothing new\n\n\r\n";
    }));
    happen(1);
    ASSERT_TRUE(comes([&] {
      watcher.read();
      return watcher.over || watcher.bytes.ends_with(expected(watcher) + "\r\n");
    }));
    EXPECT_FALSE(watcher.over);
  }
}

TEST(EventStreams, OfManyEachIsWrittenToLessOftenAndAllTogetherNotMoreOften) {
  EXPECT_EQ(EventStreams::rest_of(1), EventStreams::kRest);
  for (const size_t streams : {300, 500, 1024, 10'000}) {
    const double seconds = std::chrono::duration<double>(EventStreams::rest_of(streams)).count();
    EXPECT_LE(static_cast<double>(streams) / seconds, 1.01 * EventStreams::kMostWrites) << streams;
    EXPECT_LE(seconds, 5) << streams;
  }
}

TEST_F(Streams, AtTheEndAllAreOverAndNoneIsTaken) {
  begin();
  for (int i = 0; i < 20; ++i) watch(0, 0);
  streams->end();
  for (const Watcher& watcher : watchers) EXPECT_TRUE(watcher.over);
  EXPECT_FALSE(streams->add({}));
  happen(1);  // rings no bell that is gone
}

}  // namespace
}  // namespace ductile::cluster
