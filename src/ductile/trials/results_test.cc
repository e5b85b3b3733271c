#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/machine.h"
#include "ductile/base/testing.h"
#include "ductile/trials/report.h"
#include "ductile/trials/session.h"
#include "ductile/trials/testing/told_runs.h"
#include "ductile/tune/searcher.h"

// What a session begins with, which trial is its result, and what may change when it goes on.
namespace ductile::trials {
namespace {

using testing::Ends;
using testing::evaluation;
using testing::job_of_two_epochs;
using testing::told_runs;
using testing::two_rates;

// The accuracies of the first two epochs.
std::string accuracies(double first, double second) {
  return evaluation(1, fmt::format("\"accuracy\":{}", first)) +
         evaluation(2, fmt::format("\"accuracy\":{}", second));
}

// Each of two learning rates gets one epoch, and what is the best then is run to its end.
Tuning one_look_each() {
  Tuning tuning = two_rates({});
  tuning.setup.policy = "freeze_thaw";
  tuning.setup.searcher = "curves";
  tuning.setup.budget = 2;
  return tuning;
}

// The result is not to be worse than what the job would have found untuned.
TEST(SessionResult, BeginsWithTheJobsOwnSetting) {
  for (const char* searcher : {"curves", "grid"}) {
    const TempFolder place;
    const fs::path folder = place.path() / "session";
    spec::JobOptions job;
    job.train.epochs = 2;
    job.optimizer.lr = 0.0123;
    Tuning tuning = default_tuning(job);
    tuning.setup.at_once = 1;
    tuning.setup.budget = 2;
    tuning.setup.searcher = searcher;
    if (tuning.setup.searcher == "grid") tuning.setup.policy = "full";
    const std::string lines = accuracies(0.5, 0.6);
    Session session = Session::create(folder, OptionSet(job).to_toml(), tuning);
    EXPECT_TRUE(session.run({.program = told_runs(place.path(), lines, lines)}));
    ASSERT_FALSE(session.trials().empty());
    EXPECT_EQ(session.trials()[0].setting, *setting_of(tuning.space, job));
    EXPECT_TRUE(fs::exists(folder / "best.toml"));
  }
}

// One that was begun before there was a first setting.
TEST(SessionResult, GoesOnAsItWasBegun) {
  const TempFolder place;
  const fs::path folder = place.path() / "session";
  Tuning tuning = default_tuning({});
  tuning.setup.at_once = 1;
  tuning.setup.budget = 2;
  { const Session session = Session::create(folder, job_of_two_epochs(), tuning); }
  nlohmann::json state = nlohmann::json::parse(read_file(folder / "tune.json"));
  ASSERT_TRUE(state.at("first").is_array());
  state.erase("first");
  write_file_atomic(folder / "tune.json", state.dump());
  const std::string lines = accuracies(0.5, 0.6);
  Session session = Session::open(folder);
  EXPECT_TRUE(session.run({.program = told_runs(place.path(), lines, lines)}));
  ASSERT_FALSE(session.trials().empty());
  const auto searcher =
      tune::make_searcher("curves", tuning.space, {.seed = tuning.setup.seed, .full_budget = 2});
  searcher->ask();
  EXPECT_EQ(session.trials()[0].setting, searcher->trials()[0].setting);
  EXPECT_NE(session.trials()[0].setting, *setting_of(tuning.space, {}));
}

TEST(SessionResult, AModelIsAskedAlsoWhereThereAreFewTrials) {
  for (const bool is_old : {false, true}) {
    const auto settings = [&](const char* searcher) {
      const TempFolder place;
      const fs::path folder = place.path() / "session";
      Tuning tuning = default_tuning({});
      tuning.setup.policy = "full";
      tuning.setup.searcher = searcher;
      tuning.setup.at_once = 1;
      tuning.setup.budget = 12;
      { const Session session = Session::create(folder, job_of_two_epochs(), tuning); }
      nlohmann::json state = nlohmann::json::parse(read_file(folder / "tune.json"));
      if (is_old) state.erase("rules");
      write_file_atomic(folder / "tune.json", state.dump());
      const std::string lines = accuracies(0.5, 0.6);
      Session session = Session::open(folder);
      EXPECT_TRUE(session.run({.program = told_runs(place.path(), lines, lines)}));
      std::vector<tune::Setting> out;
      for (const TrialRecord& trial : session.trials()) out.push_back(trial.setting);
      return out;
    };
    const auto random = settings("random"), model = settings("tpe");
    ASSERT_EQ(model.size(), 6U);
    EXPECT_EQ(model == random, is_old) << "an earlier version asked it after ten";
  }
}

// ASHA had one rung in a job of one epoch, and has three. What was begun with one goes on so.
TEST(SessionResult, ARunOfOneEpochIsEndedEarly) {
  spec::JobOptions job;
  job.train.epochs = 1;
  job.train.eval_every_epochs = 0.1;
  std::string lines;
  for (int tenth = 1; tenth <= 10; ++tenth) lines += evaluation(0.1 * tenth, R"("accuracy":0.5)");
  for (const bool is_old : {false, true}) {
    const TempFolder place;
    const fs::path folder = place.path() / "session";
    Tuning tuning = default_tuning(job);
    tuning.setup.policy = "asha";
    tuning.setup.at_once = 1;
    tuning.setup.budget = 2;
    { const Session session = Session::create(folder, OptionSet(job).to_toml(), tuning); }
    if (is_old) {
      nlohmann::json state = nlohmann::json::parse(read_file(folder / "tune.json"));
      ASSERT_EQ(state.at("policy").at("state").at("done").size(), 3U);
      state.erase("rules");
      for (const char* key : {"done", "promoted"})
        state["policy"]["state"][key] = nlohmann::json::parse("[[]]");
      write_file_atomic(folder / "tune.json", state.dump());
    }
    for (int opened = 0; opened < 2; ++opened) {
      Session session = Session::open(folder);
      EXPECT_TRUE(session.run({.program = told_runs(place.path(), lines, lines)}));
      if (is_old) {
        EXPECT_EQ(session.trials().size(), 2U);
      } else {
        EXPECT_GT(session.trials().size(), 5U);
      }
    }
  }
}

// What its model has, and not what it had once.
TEST(SessionResult, ATrialIsWorthItsLastEvaluation) {
  const TempFolder place;
  std::vector<std::string> news;
  Session session = Session::create(place.path() / "session", job_of_two_epochs(), two_rates({}));
  EXPECT_TRUE(session.run(
      {.program = told_runs(place.path(), accuracies(0.9, 0.4), accuracies(0.5, 0.6), Ends::done),
       .on_news = [&](const std::string& text) { news.push_back(text); }}));
  ASSERT_EQ(session.trials().size(), 2U);
  EXPECT_EQ(session.best(), 1);
  EXPECT_EQ(*session.value_of(0), 0.4);
  EXPECT_EQ(*session.value_of(1), 0.6);
  EXPECT_EQ(news, (std::vector<std::string>{
                      "0.0 of 20 epochs: trial 0: optimizer.lr=0.1; 2 epochs",
                      "2.0 of 20 epochs: trial 0: accuracy 40.00 % after 2 epochs",
                      "2.0 of 20 epochs: trial 1: optimizer.lr=1; 2 epochs",
                      "4.0 of 20 epochs: trial 1: accuracy 60.00 % after 2 epochs"}));
  const std::string report = report_html(session);
  EXPECT_LT(report.find("60.00 %"), report.find("40.00 %"));
  EXPECT_EQ(report.find("90.00 %"), std::string::npos);
  EXPECT_NE(report.find("<td class=\"state\">finished, best</td>"), std::string::npos);
}

// It fell below the other one, which has no end.
TEST(SessionResult, TheTrialThatWasRunToItsEndIsTheResult) {
  const TempFolder place;
  const fs::path folder = place.path() / "session";
  Session session = Session::create(folder, job_of_two_epochs(), one_look_each());
  EXPECT_TRUE(session.run({.program = told_runs(place.path(), accuracies(0.9, 0.4),
                                                accuracies(0.5, 0.6), Ends::done)}));
  ASSERT_EQ(session.trials().size(), 2U);
  EXPECT_EQ(session.trials()[0].status, "finished");
  EXPECT_EQ(session.trials()[1].status, "paused");
  EXPECT_EQ(session.trials()[1].reason, "others promised more");
  EXPECT_EQ(session.best(), 0);
  EXPECT_EQ(nlohmann::json::parse(read_file(folder / "tune.json")).at("best"), 0);
}

TEST(SessionResult, IfTheBestOneDivergesAtItsEndTheNextOneIs) {
  const TempFolder place;
  const std::string lost =
      evaluation(1, R"("accuracy":0.9)") + evaluation(2, R"("accuracy":"NaN")");
  Session session = Session::create(place.path() / "session", job_of_two_epochs(), one_look_each());
  EXPECT_TRUE(
      session.run({.program = told_runs(place.path(), lost, accuracies(0.5, 0.4), Ends::done)}));
  ASSERT_EQ(session.trials().size(), 2U);
  EXPECT_EQ(session.trials()[0].status, "diverged");
  EXPECT_EQ(session.trials()[0].reason, "the loss was not finite");
  EXPECT_EQ(session.trials()[1].status, "finished");
  EXPECT_EQ(session.best(), 1);
}

// No run is trained again, and the end of the best one is no part of the search.
TEST(SessionResult, ASearchThatWasOverGoesOnWithALargerBudget) {
  const TempFolder place;
  const fs::path folder = place.path() / "session";
  const fs::path program =
      told_runs(place.path(), accuracies(0.9, 0.4), accuracies(0.5, 0.6), Ends::done);
  {
    Session session = Session::create(folder, job_of_two_epochs(), one_look_each());
    EXPECT_TRUE(session.run({.program = program}));
  }
  Session session = Session::open(folder);
  session.change({"budget=4", "at_once=2", "finish=false"});
  EXPECT_EQ(session.budget(), 4);
  EXPECT_EQ(session.state_of_search(), "");
  EXPECT_EQ(session.epochs_spent(), 2);
  EXPECT_TRUE(session.run({.program = program}));
  ASSERT_EQ(session.trials().size(), 2U);
  for (const TrialRecord& trial : session.trials()) EXPECT_EQ(trial.status, "finished");
  EXPECT_EQ(session.epochs_spent(), 4);
  EXPECT_EQ(session.best(), 1);
}

// What the best one reached after the search is not lost where the search goes on: here another
// one, which is no better at its end, looks better until then.
TEST(SessionResult, ALargerBudgetNeverMakesTheResultWorse) {
  const TempFolder place;
  const fs::path folder = place.path() / "session";
  Tuning tuning = one_look_each();
  tuning.setup.finish = true;
  const fs::path program =
      told_runs(place.path(), accuracies(0.5, 0.9), accuracies(0.6, 0.4), Ends::done);
  {
    tuning.setup.budget = 1;
    Session session = Session::create(folder, job_of_two_epochs(), tuning);
    EXPECT_TRUE(session.run({.program = program}));
    ASSERT_EQ(session.trials().size(), 1U);
    EXPECT_EQ(session.trials()[0].status, "finished");
    EXPECT_EQ(session.best(), 0);
  }
  for (const char* budget : {"budget=2", "budget = 2"}) {
    Session session = Session::open(folder);
    session.change({budget});
    EXPECT_TRUE(session.run({.program = program}));
    EXPECT_EQ(session.trials().size(), 2U);
    EXPECT_EQ(session.trials()[0].status, "finished");
    EXPECT_EQ(session.best(), 0);
    EXPECT_EQ(session.value_of(0), 0.9);
  }
  Session session = Session::open(folder);
  EXPECT_THROW(session.change({"budget=1"}), Error);
}

// The session's longest run has no other one beside it.
TEST(SessionResult, TheBestOneIsRunToItsEndOnAllCores) {
  const size_t all = usable_cores().size();
  if (all < 2) GTEST_SKIP() << "there is one core";
  for (const bool has_library : {false, true}) {
    const TempFolder place;
    const std::string lines = evaluation(1, R"("accuracy":0.5)");
    write_file_atomic(place.path() / "events",
                      lines + R"({"kind":"end","status":"interrupted"})" + "\n");
    write_file_atomic(place.path() / "last", lines + evaluation(2, R"("accuracy":0.6)") +
                                                 R"({"kind":"end","status":"done"})" + "\n");
    const fs::path program = place.path() / "program";
    write_file_atomic(
        program,
        fmt::format("#!/bin/sh\nenv -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc >> {0}/cores\n"
                    "while [ \"$1\" != --out ] && [ \"$1\" != --resume ]; do shift; done\n"
                    "[ $1 = --out ] && events=events || events=last\n"
                    "mkdir -p \"$2\"; touch \"$2/job.toml\"; cp {0}/$events \"$2/events.jsonl\"\n",
                    place.path().string()));
    ASSERT_EQ(::chmod(program.c_str(), 0700), 0);
    spec::JobOptions job;
    job.train.epochs = 2;
    if (has_library) {
      job.model.name = "custom";
      job.model.library = "libmine.so";
    }
    Tuning tuning = one_look_each();
    tuning.setup.budget = 1;
    tuning.setup.at_once = static_cast<int64_t>(all);
    Session session = Session::create(place.path() / "session", OptionSet(job).to_toml(), tuning);
    EXPECT_TRUE(session.run({.program = program}));
    EXPECT_EQ(read_file(place.path() / "cores"), fmt::format("1\n{}\n", has_library ? 1 : all));
  }
}

// A third epoch pays for no trial of two.
TEST(SessionResult, FullBeginsNoTrialThatTheBudgetDoesNotRunToItsEnd) {
  const TempFolder place;
  Tuning tuning = two_rates({});
  tuning.setup.budget = 3;
  Session session = Session::create(place.path() / "session", job_of_two_epochs(), tuning);
  EXPECT_TRUE(session.run({.program = told_runs(place.path(), accuracies(0.5, 0.6),
                                                accuracies(0.5, 0.6), Ends::done)}));
  EXPECT_EQ(session.trials().size(), 1U);
  EXPECT_EQ(session.epochs_spent(), 2);
}

// A trial may take hours, and the session may be killed meanwhile.
TEST(SessionResult, TheTimeIsSavedWhileATrialRuns) {
  const TempFolder place;
  const fs::path program = place.path() / "slow", state = place.path() / "session/tune.json";
  write_file_atomic(program, "#!/bin/sh\nexec sleep 60\n");
  ASSERT_EQ(::chmod(program.c_str(), 0700), 0);
  Session session = Session::create(place.path() / "session", job_of_two_epochs(), two_rates({}));
  int looks = 0;
  const auto is_saved = [&] {
    return nlohmann::json::parse(read_file(state)).at("wall_seconds").get<double>() > 0 ||
           ++looks > 50;
  };
  EXPECT_FALSE(
      session.run({.program = program, .interrupted = is_saved, .seconds_between_saves = 0.01}));
  EXPECT_LE(looks, 50);
}

// Trials of two jobs cannot be compared, and best.toml would name one that never ran.
TEST(SessionResult, GoesOnWithTheJobThatItBeganWith) {
  const TempFolder place;
  const fs::path folder = place.path() / "session", state = folder / "tune.json";
  { const Session session = Session::create(folder, job_of_two_epochs(), two_rates({})); }
  spec::JobOptions job;
  OptionSet options(job);
  options.read_toml(folder / "job.toml");
  job.loader.threads += 3;
  job.train.log_every += 3;
  write_file_atomic(folder / "job.toml", options.to_toml());
  { const Session session = Session::open(folder); }
  job.model.hidden = {7, 8};
  job.train.epochs = 3;
  job.data.train_limit = 64;
  write_file_atomic(folder / "job.toml", options.to_toml());
  try {
    Session::open(folder);
    ADD_FAILURE() << "opened";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::conflict);
    EXPECT_NE(e.message().find("in what shapes the result: data.train_limit, model.hidden, "
                               "train.epochs; put the old values back"),
              std::string::npos)
        << e.message();
  }
  // One of an earlier version does not know, and takes it up.
  nlohmann::json old = nlohmann::json::parse(read_file(state));
  EXPECT_EQ(old.at("job").at("train").at("epochs"), 2);
  old.erase("job");
  write_file_atomic(state, old.dump());
  Session::open(folder).change({"budget=30"});
  EXPECT_EQ(nlohmann::json::parse(read_file(state)).at("job").at("train").at("epochs"), 3);
}

TEST(SessionResult, KeepsWhatWouldMakeItAnotherSearch) {
  const TempFolder place;
  const fs::path folder = place.path() / "session";
  Session session = Session::create(folder, job_of_two_epochs(), two_rates({}));
  const std::string before = read_file(folder / "tune.json");
  for (const std::string change :
       {"policy=asha", "searcher=gp", "seed=3", "metric=loss", "budget=0.5", "bugdet=4"}) {
    try {
      session.change({change});
      ADD_FAILURE() << change;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(e.message().find("budget"), std::string::npos) << e.message();
    }
  }
  EXPECT_EQ(read_file(folder / "tune.json"), before);
}

}  // namespace
}  // namespace ductile::trials
