#include "ductile/run/json_lines.h"

#include <cmath>
#include <csignal>
#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/testing.h"

namespace ductile::run {
namespace {

using nlohmann::json;

void write_text(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(JsonLines, AppendsAcrossOpenings) {
  const TempFolder temp;
  const fs::path path = temp.path() / "x.jsonl";
  JsonLines(path).append({{"step", 1}});
  JsonLines(path).append({{"step", 2}});
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(read_json_lines(path).size(), 2u);
}

std::vector<json> readable(const fs::path& path) {
  std::vector<json> lines;
  for_each_json_line(path, [&](json& line) { lines.push_back(line); });
  return lines;
}

// Whatever prefix of the file a crash leaves: all whole lines count, and so does the next one.
RC_GTEST_PROP(JsonLines, GoesOnAfterAnyTornEnd, (std::vector<std::string> texts)) {
  const TempFolder temp;
  const fs::path path = temp.path() / "x.jsonl";
  std::vector<json> expected;
  std::string whole;
  std::vector<size_t> ends;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string line = dump_json(json{{"step", i}, {"text", texts[i]}});
    whole += line + "\n";
    ends.push_back(whole.size() - 1);  // a line that only lacks its newline is whole
    expected.push_back(json::parse(line));
  }
  const size_t cut = *rc::gen::inRange<size_t>(0, whole.size() + 1);
  while (!ends.empty() && ends.back() > cut) {
    ends.pop_back();
    expected.pop_back();
  }
  write_text(path, whole.substr(0, cut));
  JsonLines file(path);
  RC_ASSERT(read_file(path) == whole.substr(0, cut));  // opening changes nothing
  file.append({{"step", -1}});
  expected.push_back({{"step", -1}});
  RC_ASSERT(readable(path) == expected);
  RC_ASSERT(read_file(path).substr(0, cut) == whole.substr(0, cut));
}

TEST(JsonLines, LeavesTheZerosThatAPowerFailureLeavesOnALineOfTheirOwn) {
  const TempFolder temp;
  const fs::path path = temp.path() / "x.jsonl";
  write_text(path, "{\"a\":1}\n" + std::string(9000, '\0'));
  JsonLines(path).append({{"a", 2}});
  EXPECT_EQ(readable(path), (std::vector<json>{{{"a", 1}}, {{"a", 2}}}));
}

// One that was stopped with the file open, and another that has gone on since.
TEST(JsonLines, NeverCutsOffWhatAnotherHasAppended) {
  const TempFolder temp;
  const fs::path path = temp.path() / "x.jsonl";
  write_text(path, "{\"a\":1}\n{\"a\":");
  JsonLines sleeper(path), other(path);
  other.append({{"a", 2}});
  other.append({{"a", 3}});
  sleeper.append({{"a", 4}});
  other.append({{"a", 5}});
  EXPECT_EQ(readable(path).size(), 5u);
}

TEST(JsonLines, EndsAHalfLineThatAnotherLeftWhileTheFileWasOpen) {
  const TempFolder temp;
  const fs::path path = temp.path() / "x.jsonl";
  JsonLines file(path);
  file.append({{"a", 1}});
  std::ofstream(path, std::ios::binary | std::ios::app) << "{\"a\":";
  file.append({{"a", 2}});
  file.append({{"a", 3}});
  EXPECT_EQ(read_file(path), "{\"a\":1}\n{\"a\":\n{\"a\":2}\n{\"a\":3}\n");
}

TEST(JsonLines, NamesTheFileAndTheReasonWhenTheDiskIsFull) {
  JsonLines file("/dev/full");
  try {
    file.append({{"step", 1}});
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unavailable);
    EXPECT_STREQ(e.what(), "/dev/full: write: No space left on device");
  }
}

// A file-size limit makes a short write, as a disk does that has room for a part of the line.
TEST(JsonLines, EndsAHalfLineWhenTheDiskFillsUpInsideOne) {
  const TempFolder temp;
  const fs::path path = temp.path() / "x.jsonl";
  JsonLines file(path);
  file.append({{"step", 1}});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_THROW(file.append({{"step", 2}, {"text", std::string(100, 'x')}}), Error);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old);
  file.append({{"step", 3}});
  EXPECT_EQ(readable(path), (std::vector<json>{{{"step", 1}}, {{"step", 3}}}));
}

TEST(JsonNumber, CarriesWhatJsonHasNoWordFor) {
  double value = 0;
  for (const double x : {1.5, -0.0, HUGE_VAL, -HUGE_VAL}) {
    ASSERT_TRUE(number_from_json(json::parse(json_number(x).dump()), value));
    EXPECT_EQ(value, x);
  }
  ASSERT_TRUE(number_from_json(json_number(std::nan("")), value));
  EXPECT_TRUE(std::isnan(value));
  EXPECT_FALSE(number_from_json("nought", value));
  EXPECT_FALSE(number_from_json(nullptr, value));
}

TEST(JsonLine, ReplacesTextThatIsNotUtf8) {
  EXPECT_EQ(dump_json(json{{"a", "x\xff"}}), "{\"a\":\"x\xEF\xBF\xBD\"}");
}

// Against all lines, read from the front.
TEST(JsonLines, TheLastOnesAreTheNewestFirst) {
  const TempFolder folder;
  const fs::path path = folder.path() / "lines.jsonl";
  for_each_last_json_line(path, 100, [](nlohmann::json&) -> bool {
    ADD_FAILURE() << "there is no file";
    return true;
  });
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += i % 7 == 3   ? "damaged {\n"
            : i % 5 == 2 ? "\n"
                         : R"({"i": )" + std::to_string(i) + "}\n";
    write_file_atomic(path, i % 3 == 0 ? text + R"({"torn": )" : text);
    std::vector<nlohmann::json> all;
    for_each_json_line(path, [&](nlohmann::json& line) { all.push_back(line); });
    for (const int64_t bytes :
         {int64_t{0}, int64_t{1}, int64_t{30}, int64_t{100}, int64_t{1} << 20}) {
      std::vector<nlohmann::json> last;
      for_each_last_json_line(path, bytes, [&](nlohmann::json& line) {
        last.push_back(line);
        return false;
      });
      ASSERT_LE(last.size(), all.size());
      if (bytes > static_cast<int64_t>(text.size()) + 20) {
        ASSERT_EQ(last.size(), all.size());
      }
      for (size_t k = 0; k < last.size(); ++k) ASSERT_EQ(last[k], all[all.size() - 1 - k]);
    }
  }
  int visited = 0;
  for_each_last_json_line(path, 1 << 20, [&](nlohmann::json&) { return ++visited == 2; });
  EXPECT_EQ(visited, 2);
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(ductile::testing::code_of(
                [&] { for_each_last_json_line(path, 100, [](nlohmann::json&) { return true; }); }),
            ErrorCode::invalid_argument)
      << "nobody writes into it, so reading would wait for ever";
}

TEST(ReadJsonLines, ToleratesATornEndOnly) {
  const TempFolder temp;
  const fs::path path = temp.path() / "x.jsonl";
  write_text(path, "{\"a\":1}\n\n{\"a\":2}\n{\"a\"");
  EXPECT_EQ(read_json_lines(path).size(), 2u);
  write_text(path, "{\"a\":1}\nnonsense\n{\"a\":2}\n");
  try {
    read_json_lines(path);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::data_loss);
    EXPECT_NE(std::string(e.what()).find("x.jsonl:2: not a JSON object: nonsense"),
              std::string::npos);
  }
  int seen = 0;
  const JsonLinesRead read = for_each_json_line(path, [&](json&) { ++seen; });
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(read.lines, 2);
  EXPECT_EQ(read.bad, 1);
  EXPECT_FALSE(read.torn);
  write_text(path, "{\"a\":1}\n{\"a\"");
  const JsonLinesRead torn = for_each_json_line(path, [](json&) {});
  EXPECT_TRUE(torn.torn);
  EXPECT_EQ(torn.bad, 0);
  EXPECT_EQ(for_each_json_line(temp.path() / "none", [](json&) {}).lines, 0);
  EXPECT_THROW(read_json_lines(temp.path() / "none"), Error);
}

}  // namespace
}  // namespace ductile::run
