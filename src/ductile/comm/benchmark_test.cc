#include "ductile/comm/benchmark.h"

#include <mutex>

#include <gtest/gtest.h>

#include "ductile/comm/arena.h"
#include "ductile/comm/calibrate.h"
#include "ductile/comm/testing/rank_threads.h"

namespace ductile::comm {
namespace {

// The result of rank 0; all ranks must agree.
SizeTimes time_on_threads(int size, int64_t bytes, const BenchmarkOptions& options, bool shared) {
  std::vector<SizeTimes> results(static_cast<size_t>(size));
  auto arenas = Arena::for_threads(size, {.region_bytes = 8 << 20});
  auto transports = make_inproc_transports(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      CommunicatorOptions o;
      o.topology.ranks_per_host = shared ? size : 1;
      if (shared) o.arena = std::move(arenas[static_cast<size_t>(r)]);
      Communicator comm(std::move(transports[static_cast<size_t>(r)]), o);
      std::vector<float> data(static_cast<size_t>(bytes) / 4 + 1);
      calibrate(comm, {.large_bytes = 32 << 10, .repeats = 1});
      results[static_cast<size_t>(r)] = time_all_reduce(comm, data.data(), bytes, options);
    });
  }
  for (auto& t : threads) t.join();
  for (const SizeTimes& r : results) {
    EXPECT_EQ(r.chosen, results[0].chosen);
    EXPECT_EQ(r.best, results[0].best);
    EXPECT_EQ(r.regret(), results[0].regret());
  }
  return results[0];
}

TEST(Benchmark, TimesEveryAlgorithmAndSaysWhichWasChosenAndHowFarFromTheBest) {
  const SizeTimes t = time_on_threads(4, 40'000, {.seconds = 0.002}, false);
  EXPECT_TRUE(t.correct);
  EXPECT_EQ(t.bytes, 40'000);
  EXPECT_EQ(t.algorithms.size(), algorithms_of(Collective::all_reduce).size());
  ASSERT_GE(t.chosen, 0);
  ASSERT_GE(t.best, 0);
  EXPECT_GE(t.regret(), 0);
  int measured = 0;
  for (const TimedAlgorithm& a : t.algorithms) {
    EXPECT_GT(a.predicted, 0) << a.name;
    EXPECT_EQ(a.measured.median > 0, a.note.empty()) << a.name;
    EXPECT_LE(a.measured.low, a.measured.median);
    EXPECT_LE(a.measured.median, a.measured.high);
    measured += a.measured.median > 0 ? 1 : 0;
    // Parts overlap: no less than the largest, no more than all of them, plus rounding.
    const PriceParts& p = a.parts;
    EXPECT_GE(a.predicted * 1.4, std::max({p.latency, p.transfer, p.reduction})) << a.name;
    EXPECT_GT(p.rounds, 0);
  }
  EXPECT_GE(measured, 4);
  EXPECT_NE(t.reason.find("all_reduce of"), std::string::npos);
}

TEST(Benchmark, SharedMemoryIsChosenWhereThereIsSome) {
  const SizeTimes t = time_on_threads(3, 70'000, {.seconds = 0.002}, true);
  ASSERT_EQ(t.chosen, 0);
  EXPECT_EQ(t.algorithms[0].name, "shared_memory");
  EXPECT_GT(t.algorithms[0].predicted, 0);
  EXPECT_GT(t.algorithms[0].measured.median, 0);
  EXPECT_TRUE(t.correct);
}

TEST(Benchmark, OnlyWhatWasAskedFor) {
  const SizeTimes t = time_on_threads(
      2, 1 << 20,
      {.variants = {{Algorithm::ring, 4}, {Algorithm::recursive_doubling, 0}}, .seconds = 0.001},
      false);
  ASSERT_EQ(t.algorithms.size(), 2u);
  EXPECT_EQ(t.algorithms[0].name, "recursive_doubling");
  EXPECT_EQ(t.algorithms[1].name, "ring");
  EXPECT_EQ(t.algorithms[1].pipeline, 4);
  EXPECT_TRUE(t.correct);
}

TEST(Benchmark, AWrongSumIsNoticed) {
  const Pattern own(1, 1), sum(0, 1);
  std::vector<float> data(3000);
  own.fill(data.data(), data.size());
  EXPECT_TRUE(own.matches(data.data(), data.size()));
  EXPECT_FALSE(sum.matches(data.data(), data.size()));
  data[2999] += 1;
  EXPECT_FALSE(own.matches(data.data(), data.size()));
}

}  // namespace
}  // namespace ductile::comm
