#include "ductile/run/meters.h"

#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"

namespace ductile::run {
namespace {

// A powercap folder as Linux shows it.
class Powercap : public ::testing::Test {
 protected:
  void zone(const std::string& folder, const std::string& name, uint64_t microjoules) {
    fs::create_directories(temp_.path() / folder);
    std::ofstream(temp_.path() / folder / "name") << name << "\n";
    std::ofstream(temp_.path() / folder / "max_energy_range_uj") << 10'000'000 << "\n";
    set(folder, microjoules);
  }
  void set(const std::string& folder, uint64_t microjoules) {
    std::ofstream(temp_.path() / folder / "energy_uj") << microjoules << "\n";
  }

  TempFolder temp_;
};

TEST_F(Powercap, SumsPackagesAndMemoryAndNothingTwice) {
  zone("intel-rapl:0", "package-0", 1'000'000);
  zone("intel-rapl:1", "package-1", 0);
  zone("intel-rapl:0:0", "core", 0);
  zone("intel-rapl:0:1", "dram", 500'000);
  zone("intel-rapl:2", "psys", 0);
  zone("intel-rapl-mmio:0", "package-0", 0);
  EnergyMeter meter(temp_.path());
  EXPECT_EQ(meter.joules(), 0.0);
  set("intel-rapl:0", 3'000'000);
  set("intel-rapl:1", 1'000'000);
  set("intel-rapl:0:0", 900'000);
  set("intel-rapl:0:1", 1'000'000);
  set("intel-rapl:2", 9'000'000);
  set("intel-rapl-mmio:0", 2'000'000);
  EXPECT_DOUBLE_EQ(meter.joules().value(), 3.5);
}

TEST_F(Powercap, FollowsACounterThatWrapsRound) {
  zone("intel-rapl:0", "package-0", 9'000'000);
  EnergyMeter meter(temp_.path());
  set("intel-rapl:0", 1'000'000);
  EXPECT_DOUBLE_EQ(meter.joules().value(), 2.0);
  set("intel-rapl:0", 4'000'000);
  EXPECT_DOUBLE_EQ(meter.joules().value(), 5.0);
}

TEST_F(Powercap, SaysUnknownRatherThanPartOfTheEnergy) {
  EXPECT_FALSE(EnergyMeter(temp_.path() / "none").joules().has_value());
  zone("intel-rapl:0", "package-0", 0);
  zone("intel-rapl:1", "package-1", 0);
  EnergyMeter meter(temp_.path());
  EXPECT_TRUE(meter.joules().has_value());
  fs::remove(temp_.path() / "intel-rapl:1" / "energy_uj");
  EXPECT_FALSE(meter.joules().has_value());
  EXPECT_FALSE(EnergyMeter(temp_.path()).joules().has_value());
}

TEST_F(Powercap, SaysWhyTheEnergyIsNotKnown) {
  EXPECT_EQ(EnergyMeter(temp_.path() / "none").state(),
            "not measured: this machine shows no counters");
  zone("intel-rapl:0", "package-0", 0);
  EnergyMeter meter(temp_.path());
  EXPECT_EQ(meter.state(), "measured");
  fs::remove(temp_.path() / "intel-rapl:0" / "energy_uj");
  meter.joules();
  const std::string text = "not measured: some of this machine's counters cannot be read";
  EXPECT_EQ(meter.state(), text);
  EXPECT_EQ(EnergyMeter(temp_.path()).state(), text);
}

TEST_F(Powercap, CostIsCarriedOverAResume) {
  zone("intel-rapl:0", "package-0", 0);
  const Cost before{.wall_seconds = 100,
                    .core_seconds = 190,
                    .energy_joules = 50,
                    .peak_rss_bytes = int64_t{1} << 50};
  CostMeter meter(cost_from_json(nlohmann::json::parse(to_json(before).dump())), temp_.path());
  set("intel-rapl:0", 2'000'000);
  const Cost now = meter.read();
  EXPECT_GE(now.wall_seconds, 100);
  EXPECT_GE(now.core_seconds, 190);
  EXPECT_DOUBLE_EQ(now.energy_joules.value(), 52);
  EXPECT_EQ(now.peak_rss_bytes, int64_t{1} << 50);

  Cost unknown = before;
  unknown.energy_joules.reset();
  EXPECT_FALSE(CostMeter(unknown, temp_.path()).read().energy_joules.has_value());
  EXPECT_TRUE(CostMeter({}, temp_.path()).read().energy_joules.has_value());
}

TEST(CostMeter, SeesThisProcessWork) {
  CostMeter meter;
  const Cost before = meter.read();
  const std::vector<char> memory(size_t{64} << 20, 1);
  volatile double x = 1;
  for (int i = 0; i < 20'000'000; ++i) x = x * 1.0000001;
  const Cost after = meter.read();
  EXPECT_GT(after.core_seconds, before.core_seconds);
  EXPECT_GT(after.wall_seconds, before.wall_seconds);
  EXPECT_GE(after.peak_rss_bytes, int64_t{64} << 20);
  EXPECT_EQ(memory.back(), 1);
}

TEST(Cost, RefusesJsonThatIsNone) {
  EXPECT_THROW(cost_from_json("x"), Error);
  EXPECT_THROW(cost_from_json({{"wall_seconds", "long"}}), Error);
  EXPECT_EQ(cost_from_json(nlohmann::json::object()), Cost{});
}

}  // namespace
}  // namespace ductile::run
