#include "ductile/tune/trial_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "ductile/base/json.h"
#include "ductile/base/testing.h"
#include "ductile/tune/halving.h"
#include "ductile/tune/testing/problems.h"

namespace ductile::tune {
namespace {

using ductile::testing::code_of;
using testing::cube;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string searcher_for(const std::string& policy) {
  return policy == "freeze_thaw" ? "curves" : "random";
}

std::unique_ptr<TrialPolicy> make(const std::string& name, const PolicyOptions& options,
                                  const Space& space = cube(2), std::string searcher = "") {
  SearcherOptions s;
  s.full_budget = options.full_budget;
  return make_trial_policy(
      name, make_searcher(searcher.empty() ? searcher_for(name) : searcher, space, s), options);
}

// Curves that keep their order: a + 1 / budget. Every ninth trial diverges, every eleventh ends
// early; all diverge at `lost_from`.
Result answer(const TrialPolicy& policy, const Move& move,
              double lost_from = std::numeric_limits<double>::infinity()) {
  const Trial& trial = policy.searcher().trials()[static_cast<size_t>(move.trial)];
  Result out;
  out.trial = move.trial;
  for (double b = trial.budget() + 1; b <= move.budget; ++b) {
    if (move.trial % 11 == 5 && b > 4) {
      out.ended = true;
      break;
    }
    const bool lost = b >= lost_from || (move.trial % 9 == 4 && b >= 3);
    out.seen.push_back({b, lost ? kNan : testing::far_from_optimum(trial.setting) + 1 / b});
    if (lost) break;
  }
  return out;
}

struct Log {
  std::vector<Move> moves;
  double asked = 0, used = 0;
};

// Runs up to `moves` moves, `at_once` trials side by side, results in the order of the starts.
Log drive(TrialPolicy& policy, int moves, size_t at_once = 1) {
  Log log;
  std::vector<Move> running;
  std::map<int64_t, double> reached;
  const auto finish = [&] {
    const Result r = answer(policy, running.front());
    policy.tell(r);
    if (!r.seen.empty()) {
      log.used += r.seen.back().budget - reached[r.trial];
      reached[r.trial] = r.seen.back().budget;
    }
    running.erase(running.begin());
  };
  for (int i = 0; i < moves; ++i) {
    const Move move = policy.next();
    log.moves.push_back(move);
    if (move.kind == MoveKind::stop) break;
    if (move.kind == MoveKind::start || move.kind == MoveKind::resume) {
      log.asked +=
          move.budget - policy.searcher().trials()[static_cast<size_t>(move.trial)].budget();
      running.push_back(move);
      const size_t most = policy.runs_one() ? 1 : at_once;
      EXPECT_LE(running.size(), most) << policy.name();
    }
    if (move.kind == MoveKind::wait) {
      EXPECT_FALSE(running.empty());
    }
    if (!running.empty() && (running.size() == at_once || move.kind == MoveKind::wait)) finish();
  }
  while (!running.empty()) finish();
  return log;
}

std::string text_of(const std::vector<Move>& moves) {
  std::string out;
  for (const Move& m : moves)
    out += fmt::format("{} {} {:g} {}\n", to_string(m.kind), m.trial, m.budget, m.reason);
  return out;
}

class TrialPolicyTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, TrialPolicyTest, ::testing::ValuesIn(trial_policies().names()),
                         [](const auto& info) { return info.param; });

TEST_P(TrialPolicyTest, NeverSpendsMoreThanTheTotalBudget) {
  for (const double total : {1.0, 2.0, 26.0, 27.0, 100.0, 333.0}) {
    for (const size_t at_once : {1, 4}) {
      PolicyOptions options;
      options.full_budget = 27;
      options.total_budget = total;
      const auto policy = make(GetParam(), options);
      const Log log = drive(*policy, 2000, at_once);
      EXPECT_LE(log.used, total);
      EXPECT_DOUBLE_EQ(policy->spent(), log.used);
      ASSERT_EQ(log.moves.back().kind, MoveKind::stop) << text_of(log.moves);
      if (GetParam() != "mltuner") {
        EXPECT_GT(log.used, total - 27) << total;
      }
    }
  }
}

TEST_P(TrialPolicyTest, MovesAreOfTrialsThatCanMakeThem) {
  PolicyOptions options;
  options.full_budget = 27;
  options.total_budget = 500;
  for (const size_t at_once : {1, 3}) {
    const auto policy = make(GetParam(), options);
    std::set<int64_t> dropped;
    const Log log = drive(*policy, 3000, at_once);
    int64_t next = 0;
    for (const Move& m : log.moves) {
      EXPECT_FALSE(m.reason.empty());
      if (m.kind == MoveKind::start) {
        EXPECT_EQ(m.trial, next++);
      }
      if (m.kind == MoveKind::resume) {
        EXPECT_FALSE(dropped.contains(m.trial));
      }
      if (m.kind == MoveKind::drop) {
        EXPECT_TRUE(dropped.insert(m.trial).second);
      }
      if (m.kind == MoveKind::start || m.kind == MoveKind::resume) {
        EXPECT_EQ(m.budget, std::round(m.budget));
        EXPECT_LE(m.budget, 27);
      }
    }
    ASSERT_GE(policy->best(), 0);
  }
}

TEST_P(TrialPolicyTest, ARestoredOneGoesOnAsTheSavedOneWouldToTheBit) {
  PolicyOptions options;
  options.full_budget = 27;
  options.total_budget = 400;
  for (const int before : {0, 1, 7, 30, 61}) {
    const auto straight = make(GetParam(), options), resumed = make(GetParam(), options);
    drive(*straight, before);
    const std::string saved = dump_json(straight->save());
    resumed->restore(parse_json(saved));
    EXPECT_EQ(dump_json(resumed->save()), saved);
    EXPECT_EQ(text_of(drive(*straight, 40).moves), text_of(drive(*resumed, 40).moves));
    EXPECT_EQ(dump_json(straight->save()), dump_json(resumed->save()));
  }
}

TEST_P(TrialPolicyTest, DamagedStatesAreRefusedAndChangeNothing) {
  PolicyOptions options;
  options.full_budget = 9;
  options.total_budget = 300;
  const auto policy = make(GetParam(), options), other = make(GetParam(), options);
  drive(*policy, 12);
  drive(*other, 9);
  nlohmann::json good = policy->save();
  const std::string before = dump_json(other->save());
  good.erase("searcher");  // searcher_test damages those
  good["searcher"] = nullptr;
  for (nlohmann::json bad : testing::damaged(good)) {
    if (bad.is_object() && bad.contains("searcher")) bad["searcher"] = policy->save()["searcher"];
    try {
      other->restore(bad);
      other->restore(parse_json(before));  // a change that is as good as what was there
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data_loss) << e.what();
    }
    ASSERT_EQ(dump_json(other->save()), before) << dump_json(bad).substr(0, 300);
  }
}

// As with ten epochs and an evaluation after every three.
TEST_P(TrialPolicyTest, RunsToTheEndOfAFullBudgetThatIsNoMultipleOfTheUnit) {
  PolicyOptions options;
  options.full_budget = 10;
  options.unit = options.least_budget = 3;
  options.total_budget = 300;
  const auto policy = make(GetParam(), options);
  double longest = 0;
  for (int moves = 0; moves < 1000; ++moves) {
    const Move move = policy->next();
    if (move.kind == MoveKind::stop) break;
    if (move.kind == MoveKind::drop) continue;
    const Trial& trial = policy->searcher().trials()[static_cast<size_t>(move.trial)];
    longest = std::max(longest, move.budget);
    policy->tell(
        {move.trial, {{move.budget, testing::far_from_optimum(trial.setting) + 1 / move.budget}}});
  }
  EXPECT_LE(longest, 10);
  const bool has_whole_runs = GetParam() == "full" || GetParam() == "one_epoch";
  EXPECT_TRUE(!has_whole_runs || longest == 10) << longest;
}

// 1.2 is a little less than three times 0.4.
TEST_P(TrialPolicyTest, LosesNoUnitOfTheBudgetToRounding) {
  int seen = 0;
  for (const double unit : {0.1, 0.07, 0.3, 0.4}) {
    for (const int units : {1, 2, 3, 6, 7, 13, 24, 39}) {
      PolicyOptions options;
      options.full_budget = 12 * unit;
      options.unit = options.least_budget = unit;
      options.total_budget = std::round(100 * units * unit) / 100;  // as one writes it
      const auto policy = make(GetParam(), options);
      while (true) {
        const Move move = policy->next();
        if (move.kind == MoveKind::stop) break;
        if (move.kind == MoveKind::drop) continue;
        const Trial& trial = policy->searcher().trials()[static_cast<size_t>(move.trial)];
        Result result;
        result.trial = move.trial;
        // As whoever runs it counts: in whole units.
        const auto from = std::llround(trial.budget() / unit);
        const auto to = std::llround(move.budget / unit);
        ASSERT_NEAR(move.budget, static_cast<double>(to) * unit, 1e-12);
        for (int64_t i = from + 1; i <= to; ++i) {
          const double budget = std::min(static_cast<double>(i) * unit, move.budget);
          result.seen.push_back({budget, testing::far_from_optimum(trial.setting) + 1 / budget});
        }
        policy->tell(result);
      }
      seen += std::llround(policy->spent() / unit) == units;
    }
  }
  // MLtuner may stop before the budget ends.
  EXPECT_TRUE(seen == 32 || GetParam() == "mltuner") << seen;
}

TEST_P(TrialPolicyTest, StopsWhereTheSpaceIsUsedUp) {
  const Space space = Space::from_json(parse_json(R"({"a": {"choices": [1, 2, 3, 4, 5]}})"), "s");
  PolicyOptions options;
  options.full_budget = 9;
  options.one_epoch.settings = 5;
  const auto policy = make(GetParam(), options, space);
  const Log log = drive(*policy, 500);
  EXPECT_EQ(log.moves.back().kind, MoveKind::stop) << text_of(log.moves);
  EXPECT_LE(policy->searcher().trials().size(), 5u);
}

TEST_P(TrialPolicyTest, RefusesResultsThatCannotBe) {
  PolicyOptions options;
  options.full_budget = 9;
  options.total_budget = 100;
  const auto policy = make(GetParam(), options);
  EXPECT_EQ(code_of([&] { policy->tell({0, {}, true}); }), ErrorCode::conflict);
  const Move move = policy->next();
  ASSERT_EQ(move.kind, MoveKind::start);
  const auto code = [&](std::vector<Observation> seen, bool ended) {
    return code_of([&] { policy->tell({0, std::move(seen), ended}); });
  };
  EXPECT_EQ(code({}, false), ErrorCode::invalid_argument);
  EXPECT_EQ(code({{move.budget + 1, 1}}, false), ErrorCode::invalid_argument);
  EXPECT_EQ(code({{0, 1}}, true), ErrorCode::invalid_argument);
  EXPECT_EQ(code({{0.5, kNan}, {move.budget, 1}}, false), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] {
              policy->tell({0, {{move.budget, 1}}, false, true});
            }),
            ErrorCode::invalid_argument);
  policy->tell({0, {}, true});  // it could not even begin
  EXPECT_EQ(policy->spent(), 0);
  EXPECT_EQ(code({}, true), ErrorCode::conflict);
}

// A setting of values that contradict one another: it costs nothing, and the searcher learns of it.
TEST_P(TrialPolicyTest, ARefusedTrialTakesNothingOfTheBudget) {
  PolicyOptions options;
  options.full_budget = 9;
  options.total_budget = 60;
  const auto policy = make(GetParam(), options);
  int refused = 0, others = 0;
  while (true) {
    const Move move = policy->next();
    if (move.kind == MoveKind::stop) break;
    if (move.kind == MoveKind::drop) continue;
    if (move.kind == MoveKind::start && move.trial % 3 == 1 && move.trial < 30) {
      const double before = policy->spent() - move.budget;
      Result result;
      result.trial = move.trial;
      result.refused = true;
      policy->tell(result);
      EXPECT_DOUBLE_EQ(policy->spent(), before);
      EXPECT_TRUE(policy->searcher().trials()[static_cast<size_t>(move.trial)].diverged);
      ++refused;
      continue;
    }
    ++others;
    policy->tell(answer(*policy, move));
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(others, refused);
  const auto again = make(GetParam(), options);
  again->restore(policy->save());
  EXPECT_EQ(dump_json(again->save()), dump_json(policy->save()));
}

// Else the total budget cuts the last one off, as it does with the other policies.
TEST(FullTest, BeginsNoTrialThatCouldNotBeRunToItsEnd) {
  for (const size_t at_once : {1, 3}) {
    PolicyOptions options;
    options.full_budget = 2;
    options.unit = options.least_budget = 0.1;
    const auto budgets = [&](double total, bool whole_only) {
      options.total_budget = total;
      options.full.whole_only = whole_only;
      const auto policy = make("full", options);
      std::vector<double> out;
      std::vector<Move> running;
      while (true) {
        const Move move = policy->next();
        if (move.kind == MoveKind::start) {
          out.push_back(move.budget);
          running.push_back(move);
          if (running.size() < at_once) continue;
        }
        if (running.empty()) return out;
        policy->tell({running[0].trial, {{running[0].budget, 1}}});
        running.erase(running.begin());
      }
    };
    EXPECT_EQ(budgets(5, true), (std::vector<double>{2, 2}));
    EXPECT_EQ(budgets(6, true), (std::vector<double>{2, 2, 2}));
    EXPECT_EQ(budgets(5, false), (std::vector<double>{2, 2, 1}));
    EXPECT_EQ(budgets(1, true), std::vector<double>{1}) << "the best is run to its end afterwards";
  }
}

// How many trials begin when less than `enough` is left; each must find no other to go on with.
int late_starts(const PolicyOptions& options, double enough, size_t at_once, double lost_from) {
  const auto policy = make("freeze_thaw", options);
  std::vector<Move> running;
  std::set<int64_t> paused;
  int starts = 0, late = 0;
  while (true) {
    const double left = options.total_budget - policy->spent();
    const Move move = policy->next();
    if (move.kind == MoveKind::stop) break;
    if (move.kind == MoveKind::start) {
      ++starts;
      if (left < enough) {
        ++late;
        EXPECT_TRUE(running.empty() && paused.empty()) << move.trial << " with " << left;
      }
    }
    if (move.kind != MoveKind::wait) {
      paused.erase(move.trial);
      running.push_back(move);
      if (running.size() < at_once) continue;
    }
    const Result result = answer(*policy, running.front(), lost_from);
    running.erase(running.begin());
    policy->tell(result);
    const Trial& trial = policy->searcher().trials()[static_cast<size_t>(result.trial)];
    if (!trial.diverged && !result.ended && trial.budget() < options.full_budget)
      paused.insert(result.trial);
  }
  EXPECT_TRUE(running.empty());
  EXPECT_GE(starts, 4);
  EXPECT_EQ(policy->spent(), options.total_budget);
  return late;
}

// Or, where there is hardly more than one run in all, none in the second half.
TEST(FreezeThawTest, StartsNoTrialThatCouldNotBeRunToItsEnd) {
  for (const double total : {8.0, 30.0, 100.0}) {
    for (const size_t at_once : {1, 4}) {
      SCOPED_TRACE(fmt::format("{} at once, {} in all", at_once, total));
      PolicyOptions options;
      options.full_budget = 20;
      options.total_budget = total;
      const double enough = std::min(20.0, total / 2);
      for (const double lost_from : {1000.0, 2.0}) late_starts(options, enough, at_once, lost_from);
      EXPECT_GT(late_starts(options, enough, at_once, 1), 0) << "nothing else could be run";
    }
  }
}

// Where the best trial is run to its end afterwards, the total budget is the end of no trial.
TEST(FreezeThawTest, DecidesWithoutTheTotalIfTheBestIsRunToItsEndAfterwards) {
  for (const bool finish : {false, true}) {
    PolicyOptions options;
    options.full_budget = 20;
    options.freeze_thaw.finish_best = finish;
    const auto moves = [&](double total) {
      options.total_budget = total;
      const auto policy = make("freeze_thaw", options);
      return drive(*policy, 200).moves;
    };
    const auto ends = moves(40), goes_on = moves(1000);
    ASSERT_GE(goes_on.size(), ends.size());
    bool is_same = true;
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].kind == MoveKind::stop || ends[i].budget < goes_on[i].budget) break;  // cut off
      is_same = is_same && text_of({ends[i]}) == text_of({goes_on[i]});
    }
    EXPECT_EQ(is_same, finish) << text_of(ends);
  }
}

TEST(HalvingTest, RungsAreThoseOfHyperbandsTable) {
  // Table 1 of the paper (JMLR): R = 81, eta = 3.
  PolicyOptions options;
  options.full_budget = 81;
  ASSERT_EQ(most_rungs(options), 5);
  const std::vector<std::vector<std::pair<int, int>>> table = {
      {{81, 1}, {27, 3}, {9, 9}, {3, 27}, {1, 81}},
      {{34, 3}, {11, 9}, {3, 27}, {1, 81}},
      {{15, 9}, {5, 27}, {1, 81}},
      {{8, 27}, {2, 81}},
      {{5, 81}}};
  for (int64_t s = 4; s >= 0; --s) {
    const auto& expected = table[static_cast<size_t>(4 - s)];
    const auto rungs = bracket_rungs(options, s + 1, hyperband_settings(options, s));
    ASSERT_EQ(rungs.size(), expected.size());
    for (size_t i = 0; i < rungs.size(); ++i) {
      EXPECT_EQ(rungs[i].trials, expected[i].first) << s;
      EXPECT_NEAR(rungs[i].budget, expected[i].second, 1e-9) << s;
    }
  }
}

// How many trials were run to each budget.
std::map<double, int> reached(const Log& log) {
  std::map<double, int> out;
  for (const Move& m : log.moves)
    if (m.kind == MoveKind::start || m.kind == MoveKind::resume) ++out[m.budget];
  return out;
}

TEST(HalvingTest, ABracketRunsAsManyTrialsInEachRungAsThePaperSays) {
  PolicyOptions options;
  options.full_budget = 81;
  options.halving.settings = 81;
  options.total_budget = 405;
  const auto policy = make("halving", options);
  std::map<double, int> counts;
  for (const Move& m : drive(*policy, 81 + 27 + 9 + 3 + 1 + 120).moves)
    if (m.kind == MoveKind::start || m.kind == MoveKind::resume) ++counts[m.budget];
  EXPECT_EQ(counts[3], 27);
  EXPECT_EQ(counts[9], 9);
  EXPECT_EQ(counts[27], 3);
  EXPECT_EQ(counts[81], 1);
}

TEST(HalvingTest, OfARungTheBestGoOn) {
  PolicyOptions options;
  options.full_budget = 4;
  options.halving.eta = 2;
  options.halving.settings = 8;
  options.total_budget = 8 + 4 + 4;
  const auto policy = make("halving", options);
  drive(*policy, 100);
  std::vector<std::pair<double, double>> by_value;
  for (const Trial& t : policy->searcher().trials())
    if (!t.diverged) by_value.push_back({testing::far_from_optimum(t.setting), -t.budget()});
  std::sort(by_value.begin(), by_value.end());
  EXPECT_TRUE(std::is_sorted(by_value.begin(), by_value.begin() + 2,
                             [](const auto& a, const auto& b) { return a.second < b.second; }));
  EXPECT_EQ(by_value[0].second, -4);
}

TEST(OneEpochTest, ScreensAShareAndRunsTheBestToTheirEnd) {
  PolicyOptions options;
  options.full_budget = 10;
  options.total_budget = 40;
  options.one_epoch.screened = 0.5;
  const auto policy = make("one_epoch", options);
  const auto counts = reached(drive(*policy, 200));
  EXPECT_EQ(counts.at(1), 20);
  EXPECT_GE(counts.at(10), 2);  // one that diverges leaves room for another
  EXPECT_EQ(policy->searcher().trials().size(), 20u);
  PolicyOptions fixed;
  fixed.full_budget = 10;
  EXPECT_EQ(code_of([&] { make("one_epoch", fixed); }), ErrorCode::invalid_argument);
  fixed.one_epoch.settings = 6;
  fixed.one_epoch.keep = 2;
  const auto other = reached(drive(*make("one_epoch", fixed), 200));
  EXPECT_EQ(other.at(1), 6);
  EXPECT_EQ(other.at(10), 2);
}

TEST(OneEpochTest, SettingsThatAreRefusedAreNoShortRuns) {
  PolicyOptions options;
  options.full_budget = 10;
  options.one_epoch.settings = 4;
  const auto policy = make("one_epoch", options);
  int runs = 0;
  for (Move move = policy->next(); move.kind == MoveKind::start; move = policy->next()) {
    ASSERT_LT(move.trial, 8);
    Result result = answer(*policy, move);
    result.refused = move.trial % 2 == 0;
    if (result.refused) result.seen.clear();
    runs += !result.refused;
    policy->tell(result);
  }
  EXPECT_EQ(runs, 4);
}

TEST(AshaTest, PromotesOneOfThree) {
  PolicyOptions options;
  options.full_budget = 9;
  options.total_budget = 200;
  const auto counts = reached(drive(*make("asha", options), 400, 4));
  // A trial that was among the best when it went on may not be later, so a few more go on.
  EXPECT_GE(counts.at(3), counts.at(1) / 3 - 1);
  EXPECT_LE(counts.at(3), 2 * counts.at(1) / 3);
  EXPECT_GE(counts.at(9), counts.at(3) / 3 - 1);
  EXPECT_LE(counts.at(9), 2 * counts.at(3) / 3);
}

TEST(FreezeThawTest, WantsASearcherThatForecasts) {
  std::string text;
  EXPECT_EQ(code_of([] { make("freeze_thaw", {}, cube(1), "tpe"); }, &text),
            ErrorCode::invalid_argument);
  EXPECT_NE(text.find("curves"), std::string::npos) << text;
}

TEST(TrialPolicyTableTest, SaysWhichWantASearcherThatForecasts) {
  PolicyOptions options;
  options.total_budget = 10;
  for (const PolicyEntry& row : trial_policies()) {
    const auto with_tpe = [&] { make(std::string(row.name), options, cube(1), "tpe"); };
    if (row.needs_forecasts) {
      EXPECT_EQ(code_of(with_tpe), ErrorCode::invalid_argument) << row.name;
    } else {
      EXPECT_NO_THROW(with_tpe()) << row.name;
    }
  }
}

// As whoever judges a policy at several budgets has to know: it may do with one run of the longest.
TEST(TrialPolicyTableTest, SaysWhichDecideByTheTotalBudget) {
  for (const PolicyEntry& row : trial_policies()) {
    PolicyOptions options;
    options.full_budget = 20;
    options.mltuner.search_share = 0.5;
    const auto moves = [&](double total) {
      options.total_budget = total;
      return drive(*make(std::string(row.name), options), 60).moves;
    };
    const auto goes_on = moves(1000);
    bool is_same = true;
    for (const double total : {16.0, 40.0}) {
      const auto ends = moves(total);
      for (size_t i = 0; i < std::min(ends.size(), goes_on.size()); ++i) {
        if (ends[i].kind == MoveKind::stop) break;
        if (ends[i].reason.ends_with("the total budget ends there")) break;
        is_same = is_same && text_of({ends[i]}) == text_of({goes_on[i]});
      }
    }
    EXPECT_EQ(!is_same, row.uses_total) << row.name;
  }
}

TEST(PolicyOptionsTest, ContradictionsAreRefused) {
  PolicyOptions options;
  options.full_budget = 2;
  options.least_budget = 3;
  EXPECT_EQ(code_of([&] { make("full", options); }), ErrorCode::invalid_argument);
  options.least_budget = 0.5;
  EXPECT_EQ(code_of([&] { make("full", options); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { make("ful", {}); }), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ductile::tune
