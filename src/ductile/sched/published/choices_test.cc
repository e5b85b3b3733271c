#include "ductile/sched/published/choices.h"

#include <functional>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/sched/linear_program.h"

namespace ductile::sched {
namespace {

struct Case {
  std::vector<std::vector<Choice>> groups;
  std::vector<int32_t> capacities;
};

Case random_case(uint64_t seed, uint32_t groups, uint32_t most) {
  Rng rng(seed);
  Case c;
  for (int k = 0; k < 2; ++k) c.capacities.push_back(static_cast<int32_t>(rng.below(most)));
  for (uint32_t g = 0; g < groups; ++g) {
    c.groups.emplace_back();
    for (uint32_t i = rng.below(5); i > 0; --i)
      c.groups.back().push_back({rng.uniform(-0.2, 1), static_cast<int32_t>(rng.below(2)),
                                 static_cast<int32_t>(1 + rng.below(4))});
  }
  return c;
}

// All of them.
double brute_force(const Case& c) {
  double best = 0;
  std::vector<int32_t> left = c.capacities;
  const std::function<void(size_t, double)> visit = [&](size_t g, double value) {
    if (g == c.groups.size()) {
      best = std::max(best, value);
      return;
    }
    visit(g + 1, value);
    for (const Choice& choice : c.groups[g]) {
      if (choice.size > left[choice.kind]) continue;
      left[choice.kind] -= choice.size;
      visit(g + 1, value + choice.value);
      left[choice.kind] += choice.size;
    }
  };
  visit(0, 0);
  return best;
}

double value_of(const Case& c, const ChoiceResult& result) {
  std::vector<int32_t> left = c.capacities;
  double value = 0;
  for (size_t g = 0; g < c.groups.size(); ++g) {
    if (result.chosen[g] < 0) continue;
    const Choice& choice = c.groups[g].at(result.chosen[g]);
    left[choice.kind] -= choice.size;
    value += choice.value;
  }
  for (const int32_t l : left) EXPECT_GE(l, 0);
  return value;
}

RC_GTEST_PROP(Choices, ExactEqualsBruteForce, (uint64_t seed)) {
  const Case c = random_case(seed, 6, 9);
  const ChoiceResult result = solve_choices(c.groups, c.capacities);
  const double best = brute_force(c);
  RC_ASSERT(std::abs(result.value - best) < 1e-9);
  RC_ASSERT(std::abs(value_of(c, result) - best) < 1e-9);
  RC_ASSERT(result.bound == result.value);
}

RC_GTEST_PROP(Choices, PricesComeNearAndBoundTheOptimum, (uint64_t seed)) {
  const Case c = random_case(seed, 40, 40);
  const ChoiceResult exact = solve_choices(c.groups, c.capacities);
  const ChoiceResult priced = solve_choices(c.groups, c.capacities, 0);
  RC_ASSERT(std::abs(value_of(c, priced) - priced.value) < 1e-9);
  RC_ASSERT(priced.value <= exact.value + 1e-9);
  RC_ASSERT(priced.bound >= exact.value - 1e-9);
  RC_ASSERT(priced.value >= 0.6 * exact.value - 1);  // rarely below 0.8 of it
}

TEST(Choices, EarlierOnesWinTies) {
  const std::vector<std::vector<Choice>> groups = {{{1, 0, 2}, {1, 0, 1}}};
  const std::vector<int32_t> capacities = {4};
  EXPECT_EQ(solve_choices(groups, capacities).chosen[0], 0);
}

TEST(LinearProgram, SolvesASmallOne) {
  // max 3x + 2y; x + y <= 4; x + 3y <= 6; x <= 3
  const std::vector<double> matrix = {1, 1, 1, 0, 0, 1, 3, 0, 1, 0, 1, 0, 0, 0, 1};
  const std::vector<double> b = {4, 6, 3}, cost = {-3, -2, 0, 0, 0};
  const LinearResult result = solve_linear(matrix, b, cost);
  ASSERT_EQ(result.status, LinearStatus::optimal);
  EXPECT_NEAR(result.objective, -11, 1e-9);
  EXPECT_NEAR(result.x[0], 3, 1e-9);
  EXPECT_NEAR(result.x[1], 1, 1e-9);
}

TEST(LinearProgram, SaysWhatHasNoSolution) {
  const std::vector<double> line = {1, 1}, b = {-1}, cost = {1, 1};
  EXPECT_EQ(solve_linear(line, b, cost).status, LinearStatus::infeasible);
  const std::vector<double> open = {1, -1}, one = {1}, down = {-1, 0};
  EXPECT_EQ(solve_linear(open, one, down).status, LinearStatus::unbounded);
}

// Weak duality on random programmes: no feasible point that is tried is better.
RC_GTEST_PROP(LinearProgram, NoFeasiblePointIsBetter, (uint64_t seed)) {
  Rng rng(seed);
  const size_t rows = 3, columns = 8;
  std::vector<double> matrix(rows * columns), b(rows, 0), cost(columns), point(columns);
  for (double& v : matrix) v = rng.uniform(0, 1);
  for (double& v : cost) v = rng.uniform(-1, 1);
  for (double& v : point) v = rng.below(2) ? rng.uniform(0, 2) : 0;
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) b[r] += matrix[r * columns + c] * point[c];
  const LinearResult result = solve_linear(matrix, b, cost);
  RC_ASSERT(result.status == LinearStatus::optimal);
  double value = 0;
  for (size_t c = 0; c < columns; ++c) value += cost[c] * point[c];
  RC_ASSERT(result.objective <= value + 1e-7);
  for (size_t r = 0; r < rows; ++r) {
    double sum = -b[r];
    for (size_t c = 0; c < columns; ++c) sum += matrix[r * columns + c] * result.x[c];
    RC_ASSERT(std::abs(sum) < 1e-6);
  }
}

}  // namespace
}  // namespace ductile::sched
