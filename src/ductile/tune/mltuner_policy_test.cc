// MLtuner's rule, step by step, with losses written down.
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/tune/testing/problems.h"
#include "ductile/tune/trial_policy.h"

namespace ductile::tune {
namespace {

class MlTunerTest : public ::testing::Test {
 protected:
  void begin(double full, double bound, double total = 1e9, int64_t side_by_side = 1,
             double search_share = 1, bool forks = true) {
    PolicyOptions options;
    options.mltuner.forks = forks;
    options.mltuner.search_share = search_share;
    options.full_budget = full;
    options.total_budget = total;
    options.mltuner.side_by_side = side_by_side;
    options.least_budget = 2;
    options.mltuner.trial_bound = bound;
    policy_ = make_trial_policy(
        "mltuner", make_searcher("random", testing::cube(2), {.full_budget = full}), options);
  }
  // The next move is this one; its values come from `value`.
  void expect(MoveKind kind, int64_t trial, double budget, double (*value)(double) = nullptr) {
    Move move = policy_->next();
    while (move.kind == MoveKind::drop) {
      dropped_.insert(move.trial);
      move = policy_->next();
    }
    ASSERT_EQ(to_string(move.kind), to_string(kind)) << move.reason;
    ASSERT_EQ(move.trial, trial) << move.reason;
    ASSERT_EQ(move.budget, budget) << move.reason;
    if (value == nullptr) return;
    Result result;
    result.trial = trial;
    for (double b = policy_->searcher().trials()[static_cast<size_t>(trial)].budget() + 1;
         b <= budget; ++b)
      result.seen.push_back({b, value(b)});
    policy_->tell(result);
    parents_[trial] = move.parent;
  }

  std::unique_ptr<TrialPolicy> policy_;
  std::set<int64_t> dropped_;
  std::map<int64_t, int64_t> parents_;
};

double rises(double b) { return 1 + b; }
double falls(double b) { return 10 - b; }
double falls_fast(double b) { return 10 - 2 * b; }
double falls_a_little(double b) { return 10 - 1.95 * b; }
double stays(double) { return 4; }

TEST_F(MlTunerTest, DoublesTheTimeUntilATrialConvergesThenComparesOneAtATime) {
  begin(64, 8);
  expect(MoveKind::start, 0, 2, rises);
  expect(MoveKind::resume, 0, 4, rises);  // nothing converges: twice the time, and one more trial
  expect(MoveKind::start, 1, 4, falls);
  EXPECT_FALSE(policy_->runs_one());
  expect(MoveKind::start, 2, 4, falls_fast);  // trial 1 converges: its time holds
  EXPECT_TRUE(policy_->runs_one());
  EXPECT_TRUE(dropped_.contains(0));
  expect(MoveKind::start, 3, 4, falls);  // not better
  EXPECT_TRUE(dropped_.contains(1));
  expect(MoveKind::start, 4, 4, falls_a_little);
  EXPECT_TRUE(dropped_.contains(3));
  expect(MoveKind::start, 5, 4, falls_a_little);
  expect(MoveKind::start, 6, 4, falls_a_little);
  expect(MoveKind::start, 7, 4, falls_a_little);
  // The best five slopes are within a tenth: the best trial is trained.
  expect(MoveKind::resume, 2, 5, falls_fast);
  EXPECT_TRUE(policy_->runs_one());
  EXPECT_EQ(parents_[0], -1);
  // A plateau of four values begins another search, whose trials take over its state.
  for (double b = 6; b <= 9; ++b) expect(MoveKind::resume, 2, b, [](double) { return 0.5; });
  expect(MoveKind::start, 8, 2, falls_fast);
  EXPECT_EQ(parents_[8], 2);
}

TEST_F(MlTunerTest, StopsWhenAnotherSearchBroughtNoNewBest) {
  begin(64, 2);
  expect(MoveKind::start, 0, 2, falls_fast);
  for (int64_t t = 1; t <= 4; ++t) expect(MoveKind::start, t, 2, falls_fast);
  for (double b = 3; b <= 7; ++b) expect(MoveKind::resume, 0, b, stays);
  for (int64_t t = 5; t <= 9; ++t) expect(MoveKind::start, t, 2, falls_fast);
  expect(MoveKind::resume, 5, 3, stays);  // the fifth value without a new best
  expect(MoveKind::stop, -1, 0);
}

TEST_F(MlTunerTest, TrialsAtTheBoundAreDroppedButTheBestUnstableOne) {
  begin(64, 4);
  const auto unstable = [](double b) { return b == 2 ? 12.0 : 10 - b; };
  expect(MoveKind::start, 0, 2, rises);
  expect(MoveKind::resume, 0, 4, rises);
  expect(MoveKind::start, 1, 4, unstable);
  expect(MoveKind::start, 2, 4, rises);
  EXPECT_TRUE(dropped_.contains(0));
  EXPECT_FALSE(dropped_.contains(1));
  expect(MoveKind::start, 3, 4, rises);
  EXPECT_TRUE(dropped_.contains(2));
}

TEST_F(MlTunerTest, ARefusedSettingIsReplacedByAnother) {
  begin(64, 8);
  const Move move = policy_->next();
  ASSERT_EQ(move.trial, 0);
  Result refused;
  refused.trial = 0;
  refused.refused = true;
  policy_->tell(refused);
  expect(MoveKind::start, 1, 2, falls);  // and no trial is longer for it
}

// Five trials of two are half of the budget; their slopes alone would not end the search.
TEST_F(MlTunerTest, TrainsTheBestTrialOnceTheSearchHasHadItsShare) {
  for (const double share : {0.5, 1.0}) {
    begin(64, 8, 20, 1, share);
    expect(MoveKind::start, 0, 2, falls_fast);
    for (int64_t t = 1; t <= 4; ++t) expect(MoveKind::start, t, 2, falls);
    if (share < 1) {
      expect(MoveKind::resume, 0, 3, falls_fast);
    } else {
      expect(MoveKind::start, 5, 2, falls);
    }
  }
}

TEST_F(MlTunerTest, APlateauAfterThatShareReplacesTheBestTrialByNoOther) {
  begin(64, 8, 40, 1, 0.5, false);
  expect(MoveKind::start, 0, 2, falls_fast);
  for (int64_t t = 1; t <= 9; ++t) expect(MoveKind::start, t, 2, falls);
  expect(MoveKind::resume, 0, 3, falls_fast);
  for (double b = 4; b <= 22; ++b) expect(MoveKind::resume, 0, b, stays);
  expect(MoveKind::stop, -1, 0);
}

// The search that the share cuts has two trials; the one after it may have five, as the first had.
TEST_F(MlTunerTest, ASearchThatIsCutShortDoesNotLimitTheNextOne) {
  begin(8, 2, 40, 1, 0.5, false);
  for (int64_t t = 0; t <= 4; ++t) expect(MoveKind::start, t, 2, falls_fast);
  for (double b = 3; b <= 8; ++b) expect(MoveKind::resume, 0, b, falls_fast);
  expect(MoveKind::start, 5, 2, falls);
  expect(MoveKind::start, 6, 2, falls);
  for (double b = 3; b <= 8; ++b) expect(MoveKind::resume, 5, b, falls);
  for (int64_t t = 7; t <= 10; ++t) expect(MoveKind::start, t, 2, rises);
}

// As with a learning rate of next to nothing: its length would hold for all others.
TEST_F(MlTunerTest, ATrialThatStandsStillDoesNotConverge) {
  begin(64, 8);
  expect(MoveKind::start, 0, 2, stays);
  expect(MoveKind::resume, 0, 4, stays);
  expect(MoveKind::start, 1, 4, falls);
  expect(MoveKind::start, 2, 4, stays);
  EXPECT_TRUE(dropped_.contains(0));
}

TEST_F(MlTunerTest, SeveralTrialsMayBeginTogether) {
  begin(64, 8, 1e9, 3);
  expect(MoveKind::start, 0, 2, falls);
  expect(MoveKind::start, 1, 2, falls_fast);
  expect(MoveKind::start, 2, 2, rises);
  EXPECT_TRUE(policy_->is_searching());
  expect(MoveKind::start, 3, 2, falls);
  EXPECT_EQ(dropped_, (std::set<int64_t>{0, 2}));
}

TEST_F(MlTunerTest, OfSeveralThatDoNotConvergeOnlyTheBestGoesOn) {
  begin(64, 8, 1e9, 2);
  const auto unsteady = [](double b) { return b == 3 ? 9.5 : 10 - b; };
  expect(MoveKind::start, 0, 2, rises);
  expect(MoveKind::start, 1, 2, rises);
  expect(MoveKind::start, 2, 4, rises);
  expect(MoveKind::start, 3, 4, unsteady);
  EXPECT_EQ(dropped_, (std::set<int64_t>{0, 1})) << "neither made any progress";
  expect(MoveKind::resume, 3, 8, [](double) { return 9.0; });
  EXPECT_EQ(dropped_, (std::set<int64_t>{0, 1, 2}));
  expect(MoveKind::start, 4, 8, falls);
  expect(MoveKind::start, 5, 8, rises);
  expect(MoveKind::start, 6, 8, falls);  // trial 4 converged: its time holds
}

// As where the noise of the losses exceeds what is gained in so short a time.
TEST_F(MlTunerTest, WhereNoneOfSeveralHasASlopeWhatGainedMostGoesOn) {
  const auto gains = [](double b) { return b == 2 ? 18.0 : 10 - b; };
  const auto gains_less = [](double b) { return b == 2 ? 18.0 : 10 - b / 2; };
  begin(64, 16, 1e9, 2);
  expect(MoveKind::start, 0, 2, rises);
  expect(MoveKind::start, 1, 2, rises);
  expect(MoveKind::start, 2, 4, gains_less);
  expect(MoveKind::start, 3, 4, gains);
  EXPECT_EQ(policy_->kept(), 3);
  expect(MoveKind::resume, 3, 8, rises);
  EXPECT_EQ(dropped_, (std::set<int64_t>{0, 1, 2}));
}

// Where the budget ends the search.
TEST_F(MlTunerTest, KeepsTheBestSlopeAmongTrialsOfTheSameLength) {
  begin(64, 8, 4);
  expect(MoveKind::start, 0, 2, falls);
  expect(MoveKind::start, 1, 2, falls_fast);
  expect(MoveKind::stop, -1, 0);
  EXPECT_EQ(policy_->kept(), 1) << "it was the last one, and nothing compared it yet";
  begin(64, 8, 4);
  expect(MoveKind::start, 0, 2, falls_fast);
  expect(MoveKind::start, 1, 2, falls);
  expect(MoveKind::stop, -1, 0);
  EXPECT_EQ(policy_->kept(), 0);
  const auto late = [](double b) { return b < 3 ? 10.0 : 18 - 3 * b; };
  begin(64, 8, 11);
  expect(MoveKind::start, 0, 2, rises);
  expect(MoveKind::resume, 0, 4, rises);
  expect(MoveKind::start, 1, 4, late);
  expect(MoveKind::start, 2, 3, [](double b) { return 10 - 5 * b; });
  expect(MoveKind::stop, -1, 0);
  EXPECT_EQ(policy_->kept(), 1) << "the length of trial 2 was cut by the budget";
}

// Where the budget ends before all that begin together are through.
TEST_F(MlTunerTest, KeepsTheOneThatConvergesAndNotOneThatGainedMoreWithLeaps) {
  const auto leaps = [](double b) { return b == 1 ? 10.0 : b == 2 ? 12 : b == 3 ? 5 : 0; };
  const auto steady = [](double b) { return 13 - 3 * b; };
  for (const bool leaps_first : {true, false}) {
    begin(64, 8, 14, 3);
    for (int64_t t = 0; t < 3; ++t) expect(MoveKind::start, t, 2, rises);
    expect(MoveKind::start, 3, 4, leaps_first ? +leaps : +steady);
    expect(MoveKind::start, 4, 4, leaps_first ? +steady : +leaps);
    expect(MoveKind::stop, -1, 0);
    EXPECT_EQ(policy_->kept(), leaps_first ? 4 : 3);
  }
  // One that the budget cut off is not compared by its slope.
  begin(64, 8, 13, 3);
  for (int64_t t = 0; t < 3; ++t) expect(MoveKind::start, t, 2, rises);
  expect(MoveKind::start, 3, 4, leaps);
  expect(MoveKind::start, 4, 3, steady);
  expect(MoveKind::stop, -1, 0);
  EXPECT_EQ(policy_->kept(), 3);
}

TEST_F(MlTunerTest, KeepsWhatGainedMostWhileNothingConverges) {
  const auto unsteady = [](double b) { return b == 2 ? 12.0 : 10 - b; };
  begin(64, 8, 7);
  expect(MoveKind::start, 0, 2, rises);
  expect(MoveKind::resume, 0, 4, rises);
  EXPECT_EQ(policy_->kept(), -1);
  expect(MoveKind::start, 1, 3, unsteady);
  expect(MoveKind::stop, -1, 0);
  EXPECT_EQ(policy_->kept(), 1) << "though its noise is larger than what it gained";
  begin(64, 8, 8);
  expect(MoveKind::start, 0, 2, rises);
  expect(MoveKind::resume, 0, 4, rises);
  expect(MoveKind::start, 1, 4, [](double b) { return b == 2 ? 10.0 : 10 - b; });
  expect(MoveKind::stop, -1, 0);
  EXPECT_EQ(policy_->kept(), 1);
}

}  // namespace
}  // namespace ductile::tune
