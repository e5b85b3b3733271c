#include "ductile/cluster/ledger.h"

#include <gtest/gtest.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"

namespace ductile::cluster {
namespace {

Event allocation(Revision seq, double time, JobId job, const nlohmann::json& nodes) {
  return {seq, time, job, "allocation", dump_json(nlohmann::json{{"nodes", nodes}})};
}

TEST(Ledger, KnowsWhoHeldWhatAndForHowLong) {
  Ledger ledger;
  ledger.add(allocation(1, 100, 7, {{"a", 2}}));
  ledger.add(allocation(2, 110, 7, {{"a", 1}, {"b", 3}}));
  ledger.add({3, 111, 7, "reason", "{}"});
  EXPECT_EQ(ledger.device_seconds(7, 115), 2 * 10 + 4 * 5);
  ledger.add({4, 120, 7, "finished", "{}"});
  EXPECT_EQ(ledger.device_seconds(7, 500), 2 * 10 + 4 * 10);
  EXPECT_EQ(ledger.device_seconds(8, 500), 0);
  const std::vector<HeldSpan> want = {{7, "a", 1, 110, 120}, {7, "b", 3, 110, 120}};
  EXPECT_EQ(ledger.spans(110), want);
  EXPECT_EQ(ledger.seen(), 4);
  ledger.add(allocation(2, 110, 7, {{"a", 9}}));  // it was taken already
  EXPECT_EQ(ledger.spans(110), want);
}

TEST(Ledger, BearsDamagedEventsAndAClockThatIsSetBack) {
  Ledger ledger;
  for (const char* body : {"", "[]", "{\"nodes\": 3}", "{\"nodes\": {\"a\": \"x\", \"b\": -4}}"})
    ledger.add({ledger.seen() + 1, 5, 1, "allocation", body});
  EXPECT_TRUE(ledger.spans(0).empty());
  ledger.add(allocation(10, 100, 1, {{"a", 1}}));
  ledger.add({11, 50, 1, "paused", "{}"});
  EXPECT_EQ(ledger.device_seconds(1, 1000), 0);
}

// The same from a list of seconds.
TEST(Ledger, AgreesWithCountingEachSecond) {
  Rng rng(1);
  for (int round = 0; round < 20; ++round) {
    Ledger ledger;
    constexpr int kJobs = 4;
    int64_t held[kJobs] = {};
    double want[kJobs] = {};
    Revision seq = 0;
    for (int second = 0; second < 300; ++second) {
      for (int job = 0; job < kJobs; ++job) {
        if (rng.below(10) != 0) continue;
        held[job] = static_cast<int64_t>(rng.below(4));
        nlohmann::json nodes = nlohmann::json::object();
        if (held[job] > 0) nodes["a"] = held[job];
        if (held[job] == 0 && rng.below(2) == 0)
          ledger.add({++seq, double(second), job + 1, "queued", "{}"});
        else
          ledger.add(allocation(++seq, second, job + 1, nodes));
      }
      for (int job = 0; job < kJobs; ++job) {
        EXPECT_EQ(ledger.device_seconds(job + 1, second), want[job]);
        want[job] += static_cast<double>(held[job]);
      }
    }
  }
}

TEST(Ledger, ForgetsTheSumsOfJobsThatAreNotKept) {
  Ledger ledger;
  for (JobId job = 1; job <= 3; ++job) {
    ledger.add(allocation(2 * job, 10, job, {{"a", 1}}));
    ledger.add({2 * job + 1, 15, job, "finished", "{}"});
  }
  EXPECT_EQ(ledger.sums(), 3u);
  ledger.keep_only({2});
  EXPECT_EQ(ledger.sums(), 1u);
  EXPECT_EQ(ledger.device_seconds(2, 100), 5);
  EXPECT_EQ(ledger.device_seconds(3, 100), 0);
}

TEST(Ledger, RemembersABoundedNumberOfSpans) {
  Ledger ledger;
  for (int64_t i = 1; i <= 30000; ++i)
    ledger.add(allocation(i, static_cast<double>(i), 1, {{"a", 1 + i % 2}}));
  EXPECT_EQ(ledger.spans(0).size(), Ledger::kMostSpans + 1);
  EXPECT_EQ(ledger.spans(29999).size(), 2u);
}

}  // namespace
}  // namespace ductile::cluster
