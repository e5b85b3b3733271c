#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/sched/published/pollux_search_impl.h"

namespace ductile::sched {
namespace {

PolluxProblem small_problem(uint64_t seed, size_t jobs, size_t nodes) {
  Rng rng(seed);
  PolluxProblem p;
  p.capacity.assign(nodes, 4);
  p.most_replicas = static_cast<int32_t>(4 * nodes);
  p.base.assign(jobs * nodes, 0);
  p.seed = seed;
  for (size_t j = 0; j < jobs; ++j) {
    PolluxJob job;
    job.max_replicas = 1 + static_cast<int32_t>(rng.below(8));
    job.restart_factor = rng.uniform(0.5, 1);
    const double bend = rng.uniform(0.3, 1), link = rng.uniform(0.5, 1);
    job.speedup.assign((nodes + 1) * (p.most_replicas + 1), 0);
    for (size_t n = 1; n <= nodes; ++n)
      for (int32_t k = 1; k <= p.most_replicas; ++k)
        job.speedup[n * (p.most_replicas + 1) + k] =
            static_cast<float>(std::pow(k, bend) * (n > 1 ? link : 1));
    p.jobs.push_back(std::move(job));
  }
  return p;
}

// The definition, written out.
double slow_fitness(const PolluxProblem& p, const PolluxState& state) {
  const size_t nodes = p.capacity.size();
  double sum = 0, total = 0;
  for (const int8_t c : p.capacity) total += c;
  for (size_t j = 0; j < p.jobs.size(); ++j) {
    int replicas = 0, spread = 0;
    bool moved = false;
    for (size_t n = 0; n < nodes; ++n) {
      const int here = state[j * nodes + n];
      replicas += here;
      spread += here > 0;
      moved |= here != p.base[j * nodes + n];
    }
    double speedup = p.jobs[j].speedup[spread * (p.most_replicas + 1) + replicas];
    speedup *= 1 / total * static_cast<double>(nodes) * (moved ? p.jobs[j].restart_factor : 1);
    sum += std::pow(speedup + 1e-3, -1);
  }
  return std::pow(sum / static_cast<double>(p.jobs.size()), -1);
}

void expect_legal(const PolluxProblem& p, const PolluxState& state) {
  const size_t nodes = p.capacity.size();
  std::vector<int> used(nodes, 0), spread_jobs(nodes, 0);
  for (size_t j = 0; j < p.jobs.size(); ++j) {
    int replicas = 0, spread = 0;
    for (size_t n = 0; n < nodes; ++n) {
      EXPECT_GE(state[j * nodes + n], 0);
      replicas += state[j * nodes + n];
      spread += state[j * nodes + n] > 0;
      used[n] += state[j * nodes + n];
    }
    EXPECT_LE(replicas, p.jobs[j].max_replicas);
    if (spread > 1)
      for (size_t n = 0; n < nodes; ++n) spread_jobs[n] += state[j * nodes + n] > 0;
  }
  for (size_t n = 0; n < nodes; ++n) {
    EXPECT_LE(used[n], p.capacity[n]);
    EXPECT_LE(spread_jobs[n], 1);
  }
}

RC_GTEST_PROP(PolluxSearch, RepairMakesAnyStateLegal, (uint64_t seed)) {
  const PolluxProblem p = small_problem(seed, 6, 4);
  Rng rng(seed, 1);
  PolluxState state(24);
  for (int8_t& cell : state) cell = static_cast<int8_t>(rng.below(6));
  pollux_repair(p, seed, state);
  expect_legal(p, state);
  PolluxState again = state;
  pollux_repair(p, seed, again);
  RC_ASSERT(again == state);
}

RC_GTEST_PROP(PolluxSearch, FitnessIsTheDefinition, (uint64_t seed)) {
  const PolluxProblem p = small_problem(seed, 5, 3);
  Rng rng(seed, 1);
  PolluxState state(15);
  for (int8_t& cell : state) cell = static_cast<int8_t>(rng.below(3));
  pollux_repair(p, 1, state);
  RC_ASSERT(std::abs(pollux_fitness(p, state) / slow_fitness(p, state) - 1) < 1e-6);
}

TEST(PolluxSearch, FindsNearlyTheBestOfASmallProblem) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const PolluxProblem p = small_problem(seed, 3, 2);
    double best = 0;
    PolluxState state(6);
    for (int code = 0; code < 15625; ++code) {
      int rest = code;
      for (int8_t& cell : state) {
        cell = static_cast<int8_t>(rest % 5);
        rest /= 5;
      }
      PolluxState repaired = state;
      pollux_repair(p, 1, repaired);
      if (repaired == state) best = std::max(best, pollux_fitness(p, state));
    }
    const PolluxFront front = search(p, {});
    EXPECT_GE(front.fitness, 0.98 * best) << seed;
    EXPECT_LE(front.fitness, best * (1 + 1e-9));
    for (const PolluxState& one : front.states) expect_legal(p, one);
  }
}

TEST(PolluxSearch, SameSeedSameFront) {
  const PolluxProblem p = small_problem(3, 8, 4);
  const PolluxFront a = search(p, {}), b = search(p, {});
  EXPECT_EQ(a.states, b.states);
  EXPECT_EQ(a.fitness, b.fitness);
}

}  // namespace
}  // namespace ductile::sched
