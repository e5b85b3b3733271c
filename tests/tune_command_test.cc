// `ductile tune` as a user runs it: to its end, interrupted, killed, refused.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "elastic_programs.h"

namespace ductile::testing {
namespace {

using Json = nlohmann::json;

class Tune : public ::testing::Test {
 protected:
  std::vector<std::string> tune(const std::string& session, const std::string& space,
                                std::vector<std::string> more = {}) {
    write_file_atomic(root_.path() / "space.toml", space);
    std::vector<std::string> words =
        ductile({"-q", "tune", "--json", "--space", (root_.path() / "space.toml").string(), "--out",
                 (root_.path() / session).string()});
    for (const char* set : {"data.train_limit=256", "data.test_limit=64", "model.name=mlp",
                            "train.epochs=4", "train.batch_size=32", "train.threads=1"})
      words.insert(words.end(), {"--set", set});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<std::string> resume(const std::string& session) {
    return ductile({"-q", "tune", "--json", "--resume", (root_.path() / session).string()});
  }
  fs::path output() const { return root_.path() / "output"; }
  int run(const std::vector<std::string>& words) {
    fs::remove(output());
    return Program(words, output()).wait();
  }
  Json result() const { return Json::parse(read_file(output())); }
  // What the search did and found, without times.
  Json story(const std::string& session) const {
    Json state = Json::parse(read_file(root_.path() / session / "tune.json"));
    Json out = Json::array();
    for (const Json& t : state.at("trials"))
      out.push_back({t.at("values"), t.at("status"), t.at("reason"), t.at("seen")});
    return out;
  }

  TempFolder root_;
};

constexpr const char* kSpace = R"(
budget = 14
at_once = 1
[space."optimizer.lr"]
low = 1e-4
high = 1.0
scale = "log"
)";

TEST_F(Tune, FindsFinishesAndTells) {
  ASSERT_EQ(run(tune("a", kSpace)), 0) << read_file(output());
  const Json told = result();
  EXPECT_EQ(told.at("status"), "done");
  EXPECT_GE(told.at("trials"), 3);
  const fs::path best = told.at("best").at("run").get<std::string>();
  EXPECT_TRUE(fs::exists(best / "model.safetensors"));  // it ran to its end
  EXPECT_TRUE(fs::exists(root_.path() / "a/report.html"));
  // The job file that it leaves trains to the same bits.
  ASSERT_EQ(run(ductile({"-q", "train", (root_.path() / "a/best.toml").string(), "--out",
                         (root_.path() / "again").string()})),
            0)
      << read_file(output());
  EXPECT_EQ(model_of(root_.path() / "again"), model_of(best));
  // A session that is over stays as it is.
  const Json before = story("a");
  ASSERT_EQ(run(resume("a")), 0) << read_file(output());
  EXPECT_EQ(story("a"), before);
  // Its runs may be deleted meanwhile; what was found stays.
  fs::remove_all(root_.path() / "a/trials");
  ASSERT_EQ(run(resume("a")), 0) << read_file(output());
  EXPECT_TRUE(result().at("best").at("run").is_null()) << read_file(output());
  EXPECT_EQ(result().at("best").at("values"), told.at("best").at("values"));
  ASSERT_EQ(run(ductile({"-q", "tune", "--resume", (root_.path() / "a").string()})), 0);
  EXPECT_NE(read_file(output()).find(best.string() + " (it is gone)"), std::string::npos)
      << read_file(output());
}

// Killed with kill -9, its trials too, at any time: the search takes the same way.
TEST_F(Tune, GoesOnWhereItWasKilled) {
  ASSERT_EQ(run(tune("a", kSpace)), 0) << read_file(output());
  int kills = 0;
  fs::remove(output());
  Program program(tune("b", kSpace), output());
  Rng rng(7);
  while (true) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500 + rng.below(2500)));
    if (!program.running()) break;
    if (kills % 2 == 0) {
      program.kill();
    } else {
      ::kill(program.pid(), SIGTERM);
      EXPECT_EQ(program.wait(), 130) << read_file(output());
    }
    ++kills;
    ASSERT_LT(kills, 100) << read_file(output());
    if (!fs::exists(root_.path() / "b/tune.json")) {
      fs::remove_all(root_.path() / "b");
      program = Program(tune("b", kSpace), output());
    } else {
      program = Program(resume("b"), output());
    }
  }
  EXPECT_EQ(program.wait(), 0) << read_file(output());
  EXPECT_GE(kills, 1);
  EXPECT_EQ(story("b"), story("a"));
}

TEST_F(Tune, TakesDivergenceForAResult) {
  for (const char* precision : {"fp32", "fp16"}) {
    ASSERT_EQ(run(tune(precision, R"(
budget = 16
at_once = 2
policy = "full"
searcher = "grid"
[space."optimizer.lr"]
choices = [0.05, 1e6]
)",
                       {"--set", std::string("train.precision=") + precision, "--set",
                        "train.epochs=8"})),
              0)
        << read_file(output());
    const Json trials = story(precision);
    ASSERT_EQ(trials.size(), 2U);
    for (const Json& t : trials)
      EXPECT_EQ(t[1], t[0].at("optimizer.lr") == 0.05 ? "finished" : "diverged") << t;
    EXPECT_EQ(result().at("best").at("values").at("optimizer.lr"), 0.05);
  }
}

// 32 samples are no multiple of 12 virtual ranks.
TEST_F(Tune, TakesValuesThatContradictOneAnotherForAResult) {
  for (const char* at_once : {"1", "2"}) {
    ASSERT_EQ(run(tune(at_once, std::string("at_once = ") + at_once + R"(
budget = 8
policy = "full"
searcher = "grid"
[space."train.virtual_ranks"]
choices = [4, 12]
)")),
              0)
        << read_file(output());
    const Json trials = story(at_once);
    ASSERT_EQ(trials.size(), 2U);
    EXPECT_EQ(trials[0][1], "finished");
    EXPECT_EQ(trials[1][1], "refused");
    EXPECT_NE(trials[1][2].get<std::string>().find("virtual_ranks"), std::string::npos);
    EXPECT_EQ(result().at("epochs"), 4);
  }
}

// The last evaluation comes before the result: a session that ends between the two is not over.
TEST_F(Tune, SavesTheResultOfTheBestRunThatCouldNotBeSavedAtFirst) {
  fs::remove(output());
  Program program(tune("a", R"(
budget = 4
at_once = 1
policy = "full"
searcher = "grid"
[space."optimizer.lr"]
choices = [0.05]
)"),
                  output());
  const fs::path trial = root_.path() / "a/trials/0000", model = trial / "model.safetensors";
  while (program.running() && !fs::exists(trial / "job.toml"))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  fs::create_directory(model);
  const auto has_failed = [&] {
    return fs::exists(trial / "events.jsonl") &&
           read_file(trial / "events.jsonl").find("checkpoint_failed") != std::string::npos;
  };
  while (program.running() && !has_failed())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 130) << read_file(output());
  fs::remove(model);
  ASSERT_EQ(run(resume("a")), 0) << read_file(output());
  EXPECT_TRUE(fs::is_regular_file(model));
}

// What would resume a run would train the job as it is, beside the trials.
TEST_F(Tune, IsNoRunToResumeOrToUse) {
  ASSERT_EQ(run(tune("a", R"(
budget = 4
at_once = 1
policy = "full"
[space."optimizer.lr"]
low = 1e-4
high = 1.0
scale = "log"
)")),
            0)
      << read_file(output());
  EXPECT_EQ(story("a")[0][0].at("optimizer.lr"), 0.1) << "the job's own setting";
  const fs::path session = root_.path() / "a";
  const std::string report = read_file(session / "report.html");
  const std::vector<std::vector<std::string>> commands = {
      {"train", "--resume"}, {"eval"}, {"predict"}, {"minima"}};
  for (const std::vector<std::string>& words : commands) {
    std::vector<std::string> all = words;
    all.push_back(session.string());
    EXPECT_EQ(run(ductile(all)), 4) << words[0];
    const std::string said = read_file(output());
    EXPECT_NE(said.find("ductile tune --resume"), std::string::npos) << said;
    EXPECT_NE(said.find("a/trials/0000"), std::string::npos) << said;
  }
  EXPECT_EQ(read_file(session / "report.html"), report);
  EXPECT_FALSE(fs::exists(session / "events.jsonl"));
  EXPECT_EQ(run(ductile({"-q", "eval", (session / "trials/0000").string()})), 0)
      << read_file(output());
}

TEST_F(Tune, GoesOnWithALargerBudget) {
  const std::string space = R"(
budget = 4
at_once = 1
policy = "full"
searcher = "grid"
[space."optimizer.lr"]
choices = [0.1, 0.05]
)";
  ASSERT_EQ(run(tune("a", space)), 0) << read_file(output());
  EXPECT_EQ(result().at("trials"), 1);
  std::vector<std::string> more = resume("a");
  const std::string folder = (root_.path() / "a").string();
  std::ranges::replace(more, folder, fs::relative(folder).string());
  more.insert(more.end(), {"--tune", "budget=8"});
  ASSERT_EQ(run(more), 0) << read_file(output());
  EXPECT_EQ(result().at("trials"), 2);
  for (const char* key : {"session", "report"})
    EXPECT_TRUE(fs::path(result().at(key).get<std::string>()).is_absolute()) << result();
  EXPECT_TRUE(fs::path(result().at("best").at("run").get<std::string>()).is_absolute());
  const Json whole = story("a");
  ASSERT_EQ(run(tune("b", space, {"--tune", "budget=8"})), 0) << read_file(output());
  EXPECT_EQ(story("b"), whole);
  more.back() = "seed=8";
  EXPECT_EQ(run(more), 2);
  EXPECT_NE(read_file(output()).find("budget, at_once, finish"), std::string::npos)
      << read_file(output());
}

// The environment is below --set in the session's job, so it must not be above it in a trial.
TEST_F(Tune, TrialsDoNotReadTheEnvironmentOnceMore) {
  ::setenv("DUCTILE_TRAIN__EPOCHS", "1", 1);
  const int code = run(tune("a", R"(
budget = 4
policy = "full"
[space."optimizer.lr"]
choices = [0.05]
)"));
  ::unsetenv("DUCTILE_TRAIN__EPOCHS");
  ASSERT_EQ(code, 0) << read_file(output());
  EXPECT_EQ(story("a")[0][3].back()[0], 4);
}

TEST_F(Tune, DataThatAreNotThereAreRefusedBeforeThereIsASession) {
  EXPECT_EQ(run(tune("a", kSpace, {"--set", "data.format=folder", "--set", "data.path=/nope"})), 4);
  EXPECT_NE(read_file(output()).find("data.path = \"/nope\": there is no such file or folder"),
            std::string::npos)
      << read_file(output());
  EXPECT_FALSE(fs::exists(root_.path() / "a"));
}

TEST_F(Tune, SaysWhatIsWrong) {
  EXPECT_EQ(run(tune("a", "[space.\"optimizer.lrr\"]\nlow = 1\nhigh = 2\n")), 2);
  EXPECT_NE(read_file(output()).find("optimizer.lr"), std::string::npos);
  EXPECT_EQ(run(resume("nowhere")), 4);
  EXPECT_EQ(run(tune("a", kSpace, {"--set", "train.eval_every_epochs=0"})), 2);
  // A setting that the job as a whole refuses: 32 and 12 virtual ranks.
  EXPECT_EQ(run(tune("b", "[space.\"train.virtual_ranks\"]\nchoices = [12]\n")), 2);
  EXPECT_NE(read_file(output()).find("virtual_ranks"), std::string::npos) << read_file(output());
  EXPECT_EQ(run(tune("c", "budget = 0.5\n[space.\"optimizer.lr\"]\nchoices = [0.05]\n")), 2);
  EXPECT_EQ(run(tune("e", kSpace, {"--tune", "searcher=tpe"})), 2);
  EXPECT_NE(read_file(output()).find("policy=asha"), std::string::npos) << read_file(output());
  EXPECT_FALSE(fs::exists(root_.path() / "e"));
  // A search that has nothing to recommend.
  EXPECT_EQ(
      run(tune("d", "budget = 8\npolicy = \"full\"\n[space.\"optimizer.lr\"]\nchoices = [1e6]\n",
               {"--set", "train.epochs=8"})),
      3)
      << read_file(output());
}

}  // namespace
}  // namespace ductile::testing
