#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "ductile/base/rng.h"
#include "ductile/cluster/limits_impl.h"

namespace ductile::cluster {
namespace {

using namespace std::chrono_literals;
using Time = Limits::Time;

HttpLimits small() {
  HttpLimits out;
  out.connections = 5;
  out.strangers = 3;
  out.connections_of_one = 2;
  out.streams = 3;
  out.streams_of_one = 2;
  out.requests_of_one = 1;
  out.rate = 10;
  out.burst = 2;
  return out;
}

TEST(Limits, EachClientHasItsOwnAndAllHaveOneTogether) {
  Limits limits(small());
  std::deque<Limits::Seat> seats;
  const auto take = [&](const std::string& who, bool stranger) {
    Limits::Seat seat = limits.connection(who, stranger);
    const bool got = static_cast<bool>(seat);
    if (got) seats.push_back(std::move(seat));
    return got;
  };
  EXPECT_TRUE(take("?a", true) && take("?a", true));
  EXPECT_FALSE(take("?a", true)) << "it has two";
  EXPECT_TRUE(take("?b", true));
  EXPECT_FALSE(take("?c", true)) << "three are strangers";
  EXPECT_TRUE(take("=x", false) && take("=y", false));
  EXPECT_FALSE(take("=z", false)) << "five are all";
  seats.pop_front();
  EXPECT_TRUE(take("=z", false));
  seats.clear();
  EXPECT_EQ(limits.connections(), 0);
  EXPECT_TRUE(take("?c", true));
}

TEST(Limits, AConnectionIsCountedOnceWhoeverItBecomes) {
  Limits limits(small());
  Limits::Seat one = limits.connection("?a", true), two = limits.connection("?a", true);
  EXPECT_TRUE(limits.becomes(one, "=x"));
  EXPECT_TRUE(limits.becomes(one, "=x"));
  EXPECT_TRUE(limits.becomes(two, "=x"));
  EXPECT_EQ(limits.connections(), 2);
  Limits::Seat three = limits.connection("?a", true);
  EXPECT_FALSE(limits.becomes(three, "=x"));
  EXPECT_EQ(three.who(), "?a");
  one.release();
  EXPECT_TRUE(limits.becomes(three, "=x"));
  two.release();
  three.release();
  EXPECT_EQ(limits.connections(), 0);
}

TEST(Limits, RequestsComeAtARateWithABurst) {
  Limits limits(small());
  Time now{};
  EXPECT_EQ(limits.pace("=x", false, now), 0);
  EXPECT_EQ(limits.pace("=x", false, now), 0);
  EXPECT_NEAR(limits.pace("=x", false, now), 0.1, 1e-9);
  EXPECT_EQ(limits.pace("=y", false, now), 0) << "another client";
  now += 100ms;
  EXPECT_EQ(limits.pace("=x", false, now), 0);
  EXPECT_GT(limits.pace("=x", false, now), 0);
  now += 1h;
  EXPECT_EQ(limits.pace("=x", false, now), 0);
  EXPECT_EQ(limits.pace("=x", false, now), 0);
  EXPECT_GT(limits.pace("=x", false, now), 0) << "no more than the burst is saved up";
}

TEST(Limits, WhoReadTheClockEarlierAndComesLaterGainsNothing) {
  Limits limits(small());
  const Time now = Time{} + 1s;
  EXPECT_EQ(limits.pace("=x", false, now), 0);
  EXPECT_EQ(limits.pace("=x", false, now), 0);
  EXPECT_GT(limits.pace("=x", false, now - 1ms), 0);
  EXPECT_GT(limits.pace("=x", false, now), 0);
}

TEST(Limits, WorkWaitsForTheClientsOwnWorkAlone) {
  Limits limits(small());
  Limits::Seat mine = limits.work("=x", Time{});
  EXPECT_TRUE(mine);
  EXPECT_FALSE(limits.work("=x", Time{}));
  EXPECT_TRUE(limits.work("=y", Time{}));
  std::atomic<bool> got = false;
  std::thread waiting([&] { got = static_cast<bool>(limits.work("=x", Time::max())); });
  mine.release();
  waiting.join();
  EXPECT_TRUE(got);
}

TEST(Limits, StreamsAreCounted) {
  Limits limits(small());
  Limits::Seat a = limits.stream("=x"), b = limits.stream("=x");
  EXPECT_TRUE(a && b);
  EXPECT_FALSE(limits.stream("=x"));
  Limits::Seat c = limits.stream("=y");
  EXPECT_FALSE(limits.stream("=z")) << "three are all";
  a.release();
  EXPECT_TRUE(limits.stream("=z"));
}

TEST(Limits, OneClientHasAtMostHalfOfFew) {
  for (const int all : {1, 2, 3, 8, 100, 2048}) {
    HttpLimits given;
    given.connections = given.streams = all;
    Limits limits(given);
    std::deque<Limits::Seat> seats;
    const auto take = [&](const std::string& who, bool streams) {
      for (int count = 0;; ++count) {
        Limits::Seat seat =
            streams ? limits.stream(who) : limits.connection(who, who.front() == kStranger);
        if (!seat) return count;
        seats.push_back(std::move(seat));
      }
    };
    const int half = std::max(1, (all + 1) / 2);
    EXPECT_LE(take("?a", false), (half + 1) / 2);
    EXPECT_NE(limits.refused_connection("?a", "a").find("as many as one client"),
              std::string::npos);
    seats.clear();
    EXPECT_EQ(take("=x", false), std::min(256, half));
    EXPECT_EQ(take("=x", true), std::min(64, half));
    for (const std::string& text :
         {limits.refused_connection("=x", "x"), limits.refused_stream("=x", "x")})
      EXPECT_NE(text.find("as many as one client may have"), std::string::npos) << text;
    EXPECT_EQ(limits.refused_connection("=y", "y"), "") << "all of them have too many";
    EXPECT_NE(limits.refused_stream("=y", "y").find("as many as there may be"), std::string::npos);
    if (all == 1) continue;
    EXPECT_GE(take("=y", false), std::min(256, all / 2)) << all;
    EXPECT_GE(take("=y", true), std::min(64, all / 2)) << all;
  }
}

TEST(Limits, ConnectionsLeaveDescriptorsForTheRest) {
  EXPECT_EQ(connections_within(1 << 20, 2048), 2048);
  EXPECT_EQ(connections_within(2048 + 1024, 2048), 2048);
  EXPECT_EQ(connections_within(2048, 2048), 1024);
  EXPECT_EQ(connections_within(256, 2048), 128);
  EXPECT_EQ(connections_within(1, 2048), 1);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = std::min<rlim_t>(256, before.rlim_max);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const int most = connections_for(100);
  rlimit raised{};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(most, connections_within(raised.rlim_cur, 100));
  EXPECT_EQ(raised.rlim_cur, std::min<rlim_t>(100 + 1024, before.rlim_max));
  EXPECT_EQ(raised.rlim_max, before.rlim_max);
}

// Many clients that come once leave nothing behind; one that is there is not forgotten.
TEST(Limits, WhoHasNothingIsForgotten) {
  Limits limits(small());
  const Limits::Seat seat = limits.connection("=x", false);
  limits.pace("=x", false, Time{});
  limits.pace("=x", false, Time{});
  for (size_t i = 0; i < 3 * Limits::kMostClients; ++i)
    EXPECT_EQ(limits.pace("?" + std::to_string(i), true, Time{}), 0);
  EXPECT_LE(limits.clients(), Limits::kMostClients + 1);
  EXPECT_GT(limits.pace("=x", false, Time{}), 0);
}

}  // namespace
}  // namespace ductile::cluster
