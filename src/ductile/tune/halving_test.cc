// ASHA and brackets, move by move.
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/tune/testing/problems.h"
#include "ductile/tune/trial_policy.h"

namespace ductile::tune {
namespace {

constexpr double kLost = std::numeric_limits<double>::quiet_NaN();

// What trial 0 reached with more epochs does not hide that trial 3 was better in the first rung.
TEST(AshaTest, RanksARungByTheValuesThatItsTrialsHadThere) {
  PolicyOptions options;
  options.full_budget = 9;
  const auto policy = make_trial_policy(
      "asha", make_searcher("random", testing::cube(2), {.full_budget = 9}), options);
  const auto expect = [&](MoveKind kind, int64_t trial, double budget, double value) {
    const Move move = policy->next();
    ASSERT_EQ(to_string(move.kind), to_string(kind)) << move.reason;
    ASSERT_EQ(move.trial, trial) << move.reason;
    ASSERT_EQ(move.budget, budget) << move.reason;
    policy->tell({trial, {{budget, value}}});
  };
  expect(MoveKind::start, 0, 1, 0.5);
  expect(MoveKind::start, 1, 1, 0.6);
  expect(MoveKind::start, 2, 1, 0.7);
  expect(MoveKind::resume, 0, 3, 0.1);
  expect(MoveKind::start, 3, 1, 0.4);
  expect(MoveKind::resume, 3, 3, 0.3);
}

// Of nine that train three go on, however many are refused among them.
TEST(HalvingTest, ARefusedTrialLeavesItsPlaceToAnother) {
  for (const char* name : {"halving", "hyperband"}) {
    PolicyOptions options;
    options.full_budget = 9;
    options.halving.settings = 9;
    const auto policy = make_trial_policy(
        name, make_searcher("random", testing::cube(2), {.full_budget = 9}), options);
    int trained = 0;
    Move move = policy->next();
    for (; move.kind == MoveKind::start; move = policy->next()) {
      ASSERT_LT(move.trial, 20);
      Result result;
      result.trial = move.trial;
      result.refused = move.trial % 2 == 1;
      if (!result.refused) result.seen = {{1, static_cast<double>(move.trial)}};
      trained += !result.refused;
      policy->tell(result);
    }
    EXPECT_EQ(trained, 9) << name;
    int dropped = 0;
    for (; move.kind == MoveKind::drop; move = policy->next()) ++dropped;
    EXPECT_EQ(dropped, 6) << name;
  }
}

// They have not come to the second rung, of which trial 0 is the only one then.
TEST(AshaTest, ThoseThatAreLostInTheFirstRungDoNotCountInTheNext) {
  PolicyOptions options;
  options.full_budget = 9;
  const auto policy = make_trial_policy(
      "asha", make_searcher("random", testing::cube(2), {.full_budget = 9}), options);
  for (int64_t t = 0; t < 3; ++t) {
    const Move move = policy->next();
    ASSERT_EQ(move.kind, MoveKind::start);
    ASSERT_EQ(move.trial, t);
    policy->tell({t, {{1, t == 0 ? 0.5 : kLost}}});
  }
  const Move second = policy->next();
  ASSERT_EQ(second.kind, MoveKind::resume);
  ASSERT_EQ(second.budget, 3);
  policy->tell({second.trial, {{2, 0.4}, {3, 0.3}}});
  const Move move = policy->next();
  EXPECT_EQ(to_string(move.kind), to_string(MoveKind::start)) << move.reason;
}

// One goes on once three have trained, however many were refused before.
TEST(AshaTest, ThoseThatAreRefusedAreNoRivals) {
  PolicyOptions options;
  options.full_budget = 9;
  const auto policy = make_trial_policy(
      "asha", make_searcher("random", testing::cube(2), {.full_budget = 9}), options);
  int trained = 0;
  Move move = policy->next();
  for (; move.kind == MoveKind::start; move = policy->next()) {
    ASSERT_LT(move.trial, 20);
    Result result;
    result.trial = move.trial;
    result.refused = move.trial % 3 != 0;
    if (!result.refused) result.seen = {{1, static_cast<double>(move.trial)}};
    trained += !result.refused;
    policy->tell(result);
  }
  EXPECT_EQ(move.kind, MoveKind::resume);
  EXPECT_EQ(trained, 3);
}

}  // namespace
}  // namespace ductile::tune
