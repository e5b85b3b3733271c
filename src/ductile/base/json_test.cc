#include "ductile/base/json.h"

#include <gtest/gtest.h>

#include "ductile/base/testing.h"
#include "ductile/base/toml.h"

namespace ductile {
namespace {

using nlohmann::json;

std::string repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Json, WhatIsNotUtf8LeavesAsAReplacementCharacter) {
  const json value = {{"error",
                       "\xff"
                       "0.png: broken"}};
  EXPECT_EQ(dump_json(value),
            "{\"error\":\"\xEF\xBF\xBD"
            "0.png: broken\"}");
  EXPECT_EQ(json::parse(dump_json(value, 2)).at("error"),
            "\xEF\xBF\xBD"
            "0.png: broken");
  EXPECT_EQ(dump_json(nlohmann::ordered_json{{"b", "\xc3"}, {"a", 1}}),
            "{\"b\":\"\xEF\xBF\xBD\",\"a\":1}");
  std::string text;
  EXPECT_EQ(testing::code_of([&] { dump_json_exactly({"\xff"}, "a name"); }, &text),
            ErrorCode::invalid_argument);
  EXPECT_TRUE(text.starts_with("a name is not UTF-8 text")) << text;
  EXPECT_EQ(dump_json_exactly({"\u00e9"}, "a name"), "[\"\u00e9\"]");
}

TEST(Json, DepthIsFoundWithoutParsing) {
  EXPECT_EQ(json_depth("1"), 0);
  EXPECT_EQ(json_depth(R"({"a[[[": [1, {"b\"[[": []}]})"), 4);
  EXPECT_EQ(json_depth("]]]["), 0);
}

TEST(Json, TextThatIsTooDeepIsRefusedBeforeItIsBuilt) {
  for (const char* open : {"[", "{\"a\":"}) {
    for (const int depth : {kMaxJsonDepth + 1, 1000000}) {
      const std::string text = repeat(open, depth);
      EXPECT_TRUE(parse_json(text).is_discarded());
      std::string said;
      EXPECT_EQ(testing::code_of([&] { parse_json(text, "x.json", ErrorCode::data_loss); }, &said),
                ErrorCode::data_loss);
      EXPECT_EQ(said, fmt::format("x.json: JSON nested {} deep, at most {} is accepted", depth,
                                  kMaxJsonDepth));
    }
  }
  const std::string deepest = repeat("[", kMaxJsonDepth) + repeat("]", kMaxJsonDepth);
  EXPECT_EQ(dump_json(parse_json(deepest)), deepest);
}

TEST(Json, WhatIsNotJsonIsNamedWithItsPlace) {
  EXPECT_TRUE(parse_json("{\"a\": }").is_discarded());
  std::string said;
  testing::code_of([&] { parse_json("{\"a\": }", "x.json", ErrorCode::data_loss); }, &said);
  EXPECT_TRUE(said.starts_with("x.json: not JSON: parse error at line 1, column 7")) << said;
}

// ---- TOML

std::string toml_error(const std::string& text) {
  return testing::run_within(size_t{1} << 30, [&] { parse_toml(text, "t.toml"); });
}

TEST(Toml, KeysAndBracketsThatAreTooDeepAreErrors) {
  const std::string key = "a" + repeat(".a", 20000);
  EXPECT_EQ(toml_error("x = 1\n" + key + " = 1\n"),
            "t.toml:2: a key of too many parts, at most 16 are accepted");
  EXPECT_EQ(toml_error("[" + key + "]\n"),
            "t.toml:1: a key of too many parts, at most 16 are accepted");
  EXPECT_EQ(toml_error("s = '''\n\n'''\n[[" + key + "]]\n"),
            "t.toml:4: a key of too many parts, at most 16 are accepted");
  EXPECT_EQ(toml_error("a = " + repeat("[", 100) + repeat("]", 100)),
            "t.toml:1: brackets nested too deeply, at most 16 are accepted");
  // What hides behind a string is seen all the same.
  for (const std::string before : {"\"\"\"q\"\"\"\"", "'''q'''''", "\"\\\"\"", "''", "\"#\""}) {
    EXPECT_EQ(toml_error("a = [" + before + ", {" + key + " = 1}]\n"),
              "t.toml:1: a key of too many parts, at most 16 are accepted")
        << before;
  }
}

TEST(Toml, WhatStandsInStringsAndCommentsIsNoNesting) {
  const std::string dots = repeat(".", 100) + repeat("[", 100);
  EXPECT_EQ(toml_error("# " + dots + "\na = \"" + dots + "\"\nb = '" + dots + "'\nc = \"\"\"\n" +
                       dots + "\n\"\"\"\nd = '''" + dots + "'''\n\"" + dots + "\" = 1.5\n" +
                       "e = [" + repeat("1.5, ", 100) + "]\n"),
            "");
  EXPECT_EQ(toml_error("a.b.c.d = 1\n[x.y.z]\nk = {a.b = [[1]]}\n"), "");
  EXPECT_NE(toml_error("a = \"never closed\n" + dots), "");
}

}  // namespace
}  // namespace ductile
