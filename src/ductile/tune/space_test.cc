#include "ductile/tune/space.h"

#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/base/testing.h"

namespace ductile::tune {
namespace {

using ductile::testing::code_of;

constexpr const char* kText = R"(
[rate]
low = 1e-5
high = 1.0
scale = "log"
[momentum]
low = 0.0
high = 0.999
scale = "log_to_one"
[layers]
kind = "integer"
low = 1
high = 8
[optimizer]
choices = ["sgd", "adam", "lamb"]
[batch]
choices = [4, 16, 64, 256]
[fixed]
low = 3
high = 3
)";

Space some() { return Space::from_toml(kText, "space.toml"); }

TEST(SpaceTest, ReadsEveryKindFromTomlAndWritesTheSameAsJson) {
  const Space space = some();
  ASSERT_EQ(space.size(), 6u);
  EXPECT_EQ(space.dimensions()[0].name, "batch");  // in alphabetical order
  EXPECT_EQ(space.dimensions()[2].kind, Kind::integer);
  EXPECT_EQ(space.dimensions()[3].scale, Scale::log_to_one);
  EXPECT_EQ(Space::from_json(space.to_json(), "again").to_json(), space.to_json());
  EXPECT_EQ(space.num_features(), 4u + 1 + 1 + 3 + 1);  // "fixed" has none
  EXPECT_EQ(space.count(), 0);
}

TEST(SpaceTest, AscendingCoordinatesGiveAscendingValuesFromEndToEnd) {
  const Space space = some();
  for (size_t d = 0; d < space.size(); ++d) {
    const Dimension& dim = space.dimensions()[d];
    Point point(space.size(), 0.5);
    double before = -1;
    for (int i = 0; i <= 1000; ++i) {
      point[d] = i / 1000.0;
      const Setting setting = space.at(point);
      ASSERT_TRUE(space.contains(setting)) << dim.name << " " << setting[d];
      EXPECT_GE(setting[d], before);
      before = setting[d];
    }
    if (dim.kind == Kind::choice) {
      EXPECT_EQ(before, static_cast<double>(dim.choices.size() - 1));
    } else {
      EXPECT_EQ(before, dim.high);
      point[d] = 0;
      EXPECT_NEAR(space.at(point)[d], dim.low, 1e-12);
    }
  }
}

TEST(SpaceTest, SettingsComeBackFromTheirPointsAndTheirValues) {
  const Space space = some();
  Rng rng(1);
  for (int i = 0; i < 1000; ++i) {
    Point point(space.size());
    for (double& u : point) u = rng.uniform(-0.1, 1.1);  // outside is moved to the border
    const Setting setting = space.at(point), back = space.at(space.to_point(setting));
    for (size_t d = 0; d < setting.size(); ++d)
      EXPECT_NEAR(back[d], setting[d], 1e-9 * std::abs(setting[d])) << d;
    EXPECT_EQ(space.setting_from(space.values(setting), "values"), setting);
  }
}

TEST(SpaceTest, LogScalesGiveEqualFactorsEqualParts) {
  const Space space = some();
  Point point(space.size(), 0.5);
  const Setting middle = space.at(point);
  EXPECT_NEAR(middle[5], std::sqrt(1e-5), 1e-9);       // rate
  EXPECT_NEAR(1 - middle[3], std::sqrt(0.001), 1e-9);  // momentum
  // Whole numbers and choices have equal parts.
  std::vector<int> layers(9), batches(4);
  for (int i = 0; i < 8000; ++i) {
    point[0] = point[2] = (i + 0.5) / 8000;
    ++layers[static_cast<size_t>(space.at(point)[2])];
    ++batches[static_cast<size_t>(space.at(point)[0])];
  }
  for (int n = 1; n <= 8; ++n) EXPECT_NEAR(layers[static_cast<size_t>(n)], 1000, 1);
  for (const int n : batches) EXPECT_NEAR(n, 2000, 1);
}

TEST(SpaceTest, RefusesWhatIsWrongAndNamesIt) {
  struct Case {
    const char* json;
    const char* says;
  };
  const Case cases[] = {
      {R"({})", "no dimension"},
      {R"([])", "an object is wanted"},
      {R"({"a": 3})", "dimension \"a\": an object is wanted"},
      {R"({"a": {"low": 1}})", "high is missing"},
      {R"({"a": {"low": "1", "high": 2}})", "low must be a number"},
      {R"({"a": {"low": 2, "high": 1}})", "above high"},
      {R"({"a": {"low": 0, "high": 1, "scale": "log"}})", "above 0"},
      {R"({"a": {"low": 0, "high": 1, "scale": "log_to_one"}})", "below 1"},
      {R"({"a": {"low": 0, "high": 1, "scale": "lgo"}})", "did you mean \"log\""},
      {R"({"a": {"low": 0, "high": 1, "lwo": 1}})", "\"lwo\" is not known"},
      {R"({"a": {"low": 0.5, "high": 3, "kind": "integer"}})", "whole numbers"},
      {R"({"a": {"low": 0, "high": 1e300, "kind": "integer"}})", "2^53"},
      {R"({"a": {"low": -1e308, "high": 1e308}})", "not finite"},
      {R"({"a": {"choices": []}})", "no choices"},
      {R"({"a": {"choices": [1, 1]}})", "twice"},
      {R"({"a": {"choices": [[1]]}})", "choices must be"},
      {R"({"a": {"choices": {"b": 1}}})", "choices must be a list"},
      {R"({"a": {"choices": [1], "low": 1}})", "\"low\" is not known"},
      {R"({"a": {"kind": "choice"}})", "choices is missing"},
      {R"({"": {"low": 0, "high": 1}})", "has no name"},
  };
  for (const Case& c : cases) {
    std::string text;
    EXPECT_EQ(code_of([&] { Space::from_json(parse_json(c.json), "s.json"); }, &text),
              ErrorCode::invalid_argument)
        << c.json;
    EXPECT_NE(text.find(c.says), std::string::npos) << text;
    EXPECT_NE(text.find("s.json"), std::string::npos) << text;
  }
  EXPECT_EQ(code_of([] { Space::from_toml("[a]\nlow = nan\nhigh = 1\n", "s"); }),
            ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { Space::from_toml("a = \n", "s"); }), ErrorCode::invalid_argument);
}

TEST(SpaceTest, RefusesValuesThatAreNotInIt) {
  const Space space = some();
  const nlohmann::json good = space.values(space.at(Point(6, 0.4)));
  for (const auto& [key, value] : good.items()) {
    nlohmann::json bad = good;
    bad.erase(key);
    EXPECT_EQ(code_of([&] { space.setting_from(bad, "v"); }), ErrorCode::invalid_argument) << key;
    for (const char* wrong : {"1e9", "null", "[]", "\"x\"", "-7", "{}"}) {
      bad[key] = parse_json(wrong);
      EXPECT_EQ(code_of([&] { space.setting_from(bad, "v"); }), ErrorCode::invalid_argument)
          << key << wrong;
    }
  }
  nlohmann::json more = good;
  more["layer"] = 1;
  std::string text;
  code_of([&] { space.setting_from(more, "v"); }, &text);
  EXPECT_NE(text.find("did you mean \"layers\""), std::string::npos) << text;
}

TEST(SpaceTest, CountsItsSettings) {
  const auto of = [](const char* json) { return Space::from_json(parse_json(json), "s").count(); };
  EXPECT_EQ(of(R"({"a": {"choices": [1, 2, 3]}, "b": {"kind": "integer", "low": 1, "high": 4}})"),
            12);
  EXPECT_EQ(of(R"({"a": {"low": 1, "high": 1}})"), 1);
  EXPECT_EQ(of(R"({"a": {"low": 1, "high": 2}})"), 0);
  EXPECT_EQ(of(R"({"a": {"kind": "integer", "low": 0, "high": 9e15},
                   "b": {"kind": "integer", "low": 0, "high": 9e15}})"),
            0);
  const Space two = some().only({some().at(Point(6, 0.1)), some().at(Point(6, 0.1))});
  EXPECT_EQ(two.count(), 1);
  EXPECT_EQ(code_of([] { some().only({}); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { some().only({{1, 2}}); }), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ductile::tune
