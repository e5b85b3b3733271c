#include "ductile/sched/sla.h"

#include <cmath>
#include <queue>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/sched/queueing.h"

namespace ductile::sched {
namespace {

TEST(SlaAccount, SumsUpOverWindows) {
  Rng rng(3);
  for (int run = 0; run < 200; ++run) {
    const double start = rng.uniform(0, 1000), window = rng.uniform(50, 500);
    SlaAccount account(start, window);
    std::vector<SlaWindow> closed;
    double now = start, granted = 0, asked = 0;
    // The slow twin: a second at a time.
    std::vector<double> twin_granted(400, 0), twin_asked(400, 0);
    for (int step = 0; step < 30; ++step) {
      const double seconds = rng.below(200), demand = 1 + rng.below(8),
                   got = rng.uniform(0, 1) * demand * seconds;
      for (int t = 0; t < seconds; ++t)
        for (double piece = 0; piece < 1; piece += 0.01) {
          const auto w = static_cast<size_t>((now + t + piece + 0.005 - start) / window);
          twin_granted[w] += got / seconds * 0.01;
          twin_asked[w] += demand * 0.01;
        }
      now += seconds;
      granted += got;
      asked += demand * seconds;
      account.pass(now, demand, got, closed);
    }
    EXPECT_NEAR(account.open().to, now, 1e-9);
    double sum_granted = account.open().granted, sum_asked = account.open().asked;
    for (size_t w = 0; w < closed.size(); ++w) {
      EXPECT_NEAR(closed[w].to - closed[w].from, window, 1e-6);
      EXPECT_NEAR(closed[w].granted, twin_granted[w], 0.2);
      EXPECT_NEAR(closed[w].asked, twin_asked[w], 0.2);
      sum_granted += closed[w].granted;
      sum_asked += closed[w].asked;
    }
    EXPECT_NEAR(sum_granted, granted, 1e-6 * (1 + granted));
    EXPECT_NEAR(sum_asked, asked, 1e-6 * (1 + asked));
    const size_t before = closed.size();
    const bool half = account.open().to - account.open().from >= window / 2;
    account.end(closed);
    EXPECT_EQ(closed.size(), before + half);
  }
}

TEST(Owed, KeepsThePromiseAgainstAnyInterruption) {
  // Whoever grants what is owed, and nothing else, ends every window at its guarantee; one stop of
  // a twentieth of the window, at any time, is made up for by Premium.
  for (const Tier tier : {Tier::premium, Tier::standard})
    for (double stop = 0; stop < kSlaWindow; stop += 300) {
      SlaAccount account;
      std::vector<SlaWindow> closed;
      for (double now = 0; now < kSlaWindow; now += 60) {
        const bool stopped = now >= stop && now < stop + kSlaWindow / 20;
        const double owed = owed_devices(tier, guarantee(tier), 0.03, 8, account.open()).devices;
        account.pass(now + 60, 8, stopped ? 0 : 60 * owed, closed);
      }
      ASSERT_EQ(closed.size(), 1u);
      const double late = stop > kSlaWindow * 0.9 ? 0.03 : 0;  // nothing is left to catch up in
      EXPECT_GE(closed[0].fraction(), guarantee(tier) - late) << to_string(tier) << " " << stop;
    }
  EXPECT_EQ(owed_devices(Tier::basic, 0, 0.03, 8, {}).devices, 0);
  EXPECT_FALSE(owed_devices(Tier::standard, 0.7, 0.03, 8, {0, 600, 0, 4800}).urgent);
  EXPECT_TRUE(owed_devices(Tier::standard, 0.7, 0.03, 8, {0, 900, 0, 7200}).urgent);
}

TEST(Erlang, AgreesWithSumsAndWithASimulatedQueue) {
  for (int32_t c = 1; c <= 30; ++c)
    for (double part : {0.1, 0.5, 0.9, 0.99}) {
      const double a = part * c;
      double term = 1, sum = 0;
      for (int32_t k = 0; k < c; ++k) {
        sum += term;
        term *= a / (k + 1);
      }
      const double top = term * c / (c - a);
      EXPECT_NEAR(erlang_c(c, a), top / (sum + top), 1e-9);
    }
  EXPECT_EQ(erlang_c(3, 3), 1);
  EXPECT_EQ(erlang_c(3, 0), 0);

  Rng rng(9);
  const double load = 8, rate = 1;
  const int32_t servers = 10;
  const auto exponential = [&](double mean) { return -std::log(1 - rng.uniform(0, 1)) * mean; };
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int32_t s = 0; s < servers; ++s) free.push(0);
  double now = 0, waited = 0, within = 0;
  constexpr int kRequests = 400'000;
  for (int i = 0; i < kRequests; ++i) {
    now += exponential(1 / load);
    const double begin = std::max(now, free.top());
    free.pop();
    free.push(begin + exponential(1 / rate));
    waited += begin - now;
    within += begin - now <= 0.5;
  }
  EXPECT_NEAR(within / kRequests, on_time_share(load, servers, rate, 1 / rate + 0.5), 0.01);
  EXPECT_NEAR(waited / kRequests + 1 / rate, mean_latency(load, servers, rate), 0.02);
}

TEST(Replicas, AreTheLeastThatWillDo) {
  Rng rng(4);
  for (int run = 0; run < 500; ++run) {
    const double load = rng.uniform(0, 300), rate = rng.uniform(0.5, 20);
    const double target = 1 / rate * rng.uniform(1.01, 4), goal = 0.9 + 0.099 * rng.uniform();
    const int32_t least = 1 + static_cast<int32_t>(rng.below(4));
    int32_t twin = least;
    while (on_time_share(load, twin, rate, target) < goal) ++twin;
    EXPECT_EQ(replicas_needed(load, rate, target, goal, least), twin);
  }
  EXPECT_EQ(replicas_needed(100, 10, 0.05, 0.99, 1), 13);  // no number answers in time
}

}  // namespace
}  // namespace ductile::sched
