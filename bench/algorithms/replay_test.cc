#include <cmath>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zstd.h>

#include "comparison.h"
#include "ductile/base/json.h"
#include "ductile/base/testing.h"

namespace ductile::replay {
namespace {

using ductile::testing::code_of;

constexpr const char* kTwo =
    R"({"task":"t","hp":{"lr":0.001,"m":0.9,"opt":"a","same":1},"valid_loss":[3,2,null],"train_loss":[9,9,9]}
{"task":"t","hp":{"lr":1.0,"m":0.999,"opt":"b","same":1},"valid_loss":[null,4,null,1,1.5]}

{"task":"t","hp":{"lr":0.03,"opt":"a","same":1},"valid_loss":[null,null]}
{"task":"alone","hp":{},"valid_loss":[1]}
)";

std::vector<Task> parse(const std::string& text, const Metric& metric = {},
                        const std::string& only = "") {
  return parse_tasks(text, "f.jsonl", metric, only);
}

TEST(CurveFileTest, ReadsCurvesGapsAndDivergence) {
  const auto tasks = parse(kTwo);
  ASSERT_EQ(tasks.size(), 1u);  // a task with one run leaves nothing to choose
  const Task& t = tasks[0];
  EXPECT_EQ(t.metric, "valid_loss");
  EXPECT_FALSE(t.higher_is_better);
  ASSERT_EQ(t.curves.size(), 3u);
  ASSERT_EQ(t.curves[0].size(), 3u);
  EXPECT_EQ(t.curves[0][1], 2);
  EXPECT_TRUE(std::isnan(t.curves[0][2]));                         // null to the end: it diverged
  EXPECT_EQ(t.curves[1], (std::vector<double>{4, 4, 4, 1, 1.5}));  // the value before holds
  ASSERT_EQ(t.curves[2].size(), 1u);
  EXPECT_TRUE(std::isnan(t.curves[2][0]));
  EXPECT_EQ(t.best(), 1);
  EXPECT_EQ(t.length(), 5u);
  EXPECT_EQ(t.space.listed().size(), 3u);
  ASSERT_EQ(t.space.size(), 3u);  // "same" is always the same
}

TEST(CurveFileTest, HigherIsBetterWhereTheNameOrTheUserSaysSo) {
  const std::string text =
      R"({"workload":"w","hparams":{"a":1},"curve":{"global_step":[1,2],"validation/accuracy":[0.1,0.3],"validation/loss":[2,1]}}
{"workload":"w","hparams":null,"curve":{"global_step":[1,2],"validation/accuracy":[0.2,0.25],"validation/loss":[1,3]}})";
  const auto tasks = parse(text);
  EXPECT_EQ(tasks[0].metric, "validation/accuracy");
  EXPECT_TRUE(tasks[0].higher_is_better);
  EXPECT_EQ(tasks[0].best(), -0.3);
  EXPECT_EQ(parse(text, parse_metric("validation/loss"))[0].best(), 1);
  EXPECT_EQ(parse(text, parse_metric("validation/loss:max"))[0].best(), -3);
  EXPECT_EQ(code_of([&] { parse(text, parse_metric("validation/wer")); }),
            ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { parse_metric("x:up"); }), ErrorCode::invalid_argument);
  std::string message;
  code_of(
      [&] {
        parse(R"({"task":"t","quux":[1]})"
              "\n"
              R"({"task":"t","quux":[2]})");
      },
      &message);
  EXPECT_NE(message.find("quux:max"), std::string::npos) << message;
}

TEST(CurveFileTest, ScalesAreReadFromTheValues) {
  std::string text;
  Rng rng(1);
  for (int i = 0; i < 200; ++i) {
    const double u = rng.uniform(0, 1), v = rng.uniform(0, 1), w = rng.uniform(0, 1);
    text += fmt::format(R"({{"task":"t","hp":{{"lr":{},"momentum":{},"width":{},"decay":{}}},)"
                        R"("valid_loss":[{}]}})"
                        "\n",
                        std::pow(10, -5 * u), 1 - std::pow(10, -1 - 3 * v), 64 + 100 * w,
                        i % 3 == 0 ? 0 : std::pow(10, -4 * u), u);
  }
  const tune::Space space = parse(text)[0].space;
  ASSERT_EQ(space.size(), 4u);
  EXPECT_EQ(space.dimensions()[0].scale, tune::Scale::log);  // decay: 0 is a step below the least
  EXPECT_EQ(space.dimensions()[1].scale, tune::Scale::log);
  EXPECT_EQ(space.dimensions()[2].scale, tune::Scale::log_to_one);
  EXPECT_EQ(space.dimensions()[3].scale, tune::Scale::linear);
}

TEST(CurveFileTest, RunsWithoutHyperparametersAreKnownByTheirNumbers) {
  const auto tasks = parse(R"({"task":"t","valid_loss":[1]})"
                           "\n"
                           R"({"task":"t","hparams":null,"valid_loss":[2]})");
  EXPECT_EQ(tasks[0].space.dimensions()[0].name, "run");
  EXPECT_EQ(tasks[0].space.listed()[1], tune::Setting{1});
}

TEST(CurveFileTest, RefusesWhatItCannotRead) {
  for (const char* bad : {"", "\n\n", "[]", "{", "3", R"({"hp":{}})", R"({"task":3})",
                          R"({"task":"t"})", R"({"task":"t","valid_loss":["x"]})"}) {
    EXPECT_EQ(code_of([&] { parse(bad); }), ErrorCode::invalid_argument) << bad;
  }
  EXPECT_EQ(code_of([] { parse(kTwo, {}, "nothing like it"); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { read_tasks("/nowhere/x.jsonl", {}, ""); }), ErrorCode::not_found);
  EXPECT_NO_THROW(parse(std::string(kTwo) + R"({"task":"deep","hp":{"a":{"b":[1]}}})"));
}

TEST(CurveFileTest, ReadsPackedFilesAndRefusesDamagedOnes) {
  const TempFolder folder;
  std::string packed(ZSTD_compressBound(std::string(kTwo).size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), kTwo, std::string(kTwo).size(), 3));
  const auto write = [&](const std::string& bytes) {
    const fs::path path = folder.path() / "x.jsonl.zst";
    write_file_atomic(path, bytes);
    return path;
  };
  EXPECT_EQ(read_tasks(write(packed), {}, "")[0].curves.size(), 3u);
  EXPECT_EQ(code_of([&] { read_tasks(write(packed.substr(0, packed.size() - 9)), {}, ""); }),
            ErrorCode::data_loss);
  EXPECT_EQ(code_of([&] { read_tasks(write("no zstd at all"), {}, ""); }), ErrorCode::data_loss);
}

// A synthetic task: 40 runs whose loss falls from 10 to what their setting says.
Task synthetic() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += fmt::format(R"({{"task":"s","hp":{{"x":{}}},"valid_loss":[)", i);
    for (int b = 1; b <= 20; ++b)
      text += fmt::format("{}{}", b > 1 ? "," : "", std::abs(i - 28) + 10.0 / b);
    text += "]}\n";
  }
  return parse(text)[0];
}

TEST(ReplayTest, SpendsWhatItIsGivenAndNoMore) {
  const Task task = synthetic();
  for (const Method& m :
       parse_methods("random,grid,tpe,gp,one_epoch,halving,hyperband,asha,bohb,mltuner,ductile")) {
    for (const int64_t total : {1, 19, 20, 21, 100, 333}) {
      const Trajectory t = replay(task, m, 1, total);
      ASSERT_EQ(t.regret.size(), static_cast<size_t>(total) + 1);
      EXPECT_LE(t.spent, static_cast<double>(total));
      EXPECT_TRUE(std::isinf(t.regret[0]));
      for (size_t i = 1; i < t.regret.size(); ++i) {
        EXPECT_LE(t.regret[i], t.regret[i - 1]);
        EXPECT_GE(t.regret[i], 0);
      }
    }
    const Trajectory a = replay(task, m, 5, 200), b = replay(task, m, 5, 200);
    EXPECT_EQ(a.regret, b.regret) << m.name;
  }
}

TEST(ReplayTest, OneRunAfterTheOtherCostsItsLength) {
  const Trajectory t = replay(synthetic(), parse_methods("random")[0], 1, 100);
  EXPECT_EQ(t.trials, 5);
  EXPECT_EQ(t.spent, 100);
}

// Of six whole runs two are random, and not ten of them.
TEST(ReplayTest, WholeRunsTellASearcherHowManyThereAre) {
  const Task task = synthetic();
  const auto settings = [&](const std::string& searcher, double total) {
    const auto policy = make_method(task, parse_methods("full+" + searcher)[0], 1, total);
    std::vector<tune::Setting> out;
    for (int i = 0; i < 6; ++i) {
      const tune::Move move = policy->next();
      out.push_back(policy->searcher().trials()[static_cast<size_t>(move.trial)].setting);
      policy->tell(look_up(task, *policy, move));
    }
    return out;
  };
  for (const std::string searcher : {"tpe", "gp"})
    EXPECT_NE(settings(searcher, 6 * 20), settings(searcher, 1000 * 20)) << searcher;
  EXPECT_EQ(settings("random", 6 * 20), settings("random", 1000 * 20));
}

TEST(ReplayTest, RandomNeedsWhatTheMathematicsSays) {
  // One of 40 runs is the best; each costs 20. In the median it is the 20th or 21st.
  EXPECT_NEAR(static_cast<double>(random_needs(synthetic(), 0.01, 2001)), 20.5 * 20, 40);
  // One of the best ten comes as the first, second, ... with chances that halve by the third.
  EXPECT_LE(random_needs(synthetic(), 0.25, 2001), 3 * 20);
}

TEST(MethodTest, ListsOfValuesAreTriedOneByOneAndWrongOnesAreRefused) {
  const auto methods =
      parse_methods("halving:halving.eta=2|3:least_budget=1|5,gp,halving+tpe:halving.eta=4");
  ASSERT_EQ(methods.size(), 6u);
  EXPECT_EQ(methods[3].name, "halving:halving.eta=3:least_budget=5");
  EXPECT_EQ(methods[3].group, "halving");
  EXPECT_EQ(methods[4].policy, "full");
  EXPECT_EQ(methods[5].searcher, "tpe");
  EXPECT_TRUE(methods[0].uses_total);
  EXPECT_TRUE(methods[4].uses_total) << "it begins with fewer random settings where few are asked";
  EXPECT_FALSE(parse_methods("random")[0].uses_total);
  EXPECT_FALSE(parse_methods("asha+tpe")[0].uses_total);
  for (const char* bad : {"", "halvin", "full+tp", "halving:eta=3", "halving:halving.eta=x",
                          "random:searcher.seed=-1", "random:", "freeze_thaw+random"}) {
    EXPECT_EQ(code_of([&] {
                for (const Method& m : parse_methods(bad)) make_method(synthetic(), m, 0, 10);
              }),
              ErrorCode::invalid_argument)
        << bad;
  }
}

TEST(ComparisonTest, ReportsBothHalvesTheChosenSettingsAndWins) {
  const TempFolder folder;
  std::string text;
  for (const char* task : {"a", "b", "<c>"})
    for (int i = 0; i < 30; ++i) {
      text += fmt::format(R"({{"task":"{}","hp":{{"x":{}}},"valid_loss":[{},{}]}})"
                          "\n",
                          task, i, 1.0 + std::abs(i - 9), std::abs(i - 9));
    }
  Request request;
  request.file = (folder.path() / "x.jsonl").string();
  write_file_atomic(fs::path(request.file), text);
  request.methods = "random,halving:halving.eta=2|3,ductile";
  request.seeds = 3;
  request.tuned = 1;
  request.share = 0.2;
  request.until = 10;
  const Comparison c = compare(request);
  const nlohmann::json json = parse_json(to_json(c));
  EXPECT_EQ(json["tasks"].size(), 3u);
  EXPECT_EQ(json["tasks"][0]["task"], "<c>");
  EXPECT_EQ(json["summary"].size(), 2u * 3 * 3);
  EXPECT_EQ(json["methods"].size(), 4u);
  EXPECT_EQ(json["methods"][0]["tasks"][0]["at"][2]["regrets"].size(), 3u);
  const std::string markdown = to_markdown(c), page = to_page(c);
  EXPECT_NE(markdown.find("Tasks kept apart (2)"), std::string::npos);
  EXPECT_EQ(page.find("<c>"), std::string::npos);  // a name is never markup
  EXPECT_NE(page.find("<!doctype html>"), std::string::npos);
  request.apart = "a";  // of "<c>", "a" and "b" the one in the middle
  const nlohmann::json apart = parse_json(to_json(compare(request)));
  ASSERT_EQ(apart["tasks"].size(), 3u);
  for (size_t t = 0; t < 3; ++t)
    EXPECT_EQ(apart["tasks"][t]["tuned_on"], apart["tasks"][t]["task"] != "a");
  EXPECT_EQ(apart["tasks"][2]["task"], "a");
  for (const char* text : {"<", "x"}) {  // none is left, or none is apart
    request.only = "c";
    request.apart = text;
    EXPECT_EQ(code_of([&] { compare(request); }), ErrorCode::invalid_argument) << text;
  }
  EXPECT_DOUBLE_EQ(win_rate(c.results[0], c.results[0], 0, {0, 1}), 0.5);
  EXPECT_DOUBLE_EQ(
      win_rate(c.results[0], c.results[3], 0, {0}) + win_rate(c.results[3], c.results[0], 0, {0}),
      1);
}

TEST(ComparisonTest, LeavesOutTasksOfFewRunsAndSaysSo) {
  const TempFolder folder;
  std::string text;
  for (const auto& [task, runs] : {std::pair{"a", 5}, {"b", 12}, {"c", 12}})
    for (int i = 0; i < runs; ++i)
      text += fmt::format(R"({{"task":"{}","hp":{{"x":{}}},"valid_loss":[{}]}})"
                          "\n",
                          task, i, std::abs(i - 3));
  Request request;
  request.file = (folder.path() / "x.jsonl").string();
  write_file_atomic(fs::path(request.file), text);
  request.methods = "random";
  request.seeds = 2;
  EXPECT_EQ(to_markdown(compare(request)).find("left out"), std::string::npos);
  request.least_runs = 12;
  request.apart = "c";
  const Comparison c = compare(request);
  const nlohmann::json json = parse_json(to_json(c));
  ASSERT_EQ(json["tasks"].size(), 2u);
  EXPECT_EQ(json["least_runs"], 12);
  EXPECT_EQ(json["tasks"][0]["task"], "b");  // which alone chooses the settings
  EXPECT_EQ(json["tasks"][0]["tuned_on"], true);
  EXPECT_EQ(json["tasks"][1]["tuned_on"], false);
  const std::string told = " 1 task with fewer than 12 runs is left out.";
  EXPECT_NE(to_markdown(c).find(told), std::string::npos);
  EXPECT_NE(to_page(c).find(told), std::string::npos);
  request.least_runs = 13;
  EXPECT_EQ(code_of([&] { compare(request); }), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ductile::replay
