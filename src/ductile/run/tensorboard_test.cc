#include "ductile/run/tensorboard.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"

namespace ductile::run {
namespace {

uint32_t crc_of(std::string_view text) {
  return crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

// Bit by bit, as the polynomial is defined.
uint32_t crc_slowly(std::string_view text) {
  uint32_t crc = ~0u;
  for (const char c : text) {
    crc ^= static_cast<uint8_t>(c);
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<uint8_t>(c));
  return out;
}

// RFC 3720, appendix B.4.
TEST(Crc32c, GivesThePublishedVectors) {
  EXPECT_EQ(crc_of(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc_of(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string rising(32, '\0');
  std::iota(rising.begin(), rising.end(), '\0');
  EXPECT_EQ(crc_of(rising), 0x46DD794Eu);
  EXPECT_EQ(crc_of("123456789"), 0xE3069283u);
  EXPECT_EQ(crc_of(""), 0u);
}

RC_GTEST_PROP(Crc32c, EqualsTheBitwiseOne, (std::string text)) {
  RC_ASSERT(crc_of(text) == crc_slowly(text));
}

// The record of Event{wall_time: 1.5, step: 3, summary{value{tag: "a", simple_value: 0.5}}}.
// Length 23, its checksum, the message, its checksum; the message written out by hand.
TEST(TensorBoardWriter, WritesTheGoldenRecord) {
  const TempFolder temp;
  TensorBoardWriter writer(temp.path());
  const size_t head = fs::file_size(writer.path());
  writer.scalar("a", 3, 0.5, 1.5);
  const std::string bytes = read_file(writer.path()).substr(head);
  const std::string message =
      "09000000000000f83f"
      "1003"
      "2a0a"
      "0a08"
      "0a0161"
      "150000003f";
  ASSERT_EQ(bytes.size(), 8u + 4 + 23 + 4);
  EXPECT_EQ(hex(bytes.substr(0, 8)), "1700000000000000");
  EXPECT_EQ(hex(bytes.substr(12, 23)), message);
  const auto mask = [](uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; };
  uint32_t stored = 0;
  std::memcpy(&stored, bytes.data() + 8, 4);
  EXPECT_EQ(stored, mask(crc_slowly(bytes.substr(0, 8))));
  std::memcpy(&stored, bytes.data() + 35, 4);
  EXPECT_EQ(stored, mask(crc_slowly(bytes.substr(12, 23))));
}

TEST(TensorBoardWriter, IsReadByAnIndependentReader) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  const TempFolder temp;
  TensorBoardWriter first(temp.path());
  TensorBoardWriter writer(temp.path(), 40);
  EXPECT_NE(first.path(), writer.path());
  const std::vector<Scalar> values = {
      {"train/loss", 0.1}, {"nan", std::nan("")}, {"inf", -HUGE_VAL}, {"h\u00e9", 1e30}};
  writer.scalars(int64_t{1} << 40, 1700000000.25, values);
  writer.text("job", 7, "# *job*", 2);
  writer.scalars(0, 3, {});

  const std::string command = "python3 " DUCTILE_SOURCE_DIR
                              "/src/ductile/run/testing/read_events.py '" +
                              writer.path().string() + "'";
  FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  ASSERT_EQ(::pclose(pipe), 0) << output;
  std::vector<nlohmann::json> events;
  for (size_t at = 0; at < output.size();) {
    const size_t end = output.find('\n', at);
    events.push_back(nlohmann::json::parse(output.substr(at, end - at)));
    at = end + 1;
  }
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["version"], "brain.Event:2");
  EXPECT_EQ(events[1]["session"], 1);
  EXPECT_EQ(events[1]["step"], 41);
  EXPECT_EQ(events[2]["step"], int64_t{1} << 40);
  EXPECT_EQ(events[2]["wall"], 1700000000.25);
  EXPECT_EQ(events[2]["values"]["train/loss"], "0.10000000149011612");
  EXPECT_EQ(events[2]["values"]["nan"], "nan");
  EXPECT_EQ(events[2]["values"]["inf"], "-inf");
  EXPECT_TRUE(events[2]["values"].contains("h\u00e9"));
  EXPECT_EQ(events[3]["texts"]["job"], "# *job*");
  EXPECT_FALSE(events[4].contains("step"));
}

TEST(TensorBoardWriter, NamesTheFolderItCannotWriteTo) {
  const TempFolder temp;
  write_file_atomic(temp.path() / "file", "x");
  try {
    TensorBoardWriter writer(temp.path() / "file");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("events.out.tfevents"), std::string::npos);
  }
}

// Of a disk that is not mounted the mount point alone is there.
TEST(TensorBoardWriter, MakesItsFolderInARunAndNoRun) {
  const TempFolder temp;
  const fs::path run = temp.path() / "runs" / "1-job";
  EXPECT_THROW(TensorBoardWriter{run / "tensorboard"}, Error);
  EXPECT_TRUE(fs::is_empty(temp.path()));
  fs::create_directories(run);
  const TensorBoardWriter writer(run / "tensorboard");
  EXPECT_FALSE(fs::is_empty(run / "tensorboard"));
}

}  // namespace
}  // namespace ductile::run
