#include "ductile/comm/cost.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/options.h"

namespace ductile::comm {
namespace {

constexpr int64_t kMiB = 1 << 20;

Fabric hosts(int64_t ranks, int64_t ranks_per_host = 1, double latency = 50e-6) {
  Fabric f;
  f.ranks = ranks;
  f.ranks_per_host = ranks_per_host;
  f.between = {.latency = latency, .bandwidth = 1e9, .overhead = 1e-6};
  return f;
}

TEST(Cost, ClosedFormsAgreeWithTheListsRunInVirtualTime) {
  for (const int64_t p : {4, 8, 16, 36}) {
    for (const int64_t bytes : {int64_t{4096}, kMiB / 4, 4 * kMiB, 64 * kMiB}) {
      for (const Algorithm a : algorithms_of(Collective::all_reduce)) {
        for (const int k : {1, 4}) {
          Fabric f = hosts(p, a == Algorithm::hierarchical ? 4 : 1);
          f.rails = a == Algorithm::torus ? 2 : 1;
          if (bytes / p / k < 64 || f.ranks_per_host == p) continue;
          const Load load{bytes / 4, 4, 0};
          const double exact =
              run_in_virtual_time(Collective::all_reduce, a, f, load, {.pipeline = k}).seconds;
          const double closed = closed_price(Collective::all_reduce, a, f, load, k);
          EXPECT_GT(closed / exact, 0.65) << to_string(a) << p << " " << bytes << " " << k;
          EXPECT_LT(closed / exact, 1.5) << to_string(a) << p << " " << bytes << " " << k;
        }
      }
    }
  }
}

TEST(Cost, TheChoiceByClosedFormsIsNearTheBestList) {
  for (const int64_t g : {1, 4}) {
    for (const int64_t bytes : {int64_t{1024}, kMiB / 16, kMiB, 32 * kMiB}) {
      Fabric f = hosts(16, g);
      f.rails = g == 1 ? 2 : 1;
      const Load load{bytes / 4, 4, 0};
      const Choice choice = choose(Collective::all_reduce, f, load);
      const auto exact = [&](Algorithm a, int k) {
        return run_in_virtual_time(Collective::all_reduce, a, f, load, {.pipeline = k}).seconds;
      };
      double best = 1e9;
      for (const Algorithm a : algorithms_of(Collective::all_reduce)) {
        for (const int k : {1, 4, 8}) best = std::min(best, exact(a, k));
      }
      EXPECT_LE(exact(choice.best.algorithm, choice.best.pipeline), 1.3 * best)
          << g << " " << bytes << " " << choice.reason;
    }
  }
}

TEST(Cost, SmallGoesByDoublingLargeByRingTwoRailsByTorus) {
  const auto chosen = [](const Fabric& f, int64_t bytes) {
    return choose(Collective::all_reduce, f, {bytes / 4, 4, 0}).best.algorithm;
  };
  Fabric f = hosts(8, 1, 1e-3);
  f.between.bandwidth = 25e6;
  EXPECT_EQ(chosen(f, 8), Algorithm::direct);
  EXPECT_NE(chosen(f, 4096), Algorithm::ring);
  const Price large = choose(Collective::all_reduce, f, {25 * kMiB / 4, 4, 0}).best;
  EXPECT_GE(large.pipeline, 1);
  const double bound = 2 * 7.0 / 8 * 25 * kMiB / 25e6;
  EXPECT_LE(large.seconds, 1.05 * bound);
  f.rails = 2;
  EXPECT_EQ(chosen(f, 25 * kMiB), Algorithm::torus);
  EXPECT_EQ(chosen(hosts(32, 8), 25 * kMiB), Algorithm::hierarchical);
  EXPECT_LE(choose(Collective::all_reduce, hosts(1), {100, 4, 0}).best.seconds, 1e-6);
}

TEST(Cost, TheTorusNeedsFewerRoundsThanTheRing) {
  // 2 (P - 1) against 2 (X - 1) + 2 (Y - 1).
  for (const auto& [p, torus] : {std::pair<int64_t, int64_t>{1024, 124}, {65536, 1020}}) {
    const Fabric f = hosts(p);
    EXPECT_EQ(num_rounds(Collective::all_reduce, Algorithm::ring, f), 2 * (p - 1));
    EXPECT_EQ(num_rounds(Collective::all_reduce, Algorithm::torus, f), torus);
    const Load load{kMiB / 4, 4, 0};
    EXPECT_LT(price(Collective::all_reduce, Algorithm::torus, f, load).seconds,
              price(Collective::all_reduce, Algorithm::ring, f, load).seconds);
  }
}

TEST(Cost, ABurstHelpsOneCallAndNotOneOfMany) {
  // A shaper that lets 64 KiB pass at once, then 25 MB/s: doubling has the least latency, and with
  // it the most bytes.
  Fabric f = hosts(4, 1, 50e-6);
  f.between.burst = 64 << 10;
  f.between.sustained = 25e6;
  const Load load{4096, 4, 0};
  const auto once = [&](Algorithm a) {
    return run_in_virtual_time(Collective::all_reduce, a, f, load).seconds;
  };
  EXPECT_LT(once(Algorithm::recursive_doubling), 0.5 * once(Algorithm::ring));
  const double bytes = 2 * 16384.0;
  EXPECT_NEAR(price_of(Collective::all_reduce, Algorithm::recursive_doubling, f, load, 1),
              bytes / 25e6, 1e-5);
  EXPECT_NE(choose(Collective::all_reduce, f, load).best.algorithm, Algorithm::recursive_doubling);
  f.between.sustained = 0;
  EXPECT_EQ(price_of(Collective::all_reduce, Algorithm::recursive_doubling, f, load, 1),
            once(Algorithm::recursive_doubling));
}

TEST(Cost, WithinAHostPiecesAndMessagesOnlyAdd) {
  // The processors move the bytes, so nothing overlaps: with equal bytes fewer messages win.
  Fabric f;
  f.ranks = f.ranks_per_host = 4;
  f.inside = {.latency = 5e-6, .bandwidth = 1e9, .overhead = 20e-6};
  const Load load{kMiB, 4, 0};
  const auto seconds = [&](Algorithm a, int k) {
    return price_of(Collective::all_reduce, a, f, load, k);
  };
  EXPECT_GT(seconds(Algorithm::ring, 8), seconds(Algorithm::ring, 1));
  EXPECT_LT(seconds(Algorithm::halving_doubling, 1), seconds(Algorithm::ring, 1));
  EXPECT_EQ(price(Collective::all_reduce, Algorithm::ring, f, load).pipeline, 1);
  // Unless long messages fall out of the caches.
  f.inside.burst = 32 << 10;
  f.inside.sustained = 0.2e9;
  EXPECT_GT(price(Collective::all_reduce, Algorithm::ring, f, load).pipeline, 1);
}

TEST(Cost, TablesNameEveryAlgorithmTheChoiceAndWhy) {
  const Choice choice = choose(Collective::all_reduce, hosts(7), {kMiB, 4, 0});
  const std::string text = explain(choice);
  for (const Algorithm a : algorithms_of(Collective::all_reduce)) {
    EXPECT_NE(text.find(to_string(a)), std::string::npos) << text;
  }
  EXPECT_NE(text.find("<- chosen"), std::string::npos);
  EXPECT_NE(text.find("7 ranks make no grid"), std::string::npos);
  EXPECT_NE(choice.reason.find("all_reduce of 4 MiB over 7 ranks"), std::string::npos);
  const std::vector<int64_t> ranks = {1024, 65536};
  const std::vector<int64_t> bytes = {kMiB};
  const std::string table = scale_table(hosts(4), ranks, bytes);
  EXPECT_NE(table.find("| 65536 | 256x256 | 1 MiB |"), std::string::npos) << table;
  EXPECT_NE(table.find("131070 / 1020"), std::string::npos) << table;
}

TEST(Cost, AFabricIsReadFromToml) {
  Fabric f;
  OptionSet options(f);
  options.read_toml_text(
      "ranks = 2048\nranks_per_host = 8\n[between]\nlatency = 5e-6\nbandwidth = 25e9\n", "fabric");
  EXPECT_EQ(f.topology().num_ranks, 2048);
  EXPECT_EQ(f.between.bandwidth, 25e9);
  EXPECT_THROW(options.read_toml_text("rank = 1\n", "fabric"), Error);
  EXPECT_THROW(options.read_toml_text("[inside]\nbandwidth = 0\n", "fabric"), Error);
}

TEST(Cost, FusionPaysUntilLatencyIsSmallAgainstTheTransfer) {
  const int64_t near = fusion_bytes(hosts(8, 1, 20e-6));
  const int64_t far = fusion_bytes(hosts(8, 1, 2e-3));
  EXPECT_LT(near, far);
  EXPECT_GE(near, 64 << 10);
  EXPECT_LE(far, 64 * kMiB);
}

}  // namespace
}  // namespace ductile::comm
