#include "ductile/run/diary.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/run/append_file.h"

namespace ductile::run {
namespace {

using nlohmann::json;

std::vector<json> lines_of(const fs::path& path) {
  std::vector<json> lines;
  for_each_diary_line(path, [&](json& line) { lines.push_back(line); });
  return lines;
}

std::vector<int64_t> steps_of(const fs::path& path) {
  std::vector<int64_t> steps;
  for (const json& line : lines_of(path)) steps.push_back(line.at("step"));
  return steps;
}

TEST(Diary, CountsEachStepOnceWhoeverGoesBackHowOften) {
  const TempFolder temp;
  const fs::path path = temp.path() / "metrics.jsonl";
  Diary diary(path);
  for (const int64_t step : {1, 2, 3, 4}) diary.append({{"step", step}});
  diary.append({{"begins", true}, {"step", 3}});
  for (const int64_t step : {4, 5}) diary.append({{"step", step}});
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  diary.append({{"begins", true}, {"step", 1}});
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1}));
  diary.append({{"step", 2}});
  diary.append({{"begins", true}, {"step", 0}});
  EXPECT_TRUE(lines_of(path).empty());
}

TEST(Diary, IgnoresWhateverAReplacedWriterAddsWhenItWakesUp) {
  const TempFolder temp;
  const fs::path path = temp.path() / "events.jsonl";
  Diary sleeper(path), successor(path), controller(path);
  sleeper.append({{"generation", 3}, {"step", 10}, {"kind", "resume"}});
  successor.append({{"generation", 5}, {"step", 10}, {"kind", "resume"}});
  const std::vector<json> before = lines_of(path);
  sleeper.append({{"generation", 3}, {"step", 10}, {"kind", "end"}});
  sleeper.append({{"generation", 3}, {"step", 2}, {"begins", true}});  // it would void all
  EXPECT_EQ(lines_of(path), before);
  controller.append({{"kind", "end"}});  // lines without a generation always count
  successor.append({{"generation", 5}, {"step", 11}});
  EXPECT_EQ(lines_of(path).size(), 4u);
}

TEST(Diary, ARunHasComeAsFarAsTheFartherOfItsTwo) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  EXPECT_EQ(end_of_diaries(run).generation, 0);
  EXPECT_EQ(end_of_diaries(run).seconds, 0);
  Diary events(run.events_file()), metrics(run.metrics_file());
  events.append({{"seconds", 12.5}, {"generation", 5}});
  events.append({{"seconds", 3}, {"generation", "x"}});
  EXPECT_EQ(end_of_diaries(run).generation, 5);
  EXPECT_EQ(end_of_diaries(run).seconds, 12.5);
  // Its workers went on while the controller was away.
  metrics.append({{"seconds", 14}, {"generation", 4}});
  EXPECT_EQ(end_of_diaries(run).generation, 5);
  EXPECT_EQ(end_of_diaries(run).seconds, 14);
}

TEST(Diary, ADamagedLineCostsThatLine) {
  const TempFolder temp;
  const fs::path path = temp.path() / "metrics.jsonl";
  write_file_atomic(path,
                    "{\"step\":1}\n{\"step\":2,!!\n\xff\xfe\n{\"step\":\"3\"}\n{\"step\":4}\n");
  JsonLinesRead read = for_each_diary_line(path, [](json&) {});
  EXPECT_EQ(read.bad, 2);
  EXPECT_EQ(lines_of(path).size(), 3u);
}

TEST(Diary, KeepsWhatCannotBeWrittenNowAndWritesItInOrderLater) {
  const TempFolder temp;
  const fs::path path = temp.path() / "gone" / "events.jsonl";  // its folder is missing
  Diary diary(path);
  for (int64_t step = 0; step < 5; ++step) diary.append({{"step", step}});
  diary.sync();
  const std::string trouble = diary.take_trouble();
  EXPECT_NE(trouble.find(path.string()), std::string::npos) << trouble;
  EXPECT_NE(trouble.find("training goes on"), std::string::npos) << trouble;
  EXPECT_EQ(diary.take_trouble(), "");  // told once
  fs::create_directories(path.parent_path());
  diary.append({{"step", 5}});
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_NE(diary.take_trouble().find("can be written again"), std::string::npos);
}

TEST(Diary, AFullDiskMakesLinesWait) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  Diary diary("/dev/full");
  diary.append({{"step", 1}});
  EXPECT_NE(diary.take_trouble().find("No space left"), std::string::npos);
}

// The slow, obvious twin: what one writer at a time, who truncates, would have left.
TEST(Diary, EqualsAFileThatIsTruncatedAtEachReturn) {
  Rng rng(7);
  for (int round = 0; round < 300; ++round) {
    const TempFolder temp;
    const fs::path path = temp.path() / "metrics.jsonl";
    Diary diary(path);
    std::vector<int64_t> twin;
    int64_t generation = 1, step = 0;
    for (int i = 0; i < 40; ++i) {
      const uint32_t what = rng.below(10);
      if (what == 0) {  // all were lost
        step = rng.below(static_cast<uint32_t>(step + 1));
        ++generation;
        diary.append({{"begins", true}, {"step", step}, {"generation", generation}});
        std::erase_if(twin, [&](int64_t s) { return s > step; });
      } else if (what == 1 && generation > 1) {  // a sleeper
        diary.append({{"step", rng.below(50)}, {"generation", generation - 1}});
      } else {
        diary.append({{"step", ++step}, {"generation", generation}});
        twin.push_back(step);
      }
    }
    ASSERT_EQ(steps_of(path), twin) << round;
  }
}

}  // namespace
}  // namespace ductile::run
