#include "ductile/serving/silent_hosts.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace ductile::serving {
namespace {

using std::chrono::seconds;

const net::Deadline kBegin = net::Deadline() + seconds(1000);

TEST(SilentHosts, RestForLongerWithEachLoss) {
  SilentHosts hosts;
  net::Deadline now = kBegin;
  const auto lose = [&] {
    const net::Deadline begun = now += seconds(1);
    return hosts.lost("a", begun, now += seconds(30));
  };
  EXPECT_EQ(lose(), seconds(0)) << "the first one is replaced at once";
  EXPECT_FALSE(hosts.rests("a", now));
  EXPECT_FALSE(hosts.next_end(now).has_value());
  seconds before = SilentHosts::kFirstRest;
  EXPECT_EQ(lose(), before);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(hosts.rests("a", now));
    EXPECT_FALSE(hosts.rests("b", now)) << "it is well";
    EXPECT_EQ(hosts.next_end(now), now + before);
    now += before;
    EXPECT_FALSE(hosts.rests("a", now));
    const seconds rest = lose();
    EXPECT_EQ(rest, std::min(2 * before, SilentHosts::kLongestRest));
    before = rest;
  }
  EXPECT_EQ(hosts.losses("a"), 22);
}

TEST(SilentHosts, ReplicasOfOneOutageCountOnce) {
  SilentHosts hosts;
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(hosts.lost("a", kBegin, kBegin + seconds(60 + i)), seconds(0));
  EXPECT_EQ(hosts.losses("a"), 1);
  EXPECT_EQ(hosts.lost("b", kBegin, kBegin + seconds(64)), seconds(0));
}

TEST(SilentHosts, ForgetWhatWasLongAgo) {
  SilentHosts hosts;
  net::Deadline now = kBegin;
  hosts.lost("a", now, now + seconds(30));
  now += seconds(31);
  EXPECT_EQ(hosts.lost("a", now, now + seconds(30)), SilentHosts::kFirstRest);
  now += seconds(61) + SilentHosts::kMemory;
  EXPECT_EQ(hosts.lost("a", now, now + seconds(30)), seconds(0)) << "the first one again";
}

}  // namespace
}  // namespace ductile::serving
