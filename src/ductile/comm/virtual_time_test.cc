#include "ductile/comm/virtual_time.h"

#include <gtest/gtest.h>

#include "ductile/comm/cost.h"

namespace ductile::comm {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;

// Two shaped networks on which collectives were measured, 200 Mbit/s a link; the few figures of
// each link are fitted to the medians below.
// A: a bridge with token buckets: the first 128 KiB of an operation pass unshaped.
Link set_up_a() {
  return {.latency = 30e-6,
          .bandwidth = 1e9,
          .overhead = 3e-6,
          .burst = 128.0 * kKiB,
          .sustained = 23.6e6};
}
// B: a switch that delays by 1.05 ms; TCP holds 94 % of the rate for short and 90 % for long.
Link set_up_b() {
  return {.latency = 1.05e-3,
          .bandwidth = 23.6e6,
          .overhead = 20e-6,
          .burst = 2e6,
          .sustained = 22.5e6};
}

Fabric hosts(int64_t ranks, const Link& link, Grid grid = {}) {
  Fabric f;
  f.ranks = ranks;
  f.rails = grid.num_rows > 0 ? 2 : 1;
  f.rows = grid.num_rows;
  f.columns = grid.num_columns;
  f.between = link;
  return f;
}

double milliseconds(const Fabric& fabric, Algorithm algorithm, int64_t bytes, int pipeline) {
  return 1e3 * run_in_virtual_time(Collective::all_reduce, algorithm, fabric, {bytes / 4, 4, 0},
                                   {.pipeline = pipeline})
                   .seconds;
}

TEST(VirtualTime, GivesTheMeasuredMediansWithinTenPercent) {
  struct Median {
    const char* what;
    Fabric fabric;
    Algorithm algorithm;
    int64_t bytes;
    double milliseconds;
  };
  const Link a = set_up_a();
  const Link b = set_up_b();
  using enum Algorithm;
  const Median medians[] = {
      {"B, ring of 4", hosts(4, b), ring, 4 * kKiB, 7.4},
      {"B, ring of 4", hosts(4, b), ring, kMiB, 71.6},
      {"B, ring of 4", hosts(4, b), ring, 25 * kMiB, 1749},
      {"B, ring of 8", hosts(8, b), ring, 4 * kKiB, 14.6},
      {"B, ring of 8", hosts(8, b), ring, kMiB, 89.6},
      {"B, ring of 8", hosts(8, b), ring, 25 * kMiB, 2065},
      {"B, torus 2x2", hosts(4, b, {2, 2}), torus, 4 * kKiB, 4.3},
      {"B, torus 2x2", hosts(4, b, {2, 2}), torus, kMiB, 36.0},
      {"B, torus 2x2", hosts(4, b, {2, 2}), torus, 25 * kMiB, 944},
      {"B, torus 2x4", hosts(8, b, {2, 4}), torus, 4 * kKiB, 8.6},
      {"B, torus 2x4", hosts(8, b, {2, 4}), torus, kMiB, 66.9},
      {"B, torus 2x4", hosts(8, b, {2, 4}), torus, 25 * kMiB, 1430},
      {"B, Rabenseifner on 4", hosts(4, b), halving_doubling, 4 * kKiB, 4.4},
      {"B, Rabenseifner on 8", hosts(8, b), halving_doubling, 4 * kKiB, 6.7},
      {"A, ring of 4", hosts(4, a), ring, kMiB, 65.6},
      {"A, ring of 4", hosts(4, a), ring, 25 * kMiB, 1713},
      {"A, ring of 8", hosts(8, a), ring, 4 * kKiB, 0.52},
      {"A, ring of 8", hosts(8, a), ring, kMiB, 76.0},
      {"A, ring of 8", hosts(8, a), ring, 25 * kMiB, 1933},
  };
  for (const Median& m : medians) {
    const double got = milliseconds(m.fabric, m.algorithm, m.bytes, 1);
    EXPECT_NEAR(got / m.milliseconds, 1, 0.1) << m.what << ", " << m.bytes << " bytes: " << got;
  }
}

TEST(VirtualTime, APipelinedRingComesCloseToTheBandwidthBound) {
  for (const int64_t p : {4, 8}) {
    const Fabric f = hosts(p, set_up_b());
    for (const auto& [bytes, share] : {std::pair{kMiB, 0.94}, {25 * kMiB, 0.98}}) {
      const double sent = 2.0 * static_cast<double>(p - 1) / static_cast<double>(p) * bytes;
      const double bound = 1e3 * (std::min(sent, f.between.burst) / f.between.bandwidth +
                                  std::max(0.0, sent - f.between.burst) / f.between.sustained);
      EXPECT_GE(bound / milliseconds(f, Algorithm::ring, bytes, 4), share) << p << " " << bytes;
    }
  }
}

TEST(VirtualTime, AStaggeredTorusHalvesTheTimeOfTheRingOnGridsOfAnyShape) {
  const int64_t bytes = 25 * kMiB;
  for (const Grid grid : {Grid{2, 2}, Grid{2, 4}, Grid{4, 2}, Grid{3, 4}}) {
    const int64_t p = grid.num_rows * grid.num_columns;
    const double ring = milliseconds(hosts(p, set_up_b()), Algorithm::ring, bytes, 4);
    const double torus = milliseconds(hosts(p, set_up_b(), grid), Algorithm::torus, bytes, 16);
    EXPECT_GE(ring / torus, 1.85) << grid.num_rows << "x" << grid.num_columns;
  }
}

TEST(VirtualTime, TheRailsOfATorusCarryWhatTheLoadFormulaSays) {
  const double size = 24.0 * kMiB;
  const auto run = [&](Grid grid, int pipeline) {
    return run_in_virtual_time(Collective::all_reduce, Algorithm::torus,
                               hosts(grid.num_rows * grid.num_columns, set_up_b(), grid),
                               {24 * kMiB / 4, 4, 0}, {.pipeline = pipeline})
        .rail_bytes;
  };
  const auto halves = run({2, 4}, 1);  // one flow each way
  EXPECT_NEAR(halves[0] / size, 1.125, 0.01);
  EXPECT_NEAR(halves[1] / size, 0.625, 0.01);
  const auto balanced = run({2, 4}, 12);  // 4 of 24 flows along rows first
  EXPECT_NEAR(balanced[0] / size, 0.875, 0.01);
  EXPECT_NEAR(balanced[1] / size, 0.875, 0.01);
}

TEST(VirtualTime, ANarrowWireHalvesTheTimeAndLinksBothWaysHalveItAgain) {
  const Load load{25 * kMiB / 4, 4, 0};
  const Fabric f = hosts(8, set_up_b());
  const auto time = [&](Algorithm a, const Fabric& fabric, const Load& l, int pipeline) {
    return run_in_virtual_time(Collective::all_reduce, a, fabric, l, {.pipeline = pipeline})
        .seconds;
  };
  const double full = time(Algorithm::ring, f, load, 4);
  EXPECT_NEAR(time(Algorithm::ring, f, {load.elements, 4, 2}, 4) / full, 0.5, 0.02);
  Fabric grid = hosts(16, set_up_b(), {4, 4});
  const double one_way = time(Algorithm::torus, grid, load, 8);
  grid.both_directions = true;
  EXPECT_NEAR(time(Algorithm::torus, grid, load, 8) / one_way, 0.5, 0.1);
}

TEST(VirtualTime, EveryCollectiveEndsAndAnEmptyOneTakesNoTime) {
  for (const Collective c :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::broadcast, Collective::all_to_all}) {
    for (const Algorithm a : algorithms_of(c)) {
      for (const int64_t p : {1, 2, 6, 7}) {
        EXPECT_EQ(run_in_virtual_time(c, a, hosts(p, set_up_b()), {0, 4, 0}).seconds, 0);
        const double one = run_in_virtual_time(c, a, hosts(p, set_up_b()), {1, 4, 0}).seconds;
        EXPECT_TRUE(p == 1 ? one < 1e-6 : one > 1e-3) << one;
      }
    }
  }
}

}  // namespace
}  // namespace ductile::comm
