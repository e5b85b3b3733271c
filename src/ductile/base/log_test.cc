#include "ductile/base/log.h"

#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace ductile {
namespace {

TEST(Log, LinesOfSeveralThreadsAreWhole) {
  ::testing::internal::CaptureStderr();
  {
    std::vector<std::jthread> threads;
    for (char c : {'a', 'b', 'c'}) {
      threads.emplace_back([c] {
        for (int i = 0; i < 200; ++i) log_line(std::string(120, c));
      });
    }
  }
  std::istringstream lines(::testing::internal::GetCapturedStderr());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    ASSERT_EQ(line, std::string(120, line.at(0)));
  EXPECT_EQ(count, 600);
}

}  // namespace
}  // namespace ductile
