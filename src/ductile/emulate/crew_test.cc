#include "ductile/emulate/crew.h"

#include <string>

#include <gtest/gtest.h>

#include "ductile/base/interruption.h"
#include "ductile/base/testing.h"

namespace ductile::emulate {
namespace {

TEST(Crew, SimulatedSleepsEndInTheOrderOfTheirTimes) {
  Crew crew(Crew::Clock::simulated, 1);
  std::string log;
  const auto note = [&](char who) { log += fmt::format("{}{} ", who, crew.now()); };
  crew.add([&](Crew::Member& self) {
    self.sleep(2), note('a');
    self.sleep(3), note('a');
  });
  crew.add([&](Crew::Member& self) {
    self.sleep(1), note('b');
    self.sleep(1), note('b');  // at the same instant as a, which was added first
    self.sleep(1), note('b');
  });
  EXPECT_TRUE(crew.run());
  EXPECT_EQ(log, "b1 a2 b2 b3 a5 ");
  EXPECT_EQ(crew.lateness().worst, 0);
}

TEST(Crew, AWaitEndsWhenAnotherHasMadeItsConditionTrue) {
  for (const Crew::Clock clock : {Crew::Clock::simulated, Crew::Clock::real}) {
    Crew crew(clock, 0.01);
    int given = 0;
    std::string log;
    crew.add([&](Crew::Member& self) {
      for (int i = 1; i <= 3; ++i) {
        self.wait([&] { return given >= i; });
        log += std::to_string(i);
      }
    });
    crew.add([&](Crew::Member& self) {
      for (given = 0; given < 3; ++given) self.sleep(1);
    });
    EXPECT_TRUE(crew.run());
    EXPECT_EQ(log, "123");
    EXPECT_EQ(given, 3);
  }
}

TEST(Crew, ASleepCountsFromTheOneBeforeOrFromTheWait) {
  Crew crew(Crew::Clock::simulated, 1);
  bool is_there = false;
  double end = 0;
  crew.add([&](Crew::Member& self) {
    self.sleep(1);
    self.wait([&] { return is_there; });
    self.sleep(1);
    end = crew.now();
  });
  crew.add([&](Crew::Member& self) {
    self.sleep(5);
    is_there = true;
  });
  EXPECT_TRUE(crew.run());
  EXPECT_EQ(end, 6);
}

// By the real clock 64 sleeps in a row are late once and not 64 times: what is asserted is a least
// time, and that lateness is counted.
TEST(Crew, RealSleepsNeverEndEarly) {
  Crew crew(Crew::Clock::real, 0.001);
  double end = 0;
  for (int i = 0; i < 8; ++i) {
    crew.add([&](Crew::Member& self) {
      for (int k = 0; k < 8; ++k) self.sleep(1);
      end = std::max(end, crew.now());
    });
  }
  EXPECT_TRUE(crew.run());
  EXPECT_GE(end, 8);
  EXPECT_EQ(crew.lateness().sleeps, 64);
  EXPECT_GE(crew.lateness().worst, crew.lateness().mean);
}

TEST(Crew, ThoseThatWaitForOneAnotherAreEnded) {
  for (const Crew::Clock clock : {Crew::Clock::simulated, Crew::Clock::real}) {
    Crew crew(clock, 0.001);
    bool first = false, second = false, is_past = false;
    crew.add([&](Crew::Member& self) {
      self.wait([&] { return second; });
      first = is_past = true;
    });
    crew.add([&](Crew::Member& self) {
      self.sleep(1);
      self.wait([&] { return first; });
      second = is_past = true;
    });
    EXPECT_FALSE(crew.run());
    EXPECT_FALSE(is_past);
  }
}

TEST(Crew, AnErrorOfABodyEndsAllAndIsThrown) {
  for (const Crew::Clock clock : {Crew::Clock::simulated, Crew::Clock::real}) {
    Crew crew(clock, 1);
    crew.add([](Crew::Member& self) { self.wait([] { return false; }); });
    crew.add([](Crew::Member& self) { self.sleep(1e6); });
    crew.add([](Crew::Member&) { fail(ErrorCode::unavailable, "no more"); });
    EXPECT_EQ(testing::text_of([&] { crew.run(); }, ErrorCode::unavailable), "no more");
  }
}

TEST(Crew, WhoeverStartedItCanEndIt) {
  Crew crew(Crew::Clock::real, 1);
  crew.add([](Crew::Member& self) { self.sleep(1e6); });
  const Interruption interruption([] { throw std::string("enough"); });
  EXPECT_THROW(crew.run(), std::string);
}

}  // namespace
}  // namespace ductile::emulate
