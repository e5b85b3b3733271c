#include "ductile/page/numbers.h"

#include <cmath>
#include <functional>
#include <map>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"

namespace ductile::page {
namespace {

// The cases that text.js is held to as well (page_test.mjs).
TEST(Numbers, ReadAsPeopleWrite) {
  const std::map<std::string, std::function<std::string(double)>> functions = {
      {"with_thousands", with_thousands},
      {"as_number", as_number},
      {"as_percent", as_percent},
      {"as_duration", as_duration},
      {"as_short_duration", as_short_duration}};
  const auto cases =
      nlohmann::json::parse(read_file(DUCTILE_SOURCE_DIR "/src/ductile/page/numbers_cases.json"));
  ASSERT_EQ(cases.size(), functions.size());
  for (const auto& [name, list] : cases.items()) {
    for (const auto& one : list) {
      const double value =
          one[0].is_string() ? std::stod(one[0].get<std::string>()) : one[0].get<double>();
      EXPECT_EQ(functions.at(name)(value), one[1].get<std::string>()) << name << " of " << value;
    }
  }
}

TEST(Numbers, ThatOnlyTerminalsAndTilesShow) {
  EXPECT_EQ(as_clock(41.2), "0:42");
  EXPECT_EQ(as_clock(3723), "1:02:03");
  EXPECT_EQ(as_clock(90061), "1d 01:01");
  EXPECT_EQ(as_clock(std::nan("")), "--:--");
  EXPECT_EQ(as_bytes(1536), "1.5 KiB");
  EXPECT_EQ(as_bytes(2048), "2 KiB");
  EXPECT_EQ(as_bytes(12), "12 B");
  EXPECT_EQ(as_bytes(24.6e9), "22.9 GiB");
  EXPECT_EQ(as_bytes(std::nan("")), "unknown");
  EXPECT_EQ(as_energy(900), "900 J");
  EXPECT_EQ(as_energy(12345), "12.3 kJ");
  EXPECT_EQ(as_setting(32), "32");
  EXPECT_EQ(as_setting(2'000'000), "2000000");
  EXPECT_EQ(as_setting(0.99991), "0.99991");
  EXPECT_EQ(as_setting(0.0001234567), "0.000123457");
  EXPECT_EQ(as_setting(std::nan("")), "nan");
  EXPECT_EQ(plural(1, "sample"), "1 sample");
  EXPECT_EQ(plural(12800, "sample"), "12,800 samples");
  EXPECT_EQ(local_time(-1), "unknown time");
  EXPECT_EQ(local_time(1.7e9).size(), 19u);
}

// Three digits in one unit: never more than six characters of number below a thousand days, and
// within half a per cent of the value.
RC_GTEST_PROP(Numbers, ShortDurationsAreShortAndTrue, ()) {
  const double exponent = *rc::gen::inRange(-6000, 7500) / 1000.0;
  const double value = std::pow(10, exponent);
  const std::string text = as_short_duration(value);
  const size_t space = text.find(' ');
  RC_ASSERT(space != std::string::npos && space <= 4);
  const std::map<std::string, double> units = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1},
                                               {"min", 60},  {"h", 3600},  {"d", 86400}};
  const double read = std::stod(text) * units.at(text.substr(space + 1));
  RC_ASSERT(std::abs(read - value) <= 0.0051 * value);
}

}  // namespace
}  // namespace ductile::page
