#include "ductile/base/table.h"

#include <gtest/gtest.h>

#include "ductile/base/testing.h"

namespace ductile {
namespace {

using testing::text_of;

struct Shape {
  std::string_view name;
  int (*make)(int side);
  std::string_view help;
};
constexpr Shape kRows[] = {{"square", [](int side) { return side * side; }, "all sides equal"},
                           {"line", [](int side) { return side; }, "one side"}};
constexpr Table<Shape> kShapes("shape", kRows);

TEST(Table, FindsAndMakesByName) {
  EXPECT_EQ(kShapes.at("square").make(3), 9);
  EXPECT_EQ(kShapes.find("circle"), nullptr);
  EXPECT_EQ(kShapes.names(), (std::vector<std::string>{"square", "line"}));
  static_assert(kShapes.find("line")->help == "one side");
}

TEST(Table, AnUnknownNameIsAnErrorWithTheNearestAndAll) {
  EXPECT_EQ(text_of([] { kShapes.at("sqare"); }),
            "shape \"sqare\" is not known; did you mean \"square\"? Allowed: \"square\", \"line\"");
  EXPECT_EQ(text_of([] { kShapes.at("dodecahedron"); }),
            "shape \"dodecahedron\" is not known; allowed: \"square\", \"line\"");
  EXPECT_EQ(text_of([] { kShapes.at("lin\xff"); }),
            "shape \"lin\xEF\xBF\xBD\" is not known; did you mean \"line\"? Allowed: \"square\", "
            "\"line\"");
  EXPECT_EQ(text_of([] { kShapes.at("LINE"); }),
            "shape \"LINE\" is not known; did you mean \"line\"? Allowed: \"square\", \"line\"");
  EXPECT_LT(text_of([] { kShapes.at(std::string(1'000'000, 'x')); }).size(), 200u);
}

TEST(Table, AnotherCaseIsNearerThanAnotherName) {
  const std::vector<std::string> rules = {"adam", "sgd", "adamw"};
  EXPECT_EQ(nearest_name("AdamW", rules), "adamw");
  EXPECT_EQ(nearest_name("SGD", rules), "sgd");
  EXPECT_EQ(nearest_name("ADAM", rules), "adam");
}

TEST(Table, TwoRowsOfOneNameAreRefused) {
  static constexpr Named twice[] = {{"a", "one"}, {"b", "two"}, {"a", "three"}};
  EXPECT_THROW(Table<Named>("thing", twice), std::logic_error);
}

}  // namespace
}  // namespace ductile
