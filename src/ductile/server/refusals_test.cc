#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/server/refusals_impl.h"

namespace ductile::server {
namespace {

using namespace std::chrono_literals;

TEST(Refusals, AFloodOfADayIsAFewLines) {
  Refusals refusals;
  size_t lines = 0;
  int64_t told = 0;
  net::Deadline now{};
  const net::Deadline end = now + 24h;
  int64_t knocks = 0;
  for (; now < end; now += 500ms) {
    const std::vector<net::Refusal> ten(10, {"10.0.0.1:99", "a stranger, or another secret"});
    knocks += 10;
    for (const std::string& line : refusals.take(ten, now)) {
      ++lines;
      told += line.find(" more refused") == std::string::npos ? 1 : std::stoll(line);
    }
  }
  for (const std::string& line : refusals.rest()) told += std::stoll(line);
  EXPECT_LT(lines, 60u);
  EXPECT_EQ(told, knocks) << "each is counted";
}

TEST(Refusals, TheFirstAreToldAtOnceAlsoAfterAQuietTime) {
  Refusals refusals;
  net::Deadline now{};
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(refusals.take({{"a", "b"}}, now), std::vector<std::string>{"a: b"});
    EXPECT_TRUE(refusals.take({{"a", "c"}}, now).empty());
    EXPECT_TRUE(refusals.take({}, now + 59s).empty());
    EXPECT_EQ(refusals.take({}, now + 60s),
              std::vector<std::string>{"1 more refused, the last: a: c"});
    EXPECT_TRUE(refusals.take({}, now + 61s).empty());
    now += 2h;
  }
}

}  // namespace
}  // namespace ductile::server
