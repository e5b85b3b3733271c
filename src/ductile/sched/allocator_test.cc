#include "ductile/sched/allocator.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile::sched {
namespace {

using Jobs = std::vector<std::vector<Option>>;

// Concave-ish curves of random scale, with noise that breaks the concavity.
Jobs random_jobs(Rng& rng, int jobs, int types, int largest) {
  Jobs result;
  for (int j = 0; j < jobs; ++j) {
    std::vector<Option> choices;
    const double weight = std::exp(rng.uniform(-3, 3));
    for (int t = 0; t < types; ++t) {
      if (rng.below(5) == 0) continue;
      const double speed = rng.uniform(0.5, 4);
      const double power = rng.uniform(0.3, 1);
      for (int k = 1; k <= largest; k *= 2)
        if (rng.below(6) != 0)
          choices.push_back({t, k, weight * speed * std::pow(k, power) * rng.uniform(0.9, 1.1)});
    }
    result.push_back(choices);
  }
  return result;
}

// The optimum by trying everything.
double brute_force(const Jobs& jobs, std::vector<int64_t> left, size_t from = 0) {
  if (from == jobs.size()) return 0;
  double best = brute_force(jobs, left, from + 1);
  for (const Option& c : jobs[from]) {
    auto& l = left[static_cast<size_t>(c.type)];
    if (c.gpus > l) continue;
    l -= c.gpus;
    best = std::max(best, c.value + brute_force(jobs, left, from + 1));
    l += c.gpus;
  }
  return best;
}

void set_all(Allocator& allocator, const Jobs& jobs) {
  for (size_t j = 0; j < jobs.size(); ++j) allocator.set_job(static_cast<int>(j), jobs[j]);
}

// Recomputes everything a result claims from the choices made.
void check_result(const Allocator& a, const Jobs& jobs) {
  std::vector<int64_t> used(a.capacity().size());
  double value = 0;
  for (size_t j = 0; j < jobs.size(); ++j) {
    const int c = a.chosen(static_cast<int>(j));
    if (c < 0) continue;
    ASSERT_LT(static_cast<size_t>(c), jobs[j].size());
    used[static_cast<size_t>(jobs[j][static_cast<size_t>(c)].type)] +=
        jobs[j][static_cast<size_t>(c)].gpus;
    value += jobs[j][static_cast<size_t>(c)].value;
  }
  for (size_t t = 0; t < used.size(); ++t) {
    EXPECT_LE(used[t], a.capacity()[t]);
    EXPECT_EQ(used[t], a.used()[t]);
  }
  EXPECT_NEAR(value, a.result().objective, 1e-9 * (1 + value));
  EXPECT_LE(a.result().objective, a.result().bound * (1 + 1e-12));
}

TEST(Hull, IsTheLeastConcaveCurveAboveTheChoices) {
  const std::vector<Option> choices{{0, 1, 1}, {0, 2, 1.5}, {0, 4, 3.5}, {0, 8, 3.4},
                                    {1, 1, 9}, {0, 6, 4},   {0, 4, 2},   {0, 3, 0}};
  std::vector<HullPoint> hull;
  append_hull(choices, 0, 100, hull);
  ASSERT_EQ(hull.size(), 3u);
  EXPECT_EQ(hull[0].gpus, 1);
  EXPECT_EQ(hull[1].gpus, 4);
  EXPECT_EQ(hull[1].choice, 2);
  EXPECT_EQ(hull[2].gpus, 6);
  EXPECT_DOUBLE_EQ(hull[1].slope, 2.5 / 3);
  for (int i = 0; i < 2000; ++i) {
    Rng rng(7, static_cast<uint64_t>(i));
    std::vector<Option> random;
    for (uint32_t k = 1 + rng.below(10); k > 0; --k)
      random.push_back({0, static_cast<int32_t>(1 + rng.below(12)), rng.uniform(-1, 5)});
    hull.clear();
    append_hull(random, 0, 100, hull);
    for (size_t k = 1; k < hull.size(); ++k) EXPECT_LT(hull[k].slope, hull[k - 1].slope);
    for (const Option& c : random) {
      // The hull's height at c.gpus, the origin included, flat beyond the last corner.
      double height = 0, value = 0;
      int gpus = 0;
      for (const HullPoint& p : hull) {
        height = c.gpus <= p.gpus ? value + p.slope * (c.gpus - gpus) : p.value;
        value = p.value, gpus = p.gpus;
        if (c.gpus <= p.gpus) break;
      }
      EXPECT_GE(height, c.value - 1e-12);
    }
  }
}

TEST(Allocator, MatchesBruteForceAndItsBoundIsNeverBelowTheOptimum) {
  int exact = 0, total = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(1, seed);
    const int types = 1 + static_cast<int>(rng.below(3));
    const Jobs jobs = random_jobs(rng, 1 + static_cast<int>(rng.below(5)), types, 8);
    std::vector<int64_t> capacity;
    for (int t = 0; t < types; ++t) capacity.push_back(rng.below(13));
    AllocatorOptions options;
    options.target_gap = 0;
    options.exact_labels = 4096;
    Allocator a(capacity, options);
    set_all(a, jobs);
    a.solve();
    check_result(a, jobs);
    const double optimum = brute_force(jobs, capacity);
    EXPECT_GE(a.result().bound, optimum * (1 - 1e-9));
    EXPECT_LE(a.result().objective, optimum * (1 + 1e-9));
    if (a.result().exact) {
      EXPECT_NEAR(a.result().objective, optimum, 1e-9 * (1 + optimum));
    }
    exact += a.result().exact;
    ++total;

    options.exact_labels = 0;  // prices and repair alone
    Allocator plain(capacity, options);
    set_all(plain, jobs);
    plain.solve();
    check_result(plain, jobs);
    EXPECT_GE(plain.result().bound, optimum * (1 - 1e-9));
  }
  EXPECT_GT(exact, total * 99 / 100);
}

TEST(Allocator, KeepsItsPromisesOverRoundsOfChange) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(2, seed);
    const int types = 1 + static_cast<int>(rng.below(3));
    std::vector<int64_t> capacity;
    for (int t = 0; t < types; ++t) capacity.push_back(20 + rng.below(40));
    AllocatorOptions options;
    options.target_gap = 0.01;
    Allocator a(capacity, options);
    Jobs jobs = random_jobs(rng, 40, types, 16);
    set_all(a, jobs);
    for (int round = 0; round < 30; ++round) {
      a.solve();
      check_result(a, jobs);
      Allocator fresh(capacity, options);
      set_all(fresh, jobs);
      fresh.solve_afresh();
      // Each one's bound holds for the other's solution.
      EXPECT_LE(a.result().objective, fresh.result().bound * (1 + 1e-9));
      EXPECT_LE(fresh.result().objective, a.result().bound * (1 + 1e-9));
      for (uint32_t change = rng.below(5); change > 0; --change) {
        const size_t j = rng.below(static_cast<uint32_t>(jobs.size() + 2));
        if (j >= jobs.size()) jobs.resize(j + 1);
        jobs[j] = rng.below(4) == 0 ? std::vector<Option>{} : random_jobs(rng, 1, types, 16)[0];
        a.set_job(static_cast<int>(j), jobs[j]);
      }
      if (rng.below(10) == 0) {
        capacity[0] = rng.below(60);
        a.set_capacity(capacity);
      }
    }
  }
}

TEST(Allocator, ProvesASmallGapOnClustersOfThreeTypes) {
  double worst = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(3, seed);
    const std::vector<int64_t> capacity{24 * 8, 24 * 8, 16 * 8};
    AllocatorOptions options;
    options.exact_labels = 0;
    Allocator a(capacity, options);
    const Jobs jobs = random_jobs(rng, 600, 3, 64);
    set_all(a, jobs);
    a.solve();
    check_result(a, jobs);
    worst = std::max(worst, a.result().gap());
  }
  EXPECT_LT(worst, 0.03);
}

TEST(Allocator, LeavesUnchangedRoundsAlone) {
  Rng rng(4);
  Allocator a({64, 64}, {});
  const Jobs jobs = random_jobs(rng, 200, 2, 8);
  set_all(a, jobs);
  a.solve();
  const double objective = a.result().objective;
  std::vector<int> chosen;
  for (int j = 0; j < a.num_jobs(); ++j) chosen.push_back(a.chosen(j));
  a.solve();
  EXPECT_EQ(a.result().objective, objective);
  for (int j = 0; j < a.num_jobs(); ++j) EXPECT_EQ(a.chosen(j), chosen[static_cast<size_t>(j)]);
  EXPECT_EQ(a.result().evaluations, 0);
}

TEST(Allocator, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Allocator({}, {}), Error);
  EXPECT_THROW(Allocator({-1}, {}), Error);
  Allocator a({4}, {});
  EXPECT_THROW(a.set_job(0, std::vector<Option>{{1, 1, 1.0}}), Error);
  a.solve();
  EXPECT_EQ(a.result().objective, 0);
}

}  // namespace
}  // namespace ductile::sched
