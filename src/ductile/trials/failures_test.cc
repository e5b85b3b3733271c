#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/testing.h"
#include "ductile/trials/session.h"
#include "ductile/trials/testing/told_runs.h"

// What a session makes of trials that the job refuses, beside others that run.
namespace ductile::trials {
namespace {

using testing::evaluation;
using testing::job_of_two_epochs;
using testing::told_runs;
using testing::two_rates;

std::string accuracies(const char* first, const char* second) {
  return evaluation(1, fmt::format("\"accuracy\":{}", first)) +
         evaluation(2, fmt::format("\"accuracy\":{}", second));
}

// The learning rate 1 is refused, at once, and any other one is told what its run says only then,
// and once there is a file `go`.
fs::path refuses_one(const fs::path& place, const std::string& lines) {
  fs::create_directory(place / "told");
  const fs::path told = told_runs(place / "told", lines, lines);
  const fs::path program = place / "refusing";
  write_file_atomic(
      program, fmt::format("#!/bin/sh\n"
                           "for word; do case $word in *=1|*=1.0) echo not 1; touch {0}/refused; "
                           "exit 2;; esac; done\n"
                           "while [ ! -e {0}/refused ] || [ ! -e {0}/go ]; do sleep 0.02; done\n"
                           "sleep 0.5\nexec {1} \"$@\"\n",
                           place.string(), told.string()));
  EXPECT_EQ(::chmod(program.c_str(), 0700), 0);
  return program;
}

TEST(SessionFailures, ARefusedTrialWaitsUntilAnotherOneHasAValue) {
  const TempFolder place;
  write_file_atomic(place.path() / "go", "");
  Tuning tuning = two_rates({});
  tuning.setup.at_once = 2;
  std::vector<std::string> news;
  Session session = Session::create(place.path() / "session", job_of_two_epochs(), tuning);
  EXPECT_TRUE(session.run({.program = refuses_one(place.path(), accuracies("0.5", "0.6")),
                           .on_news = [&](const std::string& text) { news.push_back(text); }}));
  ASSERT_EQ(session.trials().size(), 2U);
  EXPECT_EQ(session.trials()[0].status, "finished");
  EXPECT_EQ(session.trials()[1].status, "refused");
  EXPECT_EQ(session.trials()[1].reason, "refused: not 1");
  EXPECT_EQ(session.epochs_spent(), 2);
  EXPECT_EQ(session.best(), 0);
  EXPECT_TRUE(std::ranges::any_of(news, [](const std::string& text) {
    return text.ends_with("epochs: trial 1: is refused, and left out: not 1");
  }));
}

// As in a session that an earlier version ended there.
TEST(SessionFailures, ARefusedTrialIsTriedAgainWhereASessionGoesOn) {
  const TempFolder place;
  const fs::path folder = place.path() / "session";
  Tuning tuning = two_rates({});
  tuning.setup.at_once = 2;
  const fs::path program = refuses_one(place.path(), accuracies("0.5", "0.6"));
  {
    Session session = Session::create(folder, job_of_two_epochs(), tuning);
    const auto is_refused = [&] { return fs::exists(place.path() / "refused"); };
    EXPECT_FALSE(session.run({.program = program, .interrupted = is_refused}));
  }
  write_file_atomic(place.path() / "go", "");
  Session session = Session::open(folder);
  EXPECT_TRUE(session.run({.program = program}));
  ASSERT_EQ(session.trials().size(), 2U);
  EXPECT_EQ(session.trials()[1].status, "refused");
  EXPECT_EQ(session.best(), 0);
}

// It trained, so the job is not what is wrong.
TEST(SessionFailures, ARefusedTrialEndsNoSessionBesideOneThatDiverged) {
  for (const int64_t at_once : {1, 2}) {
    const TempFolder place;
    write_file_atomic(place.path() / "go", "");
    write_file_atomic(place.path() / "refused", "");  // trial 0 does not wait for that
    Tuning tuning = two_rates({});
    tuning.setup.at_once = at_once;
    Session session = Session::create(place.path() / "session", job_of_two_epochs(), tuning);
    EXPECT_TRUE(
        session.run({.program = refuses_one(place.path(), accuracies("\"NaN\"", "\"NaN\""))}));
    ASSERT_EQ(session.trials().size(), 2U);
    EXPECT_EQ(session.trials()[0].status, "diverged");
    EXPECT_EQ(session.trials()[1].status, "refused");
    EXPECT_EQ(session.best(), -1);
  }
}

TEST(SessionFailures, WhereNoTrialGetsAnywhereTheSessionSaysWhatIsRefused) {
  const TempFolder place;
  const fs::path program = place.path() / "refusing";
  write_file_atomic(program, "#!/bin/sh\necho not that\nexit 2\n");
  ASSERT_EQ(::chmod(program.c_str(), 0700), 0);
  Tuning tuning = two_rates({});
  tuning.setup.at_once = 2;
  Session session = Session::create(place.path() / "session", job_of_two_epochs(), tuning);
  try {
    session.run({.program = program});
    ADD_FAILURE() << "it ended";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(error.message().find("trial 0 (optimizer.lr=0.1) is refused: not that"),
              std::string::npos)
        << error.message();
  }
}

// A program that trains the first setting that it is given and refuses all others.
fs::path refusing_all_but_one(const fs::path& place) {
  fs::create_directory(place / "told");
  const std::string lines = accuracies("0.5", "0.6");
  const fs::path told = told_runs(place / "told", lines, lines), program = place / "refusing";
  write_file_atomic(program, fmt::format("#!/bin/sh\nmkdir {0}/first 2>/dev/null || exit 2\n"
                                         "exec {1} \"$@\"\n",
                                         place.string(), told.string()));
  EXPECT_EQ(::chmod(program.c_str(), 0700), 0);
  return program;
}

Tuning random_whole_runs(int at_once) {
  Tuning tuning = default_tuning({});
  tuning.setup.policy = "full";
  tuning.setup.searcher = "random";
  tuning.setup.at_once = at_once;
  return tuning;
}

// Where hardly any setting is allowed, no budget would end the search.
TEST(SessionFailures, ASearchEndsWhereAllIsRefused) {
  const TempFolder place;
  const fs::path program = refusing_all_but_one(place.path()), folder = place.path() / "session";
  size_t begun = 0;
  {
    Session session = Session::create(folder, job_of_two_epochs(), random_whole_runs(8));
    EXPECT_TRUE(session.run({.program = program}));
    EXPECT_EQ(session.state_of_search(), "the job refused the last 50 settings");
    begun = session.trials().size();
    EXPECT_GE(begun, 51U);
    EXPECT_LE(begun, 70U);
    EXPECT_GE(session.best(), 0);
  }
  // With a larger budget as many are tried again.
  Session session = Session::open(folder);
  session.change({"budget=40"});
  EXPECT_TRUE(session.run({.program = program}));
  EXPECT_EQ(session.state_of_search(), "the job refused the last 50 settings");
  EXPECT_GE(session.trials().size(), begun + 50);
}

// An interruption changes nothing of that: with one trial at a time a session is a function of its
// job, tuning and seed.
TEST(SessionFailures, SettingsThatAreRefusedAreCountedOverInterruptions) {
  const TempFolder place;
  const fs::path program = refusing_all_but_one(place.path()), folder = place.path() / "session";
  {
    Session session = Session::create(folder, job_of_two_epochs(), random_whole_runs(1));
    const auto is_half_way = [&] { return session.trials().size() > 30; };
    EXPECT_FALSE(session.run({.program = program, .interrupted = is_half_way}));
  }
  Session session = Session::open(folder);
  EXPECT_TRUE(session.run({.program = program}));
  EXPECT_EQ(session.state_of_search(), "the job refused the last 50 settings");
  EXPECT_EQ(session.trials().size(), 51U);
}

// Each piece of a trial has its tries: two that fail, in the first one and in the last one.
TEST(SessionFailures, ATrialThatGotOnHasAllItsTriesAgain) {
  const TempFolder place;
  const std::string first = evaluation(1, R"("accuracy":0.5)");
  write_file_atomic(place.path() / "events3",
                    first + R"({"kind":"end","status":"interrupted"})" + "\n");
  write_file_atomic(place.path() / "events6", first + evaluation(2, R"("accuracy":0.6)") +
                                                  R"({"kind":"end","status":"done"})" + "\n");
  const fs::path program = place.path() / "failing";
  write_file_atomic(
      program, fmt::format("#!/bin/sh\necho >> {0}/calls\ncall=$(wc -l < {0}/calls)\n"
                           "case $call in 3|6) ;; *) exit 1;; esac\n"
                           "while [ \"$1\" != --out ] && [ \"$1\" != --resume ]; do shift; done\n"
                           "mkdir -p \"$2\"; touch \"$2/job.toml\"\n"
                           "cp {0}/events$call \"$2/events.jsonl\"\n",
                           place.path().string()));
  ASSERT_EQ(::chmod(program.c_str(), 0700), 0);
  Tuning tuning = two_rates({});
  tuning.setup.policy = "freeze_thaw";
  tuning.setup.searcher = "curves";
  tuning.setup.budget = 1;
  Session session = Session::create(place.path() / "session", job_of_two_epochs(), tuning);
  EXPECT_TRUE(session.run({.program = program}));
  EXPECT_EQ(read_file(place.path() / "calls").size(), 6U);
  ASSERT_EQ(session.trials().size(), 1U);
  EXPECT_EQ(session.trials()[0].status, "finished");
  EXPECT_EQ(session.value_of(0), 0.6);
}

}  // namespace
}  // namespace ductile::trials
