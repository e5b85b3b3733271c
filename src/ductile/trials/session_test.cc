#include "ductile/trials/session.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/base/testing.h"
#include "ductile/trials/report.h"
#include "ductile/trials/testing/told_runs.h"

// What needs no trial; tests/tune_command_test.cc runs the real program.
namespace ductile::trials {
namespace {

using testing::evaluation;
using testing::job_of_two_epochs;
using testing::told_runs;
using testing::two_rates;

std::string job_toml() {
  spec::JobOptions job;
  return OptionSet(job).to_toml();
}

ErrorCode open_error(const fs::path& folder) {
  try {
    Session::open(folder);
  } catch (const Error& e) {
    return e.code();
  }
  ADD_FAILURE() << "opened";
  return ErrorCode::internal;
}

TEST(Session, IsMadeOnceAndOpenedAgain) {
  const TempFolder place;
  const fs::path folder = place.path() / "session";
  { const Session session = Session::create(folder, job_toml(), default_tuning({})); }
  EXPECT_THROW(Session::create(folder, job_toml(), default_tuning({})), Error);
  const Session session = Session::open(folder);
  EXPECT_EQ(session.tuning().setup, default_tuning({}).setup);
  EXPECT_EQ(session.best(), -1);
  EXPECT_EQ(session.budget(), 100);
  EXPECT_NE(report_html(session).find("Not finished"), std::string::npos);
  EXPECT_NE(report_html(session).find("a budget of 100 for the search, and"), std::string::npos);
  try {
    Session::open(folder);
    ADD_FAILURE() << "opened twice";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::conflict);
    EXPECT_NE(e.message().find("drives this tuning session already"), std::string::npos)
        << e.message();
  }
}

// A slope takes the first value of a trial and another one.
TEST(Session, RefusesToCompareSlopesOfTrialsThatHaveNone) {
  const TempFolder place;
  Tuning tuning = default_tuning({});
  tuning.setup.policy = "mltuner";
  for (const auto& [epochs, every] : {std::pair(1, 1.0), {3, 2.0}, {2, 1.0}, {1, 0.5}}) {
    spec::JobOptions job;
    job.train.epochs = epochs;
    job.train.eval_every_epochs = every;
    const fs::path folder = place.path() / fmt::format("{}-{}", epochs, every);
    try {
      Session::create(folder, OptionSet(job).to_toml(), tuning);
      EXPECT_GE(epochs / every, 2);
    } catch (const Error& e) {
      EXPECT_LT(epochs / every, 2) << e.message();
      EXPECT_NE(e.message().find("train.eval_every_epochs"), std::string::npos) << e.message();
      EXPECT_FALSE(fs::exists(folder));
    }
  }
}

TEST(Session, RefusesASearcherThatThePolicyCannotUseBeforeThereIsAFolder) {
  const TempFolder place;
  Tuning tuning = default_tuning({});
  tuning.setup.searcher = "tpe";
  EXPECT_THROW(Session::create(place.path() / "session", job_toml(), tuning), Error);
  EXPECT_FALSE(fs::exists(place.path() / "session"));
}

TEST(Session, BeginsAgainWhereItsMakingWasCutOff) {
  const TempFolder place;
  const fs::path folder = place.path() / "session";
  fs::create_directories(folder / "trials");
  write_file_atomic(folder / "job.toml", "");
  write_file_atomic(folder / "tune.json.tmp17", "{");
  { const Session session = Session::create(folder, job_toml(), default_tuning({})); }
  Session::open(folder);
  EXPECT_FALSE(fs::exists(folder / "tune.json.tmp17"));
  // Anything else there is somebody's.
  const fs::path other = place.path() / "other";
  fs::create_directories(other);
  write_file_atomic(other / "notes.txt", "mine");
  EXPECT_THROW(Session::create(other, job_toml(), default_tuning({})), Error);
  EXPECT_THROW(Session::create(folder, job_toml(), default_tuning({})), Error);
}

// What a session says that ends with an error, where this shell script is in the place of `ductile`
// and its trials come one after the other.
std::string error_of_session(const fs::path& place, const std::string& script,
                             const std::string& log_of_first_trial = "") {
  const fs::path program = place / "program";
  write_file_atomic(program, "#!/bin/sh\n" + script);
  EXPECT_EQ(::chmod(program.c_str(), 0700), 0);
  Tuning tuning = default_tuning({});
  tuning.setup.at_once = 1;
  Session session = Session::create(place / "session", job_toml(), tuning);
  if (!log_of_first_trial.empty())
    write_file_atomic(place / "session/trials/0000.log", log_of_first_trial);
  try {
    session.run({.program = program});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "it ended";
  return "";
}

// A session that was killed leaves a trial behind that still saves: the next one waits for it, and
// that is none of the failures which end a session.
TEST(Session, WaitingForARunOfAKilledSessionIsNoFailure) {
  const TempFolder place;
  // A process has the lock's file open until the third call ends it.
  const std::string text = error_of_session(
      place.path(), fmt::format("cd {}\necho >> calls\nlock=session/trials/0000/run.lock\n"
                                "case $(wc -l < calls) in\n"
                                "1) mkdir session/trials/0000; touch session/trials/0000/job.toml\n"
                                "   exec 9>$lock; sleep 60 & echo $! >holder\n"
                                "   echo \"$! $(uname -n) controller\" >&9; exit 4;;\n"
                                "2) exit 4;;\n"
                                "3) kill $(cat holder);;\n"
                                "esac\nexit 1\n",
                                place.path().string()));
  EXPECT_NE(text.find("failed 3 times"), std::string::npos) << text;
  EXPECT_EQ(read_file(place.path() / "calls").size(), 5) << "two that waited, three that failed";
}

// As where the trial's folder has lost its job.toml: no time will mend that.
TEST(Session, ARunThatNoProcessHasIsNotWaitedFor) {
  const TempFolder place;
  const std::string text = error_of_session(
      place.path(), fmt::format("cd {}\necho >> calls\nmkdir -p session/trials/0000\n"
                                "echo 1 2 3 >session/trials/0000/run.lock\n"
                                "echo 0000: exists already; exit 4\n",
                                place.path().string()));
  EXPECT_NE(text.find("trial 0 failed 3 times: 0000: exists already\n"), std::string::npos) << text;
  EXPECT_EQ(read_file(place.path() / "calls").size(), 3);
}

// Nor is it tried again at once: what another host has may be over in a moment.
TEST(Session, WaitsBetweenTriesOfARunThatIsTakenAndSaysWhyOnce) {
  const TempFolder place;
  const fs::path program = place.path() / "program";
  write_file_atomic(program, "#!/bin/sh\necho another host has it\nexit 4\n");
  ASSERT_EQ(::chmod(program.c_str(), 0700), 0);
  Tuning tuning = default_tuning({});
  tuning.setup.at_once = 1;
  Session session = Session::create(place.path() / "session", job_toml(), tuning);
  int said = 0;
  const auto count = [&](const std::string& text) {
    said += text.find("tried again: another host has it") != std::string::npos ? 1 : 0;
  };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(session.run({.program = program, .on_news = count}), Error);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  EXPECT_EQ(said, 1);
}

// The log goes on through all sessions.
TEST(Session, SaysOfAFailureWhatTheLastTrySaid) {
  for (const bool speaks : {true, false}) {
    const TempFolder place;
    const std::string text =
        error_of_session(place.path(), std::string(speaks ? "echo killed\n" : "") + "exit 1\n",
                         "Interrupted. To go on: ductile train --resume trials/0000\n");
    const std::string why = speaks ? "killed" : "it ended";
    EXPECT_NE(text.find("trial 0 failed 3 times: " + why + "\n"), std::string::npos) << text;
  }
}

// The same of the events of its run, which an earlier try may have left.
TEST(Session, SaysOfAFailureWhatTheLastTryNoted) {
  const TempFolder place;
  const std::string text = error_of_session(
      place.path(),
      fmt::format("cd {}\necho >> calls\nmkdir -p session/trials/0000\ncd session/trials/0000\n"
                  "touch job.toml\n[ $(wc -l < ../../../calls) -gt 1 ] || echo "
                  "'{{\"kind\":\"end\",\"status\":\"failed\",\"message\":\"of the first\"}}' "
                  ">>events.jsonl\necho of the last; exit 1\n",
                  place.path().string()));
  EXPECT_NE(text.find("trial 0 failed 3 times: of the last\n"), std::string::npos) << text;
}

// tune.json gets its name when it is whole; what is written before that goes to a full device here.
TEST(Session, AFullDiskIsSaidWithHowToGoOn) {
  const TempFolder place;
  const fs::path session = place.path() / "session";
  const std::string text = error_of_session(
      place.path(),
      fmt::format("ln -sf /dev/full {}/tune.json.tmp{}\nexit 1\n", session.string(), ::getpid()));
  EXPECT_NE(text.find("tune.json: write: No space left on device\nMake room, and go on with "
                      "`ductile tune --resume " +
                      session.string() + "`"),
            std::string::npos)
      << text;
}

// As where the disk is full by then: what went wrong first is said, and how to go on.
TEST(Session, AStateThatCannotBeSavedDoesNotHideWhyTheSessionEnds) {
  const TempFolder place;
  const fs::path program = place.path() / "program", calls = place.path() / "calls",
                 state = place.path() / "session/tune.json";
  write_file_atomic(program,
                    // The state is saved after a try has begun, too: that is to succeed.
                    fmt::format("#!/bin/sh\necho >> {0}\n[ $(wc -l < {0}) -lt 3 ] && exit 1\n"
                                "i=0; while [ $i -lt 100 ] && [ ! {1} -nt {0} ]\n"
                                "do sleep 0.02; i=$((i + 1)); done\n"
                                "rm {1}; mkdir {1}\nexit 1\n",
                                calls.string(), state.string()));
  ASSERT_EQ(::chmod(program.c_str(), 0700), 0);
  Tuning tuning = default_tuning({});
  tuning.setup.at_once = 1;
  Session session = Session::create(place.path() / "session", job_toml(), tuning);
  try {
    session.run({.program = program});
    ADD_FAILURE() << "it ended";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("failed 3 times"), std::string::npos) << error.message();
  }
}

// A run refuses a folder that is there, and a refused trial is given up: what one that was cut off
// has left must not be in the way of the next try.
TEST(Session, BeginsATrialAgainWhoseMakingWasCutOff) {
  for (const bool used : {false, true}) {
    const TempFolder place;
    const fs::path program = place.path() / "program", trial = place.path() / "session/trials/0000";
    write_file_atomic(
        program,
        "#!/bin/sh\n"
        "while [ \"$1\" != --out ]; do shift; done\n"
        "[ ! -e \"$2\" ] || exit 2\n"
        "mkdir -p \"$2/checkpoints\" \"$2/tensorboard\"; touch \"$2/job.toml.tmp17\"\n" +
            std::string(used ? "touch \"$2/checkpoints/done\"\n" : "") + "exit 1\n");
    ASSERT_EQ(::chmod(program.c_str(), 0700), 0);
    Tuning tuning = default_tuning({});
    tuning.setup.at_once = 1;
    Session session = Session::create(place.path() / "session", job_toml(), tuning);
    try {
      session.run({.program = program});
      ADD_FAILURE() << "it ended";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), used ? ErrorCode::invalid_argument : ErrorCode::unavailable)
          << error.message();
    }
    EXPECT_EQ(fs::exists(trial / "checkpoints" / "done"), used);
  }
}

// Each state that it leaves behind while it runs is one to go on from, as after a power loss.
TEST(Session, GoesOnFromEachStateThatItSaved) {
  const TempFolder place;
  Tuning tuning = default_tuning({});
  tuning.setup.policy = "mltuner";  // which drops a trial and begins another one in one decision
  tuning.setup.at_once = 1;
  tuning.setup.budget = 12;
  tuning.setup.finish = false;
  const std::string lines = evaluation(1, R"("accuracy":0.5)") + evaluation(2, R"("accuracy":0.6)");
  Session session = Session::create(place.path() / "session", job_of_two_epochs(), tuning);
  std::set<std::string> states;
  std::atomic<bool> over = false;
  std::thread watcher([&] {
    while (!over) {
      try {
        states.insert(read_file(place.path() / "session/tune.json"));
      } catch (const Error&) {  // it is being replaced
      }
    }
  });
  EXPECT_TRUE(session.run({.program = told_runs(place.path(), lines, lines)}));
  over = true;
  watcher.join();
  EXPECT_GT(states.size(), 5U);
  const fs::path copy = place.path() / "copy";
  fs::create_directories(copy / "trials");
  fs::copy(place.path() / "session/job.toml", copy / "job.toml");
  for (const std::string& state : states) {
    write_file_atomic(copy / "tune.json", state);
    EXPECT_NO_THROW(Session::open(copy)) << state;
  }
}

// `ductile train best.toml` would diverge, too.
TEST(Session, ATrialThatDivergedIsNeverTheBest) {
  const TempFolder place;
  Session session = Session::create(place.path() / "session", job_of_two_epochs(), two_rates({}));
  const fs::path program = told_runs(
      place.path(), evaluation(1, R"("accuracy":0.5)") + evaluation(2, R"("accuracy":0.6)"),
      evaluation(1, R"("accuracy":0.9)"));
  EXPECT_TRUE(session.run({.program = program}));
  ASSERT_EQ(session.trials().size(), 2U);
  ASSERT_GE(session.best(), 0);
  const auto at = static_cast<size_t>(session.best());
  EXPECT_EQ(session.trials()[at].status, "finished");
  EXPECT_EQ(session.trials()[1 - at].status, "diverged");
  EXPECT_NE(read_file(place.path() / "session/best.toml").find("lr = 0.1"), std::string::npos);
}

TEST(Session, AValueThatIsNoNumberIsADivergence) {
  const TempFolder place;
  Tuning tuning = two_rates({});
  tuning.setup.metric = "loss";
  Session session = Session::create(place.path() / "session", job_of_two_epochs(), tuning);
  const std::string lost =
      evaluation(1, R"("loss":"Infinity")") + evaluation(2, R"("loss":"Infinity")");
  EXPECT_TRUE(session.run({.program = told_runs(place.path(), lost, lost)}));
  for (const TrialRecord& trial : session.trials()) EXPECT_EQ(trial.status, "diverged");
  EXPECT_EQ(session.best(), -1);
}

TrialRecord seen_as(const std::vector<double>& values, const char* status = "dropped") {
  TrialRecord trial;
  trial.status = status;
  double epoch = 0;
  for (const double value : values) trial.seen.push_back({++epoch, value});
  return trial;
}

TEST(SessionReport, DrawsEveryTrialAndNamesTheBest) {
  std::vector<TrialRecord> trials;
  std::vector<int64_t> order;
  for (int64_t i = 0; i < 100; ++i) {
    order.push_back(i);
    trials.push_back(seen_as({0.5, 0.9 - 0.001 * static_cast<double>(i)}));
  }
  trials[1] = seen_as({});  // is still waiting
  trials[2].status = "diverged";
  const nlohmann::json curves = curves_of(trials, order, "accuracy");
  ASSERT_EQ(curves.size(), 99U);
  std::vector<std::string> named;
  for (const nlohmann::json& curve : curves) {
    EXPECT_EQ(curve.at("y").size(), 2U);
    if (!curve.contains("faint")) named.push_back(curve.at("name"));
  }
  EXPECT_EQ(named, (std::vector<std::string>{"trial 0", "trial 3", "trial 4", "trial 5", "trial 6",
                                             "trial 7", "trial 8", "trial 9"}));
  EXPECT_FALSE(curves.at(7).contains("faint")) << "those with a colour come first";
  EXPECT_EQ(curves.at(8).at("name"), "trial 2");
  EXPECT_EQ(curves.back().at("name"), "trial 99");
}

TEST(SessionReport, StaysSmallHoweverManyTrialsThereAre) {
  std::vector<double> values;
  for (int i = 0; i < 1000; ++i) values.push_back(1.0 / (i + 1));
  const std::vector<TrialRecord> trials(2000, seen_as(values));
  std::vector<int64_t> order;
  for (int64_t i = 0; i < 2000; ++i) order.push_back(i);
  const nlohmann::json curves = curves_of(trials, order, "accuracy");
  EXPECT_EQ(curves.size(), 308U);
  for (const nlohmann::json& curve : curves) {
    EXPECT_LE(curve.at("x").size(), curve.contains("faint") ? 40U : 400U);
    EXPECT_EQ(curve.at("x").back(), 1000.0) << "how far it came stays";
  }
  EXPECT_LT(dump_json(curves).size(), 600'000U);
}

// Else the others would lie on the axis.
TEST(SessionReport, CutsALossFarAboveThoseOfTheBest) {
  std::vector<TrialRecord> trials(8, seen_as({2.5, 0.5}));
  trials.push_back(seen_as({2.5, 1e9}));
  trials.push_back(seen_as({2.5, NAN}, "diverged"));
  const std::vector<int64_t> order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const nlohmann::json curves = curves_of(trials, order, "loss");
  ASSERT_EQ(curves.size(), 10U);
  EXPECT_EQ(curves.at(0).at("y"), nlohmann::json({2.5, 0.5}));
  EXPECT_EQ(curves.at(8).at("y"), nlohmann::json({2.5, 4.5}));
  EXPECT_EQ(curves.at(9).at("y"), nlohmann::json::array({2.5}));
}

// As often as it is asked: an error while a result is taken leaves the trial under way.
TEST(Session, NamesAMetricThatTheRunsDoNotHave) {
  const TempFolder place;
  const fs::path folder = place.path() / "session";
  const std::string lines = evaluation(1, R"("loss":2)") + evaluation(2, R"("loss":1)");
  const fs::path program = told_runs(place.path(), lines, lines);
  for (const bool again : {false, true}) {
    Session session =
        again ? Session::open(folder) : Session::create(folder, job_of_two_epochs(), two_rates({}));
    try {
      session.run({.program = program});
      ADD_FAILURE() << "it ended";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.message();
      EXPECT_NE(error.message().find("metric=loss"), std::string::npos) << error.message();
    }
  }
}

// Evaluations of every 0.3 epochs that fall on whole steps, a quarter of an epoch apart: those
// after 0.75 and 1 epochs are both nearest to 0.9. A trial that was to pause at 0.9, as trial 1
// here, may have got to the second one or not, and the search must not depend on that.
TEST(Session, OfTwoEvaluationsAtOneBudgetTheFirstCounts) {
  spec::JobOptions job;
  job.train.epochs = 2;
  job.train.eval_every_epochs = 0.3;
  const TempFolder place;
  Tuning tuning = two_rates(job);
  tuning.setup.policy = "one_epoch";
  tuning.setup.budget = 3;
  tuning.setup.finish = false;
  std::string lines;
  for (const double epoch : {0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0})
    lines += evaluation(epoch, fmt::format("\"accuracy\":{}", epoch / 4));
  Session session = Session::create(place.path() / "session", OptionSet(job).to_toml(), tuning);
  EXPECT_TRUE(session.run({.program = told_runs(place.path(), lines, lines)}));
  ASSERT_EQ(session.trials().size(), 2U);
  const std::vector<tune::Observation>& seen = session.trials()[0].seen;
  const double budgets[] = {0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2};
  const double epochs[] = {0.25, 0.5, 0.75, 1.25, 1.5, 1.75, 2};
  ASSERT_EQ(seen.size(), std::size(budgets));
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_NEAR(seen[i].budget, budgets[i], 1e-9);
    EXPECT_EQ(seen[i].value, epochs[i] / 4) << seen[i].budget;
  }
  const tune::Observation& paused = session.trials()[1].seen.back();
  EXPECT_NEAR(paused.budget, 0.9, 1e-9);
  EXPECT_EQ(paused.value, 0.75 / 4);
}

// A look at a new setting is worth something to the end where the best trial's own end is paid for
// besides, and not where the budget has to pay for it.
TEST(Session, LooksAtNewSettingsToTheEndIfTheBestIsFinishedAfterwards) {
  spec::JobOptions job;
  job.train.epochs = 10;
  std::string lines;
  for (int epoch = 1; epoch <= 10; ++epoch) lines += evaluation(epoch, R"("accuracy":0.5)");
  for (const bool finish : {false, true}) {
    const TempFolder place;
    Tuning tuning = default_tuning(job);
    tuning.setup.budget = 16;
    tuning.setup.at_once = 1;
    tuning.setup.finish = finish;
    Session session = Session::create(place.path() / "session", OptionSet(job).to_toml(), tuning);
    EXPECT_TRUE(session.run({.program = told_runs(place.path(), lines, lines)}));
    EXPECT_EQ(session.trials().size(), finish ? 16U : 9U);
  }
}

TEST(Session, TellsAbsenceFromDamage) {
  const TempFolder place;
  EXPECT_EQ(open_error(place.path() / "nowhere"), ErrorCode::not_found);
  const fs::path folder = place.path() / "session";
  { const Session session = Session::create(folder, job_toml(), default_tuning({})); }
  const std::string whole = read_file(folder / "tune.json");
  Rng rng(4);
  for (int i = 0; i < 60; ++i) {
    std::string text = whole;
    const auto at = rng.below(static_cast<uint32_t>(text.size()));
    if (i % 2 == 0) {
      text.resize(at);
    } else {
      text.erase(at, 1 + rng.below(20));
    }
    write_file_atomic(folder / "tune.json", text);
    try {
      Session::open(folder);  // some changes leave a state that is whole
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == ErrorCode::data_loss || e.code() == ErrorCode::conflict) << e.what();
    }
  }
  for (const char* name : {"tune.json", "job.toml"}) {
    const fs::path file = folder / name, aside = place.path() / "aside";
    fs::rename(file, aside);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    EXPECT_EQ(open_error(folder), ErrorCode::data_loss);  // it does not wait for a writer
    fs::rename(aside, file);
  }
  nlohmann::json state = nlohmann::json::parse(whole);
  state["format"] = 99;
  write_file_atomic(folder / "tune.json", state.dump());
  EXPECT_EQ(open_error(folder), ErrorCode::conflict);
}

// The field is named, and nothing that contradicts the search gets as far as a report.
TEST(Session, NamesTheFieldOfAStateThatIsOtherwise) {
  const TempFolder place;
  const fs::path folder = place.path() / "session";
  {
    Session session = Session::create(folder, job_of_two_epochs(), two_rates({}));
    const std::string lines =
        evaluation(1, R"("accuracy":0.5)") + evaluation(2, R"("accuracy":0.6)");
    EXPECT_TRUE(session.run({.program = told_runs(place.path(), lines, lines)}));
    ASSERT_EQ(session.trials().size(), 2U);
  }
  const nlohmann::json whole = nlohmann::json::parse(read_file(folder / "tune.json"));
  const auto expect_named = [&](const char* pointer, const nlohmann::json& value,
                                const char* name) {
    nlohmann::json state = whole;
    state[nlohmann::json::json_pointer(pointer)] = value;
    write_file_atomic(folder / "tune.json", state.dump());
    try {
      Session::open(folder);
      ADD_FAILURE() << pointer << " = " << value;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data_loss) << e.what();
      EXPECT_NE(e.message().find(name), std::string::npos) << e.message();
      EXPECT_EQ(e.message().find("json.exception"), std::string::npos) << e.message();
    }
  };
  for (const nlohmann::json& value : {nlohmann::json(nullptr), nlohmann::json(-1)}) {
    for (const char* key : {"policy", "trials", "planned", "over", "finishing", "wall_seconds"})
      expect_named(fmt::format("/{}", key).c_str(), value, key == std::string("policy") ? "" : key);
    for (const char* key : {"setting", "status", "reason", "seen", "core_seconds"})
      expect_named(fmt::format("/trials/1/{}", key).c_str(), value, key);
  }
  expect_named("/trials/1", nlohmann::json::array(), "trial 1");
  expect_named("/trials/1/seen/0/0", 3, "seen");
  expect_named("/trials/1/setting", nlohmann::json::array(), "trial 1 is not that of the search");
  expect_named("/trials/1/setting/0", 7, "trial 1 is not that of the search");
  expect_named("/planned", {{2, 1.0}}, "planned");
  expect_named("/planned", {{1, 1.0}, {1, 2.0}}, "planned");
  expect_named("/trials", nlohmann::json::array(), "trials has 0, and the search knows 2");
  expect_named("/trials", nlohmann::json::array({whole["trials"][0]}), "trials has 1");
  expect_named("/trials/1/status", "zzz", "status");
  expect_named("/trials/1/later_status", "qq", "later_status");
  expect_named("/trials/1/seen", {{2, 0.5}, {1, 0.5}}, "seen");
  expect_named("/first", -1, "first");
  expect_named("/first", nlohmann::json::array({7}), "first");
  expect_named("/first", nlohmann::json::array({1}), "first is not the setting of trial 0");
}

}  // namespace
}  // namespace ductile::trials
