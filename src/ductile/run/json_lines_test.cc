#include "ductile/run/json_lines.h"

#include <cmath>
#include <csignal>
#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck/gtest.h>
#include <sys/resource.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"

namespace ductile::run {
namespace {

using nlohmann::json;

void write_text(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(JsonLines, appends_across_openings) {
  const TempFolder temp;
  const fs::path path = temp.path() / "x.jsonl";
  JsonLines(path).append({{"step", 1}});
  JsonLines(path).append({{"step", 2}});
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(read_json_lines(path).size(), 2u);
}

// Whatever prefix of the file a crash leaves, opening it keeps exactly the whole lines.
RC_GTEST_PROP(JsonLines, repairs_any_torn_end, (std::vector<std::string> texts)) {
  const TempFolder temp;
  const fs::path path = temp.path() / "x.jsonl";
  std::vector<std::string> lines;
  std::string whole;
  for (size_t i = 0; i < texts.size(); ++i) {
    lines.push_back(dump_json(json{{"step", i}, {"text", texts[i]}}));
    whole += lines.back() + "\n";
  }
  const size_t cut = *rc::gen::inRange<size_t>(0, whole.size() + 1);
  write_text(path, whole.substr(0, cut));
  JsonLines file(path);
  file.append({{"step", -1}});
  std::string expected;
  size_t used = 0;
  for (const std::string& line : lines) {
    if (used + line.size() > cut) break;  // a line that only lacks its newline is whole
    expected += line + "\n";
    used += line.size() + 1;
  }
  RC_ASSERT(read_file(path) == expected + "{\"step\":-1}\n");
}

TEST(JsonLines, cuts_off_the_zeros_that_a_power_failure_leaves) {
  const TempFolder temp;
  const fs::path path = temp.path() / "x.jsonl";
  write_text(path, "{\"a\":1}\n" + std::string(9000, '\0'));
  JsonLines file(path);
  EXPECT_EQ(read_file(path), "{\"a\":1}\n");
}

TEST(JsonLines, finds_the_last_line_however_long) {
  const TempFolder temp;
  const fs::path path = temp.path() / "x.jsonl";
  const std::string line = dump_json(json{{"text", std::string(20000, 'x')}}) + "\n";
  write_text(path, line + line + line.substr(0, 15000));
  JsonLines file(path);
  EXPECT_EQ(read_file(path), line + line);
}

TEST(JsonLines, names_the_file_and_the_reason_when_the_disk_is_full) {
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
TEST(JsonLines, leaves_no_half_line_when_the_disk_fills_up_inside_one) {
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
  EXPECT_EQ(read_file(path), "{\"step\":1}\n");
  file.append({{"step", 3}});
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"step\":3}\n");
}

TEST(JsonNumber, carries_what_json_has_no_word_for) {
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

TEST(JsonLine, replaces_text_that_is_not_utf8) {
  EXPECT_EQ(dump_json(json{{"a", "x\xff"}}), "{\"a\":\"x\xEF\xBF\xBD\"}");
}

TEST(ReadJsonLines, tolerates_a_torn_end_only) {
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
