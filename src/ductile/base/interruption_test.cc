#include "ductile/base/interruption.h"

#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace ductile {
namespace {

TEST(Interruption, NobodyIsAskedWhereNobodyWants) { EXPECT_NO_THROW(ask_whether_wanted()); }

TEST(Interruption, EndsALoopByWhatItThrows) {
  const Interruption ends([] { throw std::runtime_error("no longer"); });
  EXPECT_THROW(
      {
        for (;;) ask_whether_wanted();
      },
      std::runtime_error);
}

TEST(Interruption, InnerOneCountsWhileItLives) {
  int outer = 0, inner = 0;
  const Interruption first([&] { ++outer; });
  {
    const Interruption second([&] { ++inner; });
    while (inner == 0) ask_whether_wanted();
    EXPECT_EQ(outer, 0);
  }
  const int before = inner;
  while (outer == 0) ask_whether_wanted();
  EXPECT_EQ(inner, before);
}

TEST(Interruption, OtherThreadsAreNotAsked) {
  int asked = 0;
  const Interruption mine([&] { ++asked; });
  std::thread([&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(120);
    while (std::chrono::steady_clock::now() < end) ask_whether_wanted();
  }).join();
  EXPECT_EQ(asked, 0);
}

}  // namespace
}  // namespace ductile
