#include "ductile/plan/baselines/max_load.h"

#include <cmath>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/base/testing.h"

namespace ductile::plan {
namespace {

using testing::code_of;

// Forward nodes, some with a backward twin of their colour, some backward nodes alone.
MaxLoadProblem random_problem(uint64_t seed) {
  Rng rng(seed, 0);
  MaxLoadProblem p;
  const int forward = 2 + static_cast<int>(rng.below(5));
  const int backward = static_cast<int>(rng.below(4));
  const auto add = [&](bool is_backward) {
    MaxLoadProblem::Node& n = p.nodes.emplace_back();
    n.backward = is_backward;
    if (rng.below(4) != 0) {
      n.accelerator_time = 1 + rng.below(20);
      n.cpu_time = n.accelerator_time * (1 + rng.below(4));
      n.bytes = rng.below(10);
    }
    n.transfer = rng.below(6);
    n.on_accelerator = rng.below(10) != 0;
  };
  for (int v = 0; v < forward; ++v) add(false);
  for (int v = 0; v < backward; ++v) add(true);
  for (int v = 0; v < forward + backward; ++v) {
    if (rng.below(3) == 0) p.nodes[v].colour = rng.below(4);
    for (int w = v + 1; w < forward + backward; ++w) {
      if (rng.below(3) == 0) p.edges.emplace_back(v, w);
    }
  }
  p.accelerators = static_cast<int>(rng.below(3));
  p.cpus = (p.accelerators == 0 ? 1 : 0) + static_cast<int>(rng.below(2));
  p.memory = rng.below(2) == 0 ? 1e9 : 5 + rng.below(30);
  return p;
}

// Every device for every node: colours together, and no two devices that wait for each other.
double brute_force(const MaxLoadProblem& p) {
  const int num = static_cast<int>(p.nodes.size());
  const int devices = p.accelerators + p.cpus;
  std::map<int64_t, bool> has_forward;
  for (const auto& n : p.nodes) has_forward[n.colour] |= n.colour >= 0 && !n.backward;
  std::vector<std::pair<int, int>> order;
  for (const auto& [from, to] : p.edges) {
    const auto orphan = [&](int v) {
      return p.nodes[v].backward && !has_forward[p.nodes[v].colour];
    };
    if (!p.nodes[from].backward && !p.nodes[to].backward) order.emplace_back(from, to);
    if (p.nodes[from].backward && p.nodes[to].backward && (orphan(from) || orphan(to))) {
      order.emplace_back(to, from);
    }
  }
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> at(num, 0);
  while (true) {
    bool allowed = true;
    for (int v = 0; v < num && allowed; ++v) {
      for (int w = 0; w < v && allowed; ++w) {
        allowed = p.nodes[v].colour < 0 || p.nodes[v].colour != p.nodes[w].colour || at[v] == at[w];
      }
    }
    std::vector<std::vector<bool>> before(devices, std::vector<bool>(devices, false));
    for (const auto& [from, to] : order) {
      if (at[from] != at[to]) before[at[from]][at[to]] = true;
    }
    for (int k = 0; k < devices; ++k) {
      for (int i = 0; i < devices; ++i) {
        for (int j = 0; j < devices; ++j) {
          if (before[i][k] && before[k][j]) before[i][j] = true;
        }
      }
    }
    for (int k = 0; k < devices; ++k) allowed = allowed && !before[k][k];
    if (allowed) {
      std::vector<MaxLoadPart> parts(devices);
      for (int d = 0; d < devices; ++d) parts[d].accelerator = d < p.accelerators;
      for (int v = 0; v < num; ++v) parts[at[v]].nodes.push_back(v);
      best = std::min(best, max_load(p, parts));
    }
    int v = 0;
    while (v < num && ++at[v] == devices) at[v++] = 0;
    if (v == num) return best;
  }
}

TEST(MaxLoad, EqualsBruteForceOnSmallProblems) {
  int feasible = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    const MaxLoadProblem p = random_problem(seed);
    const double best = brute_force(p);
    const MaxLoadResult r = max_load_search(p);
    ASSERT_EQ(r.feasible, std::isfinite(best)) << r.failure;
    if (!r.feasible) continue;
    ++feasible;
    ASSERT_NEAR(r.load, best, 1e-8 * best);
    ASSERT_LE(r.lower_bound, r.load);
    ASSERT_NEAR(max_load(p, r.parts), best, 1e-8 * best);
    std::vector<int> times(p.nodes.size(), 0);
    int accelerators = 0;
    for (const MaxLoadPart& part : r.parts) {
      accelerators += part.accelerator;
      for (int v : part.nodes) ++times[v];
    }
    EXPECT_LE(accelerators, p.accelerators);
    EXPECT_LE(static_cast<int>(r.parts.size()) - accelerators, p.cpus);
    for (int t : times) EXPECT_EQ(t, 1);
  }
  EXPECT_GT(feasible, 300);
}

TEST(MaxLoad, AnOutputIsPaidOnceAtEachEnd) {
  // One producer of cost 3, read by two nodes on one other device: 3 there and 3 here.
  MaxLoadProblem p;
  p.memory = 100;
  p.accelerators = 2;
  for (double time : {10.0, 4.0, 6.0}) {
    p.nodes.emplace_back();
    p.nodes.back().accelerator_time = time;
    p.nodes.back().transfer = 3;
  }
  p.edges = {{0, 1}, {0, 2}};
  EXPECT_EQ(max_load(p, {{true, {0}, 0}, {true, {1, 2}, 0}}), 13);
  const MaxLoadResult r = max_load_search(p);
  EXPECT_NEAR(r.load, 13, 1e-6);
  p.nodes[0].transfer = 20;  // then rather all on one
  EXPECT_NEAR(max_load_search(p).load, 20, 1e-6);
}

TEST(MaxLoad, UnfitProblemsAreNamed) {
  MaxLoadProblem p;
  EXPECT_EQ(code_of([&] { max_load_search(p); }), ErrorCode::invalid_argument);
  p.nodes.resize(2);
  p.edges = {{0, 2}};
  EXPECT_EQ(code_of([&] { max_load_search(p); }), ErrorCode::invalid_argument);
  p.edges = {{0, 1}};
  p.nodes[0].bytes = 10;
  p.memory = 5;
  EXPECT_EQ(max_load_search(p).failure, "memory does not suffice");
  p.memory = 10;
  EXPECT_TRUE(max_load_search(p).feasible);
  EXPECT_EQ(max_load_search(p, 1).failure, "too many downsets");
}

}  // namespace
}  // namespace ductile::plan
