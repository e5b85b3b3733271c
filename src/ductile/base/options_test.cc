#include "ductile/base/options.h"

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/base/testing.h"

namespace ductile {
namespace {

using testing::text_of;

constexpr Named kColours[] = {{"red", "as a rose"}, {"blue", "as the sky"}};
struct Deep {
  double power = 2;
  std::string colour = "red";
};
struct Inner {
  int64_t count = 3;
  double rate = 0.5;
  std::vector<int64_t> sizes = {1, 2};
  Deep deep, twin;
};
struct Outer {
  std::string name = "a\"b";
  bool flag = false;
  std::string mode = "slow";
  std::vector<std::string> tags;
  Inner inner;
};
void describe(Describer& d, Deep& o) {
  d.field("power", o.power, "how strong").range(0, 9);
  d.field("colour", o.colour, "what it looks like")
      .one_of(Table<Named>("colour", kColours))
      .one_of("none", "as glass");
}
void describe(Describer& d, Inner& o) {
  d.field("count", o.count, "how many").range(1, 10);
  d.field("rate", o.rate, "how fast").above(0);
  d.field("sizes", o.sizes, "how large").at_least(1);
  d.section("deep", o.deep, "The innermost.");
  d.section("twin", o.twin, "Its twin.");
  d.moved("power", {"deep.power", "twin.power"});
  d.moved("colour", {"deep.colour"});
}
void describe(Describer& d, Outer& o) {
  d.field("name", o.name, "what it is called");
  d.field("flag", o.flag, "on or off");
  d.field("mode", o.mode, "which way").one_of({"slow", "fast"});
  d.field("tags", o.tags, "labels");
  d.section("inner", o.inner, "The inside.");
  d.moved("outside.colour", {"inner.deep.colour"});
  d.called_elsewhere("powers", {"inner.deep.power", "inner.twin.power"});
}

TEST(Options, ReadsTomlAndRemembersWhereEachValueStood) {
  Outer o;
  OptionSet set(o);
  set.read_toml_text("name = \"x\"\nflag = true\n[inner]\ncount = 7\nrate = 2\nsizes = [4, 5]\n",
                     "job.toml");
  EXPECT_EQ(o.name, "x");
  EXPECT_TRUE(o.flag);
  EXPECT_EQ(o.inner.count, 7);
  EXPECT_EQ(o.inner.rate, 2.0);
  EXPECT_EQ(o.inner.sizes, (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(set.find("inner.count")->origin.text, "job.toml:4");
  EXPECT_TRUE(set.find("mode")->origin.is_default());
}

TEST(Options, TextRoundTripsThroughToml) {
  Outer o;
  o.name = "quote \" back \\ tab \t line \n bell \a end";
  o.tags = {"p", "q r"};
  o.inner.rate = 0.1 + 0.2;
  Outer back;
  OptionSet(back).read_toml_text(OptionSet(o).to_toml(false, true), "t");
  EXPECT_EQ(back.name, o.name);
  EXPECT_EQ(back.tags, o.tags);
  EXPECT_EQ(back.inner.rate, o.inner.rate);
  Outer json_back;
  OptionSet(json_back).read_json(OptionSet(o).to_json(), "j");
  EXPECT_EQ(json_back.inner.rate, o.inner.rate);
  EXPECT_EQ(json_back.name, o.name);
}

TEST(Options, OnlyChangedValuesArePrintedOnRequest) {
  Outer o;
  OptionSet set(o);
  set.set("inner.count=5");
  EXPECT_EQ(set.to_toml(true), "[inner]\ncount = 5\n");
}

TEST(Options, UnknownKeyNamesFileLineAndNearestKey) {
  Outer o;
  OptionSet set(o);
  EXPECT_EQ(text_of([&] { set.read_toml_text("\n[inner]\ncuont = 7\n", "job.toml"); }),
            "job.toml:3: unknown key inner.cuont; did you mean inner.count?");
  EXPECT_EQ(text_of([&] { set.read_toml_text("rate = 7\n", "job.toml"); }),
            "job.toml:1: unknown key rate; did you mean inner.rate?");
  EXPECT_EQ(text_of([&] { set.read_toml_text("[iner]\nx = 7\n", "job.toml"); }),
            "job.toml:1: unknown key iner; did you mean inner?");
  EXPECT_EQ(text_of([&] { set.read_toml_text("zzzzzzzzzzzz = 1\n", "job.toml"); }),
            "job.toml:1: unknown key zzzzzzzzzzzz");
}

TEST(Options, ASectionIsOfferedForASectionOnly) {
  Outer o;
  OptionSet set(o);
  EXPECT_EQ(text_of([&] { set.set("inner.deeq=1"); }),
            "--set inner.deeq=1: unknown key inner.deeq");
  EXPECT_EQ(text_of([&] { set.read_toml_text("[inner.deeq]\npower = 1\n", "f"); }),
            "f:1: unknown key inner.deeq; did you mean inner.deep?");
}

TEST(Options, OfTheSameKeyInSeveralSectionsTheNearestIsOffered) {
  Outer o;
  OptionSet set(o);
  EXPECT_EQ(text_of([&] { set.set("inner.twins.power=1"); }),
            "--set inner.twins.power=1: unknown key inner.twins.power; did you mean "
            "inner.twin.power?");
  EXPECT_EQ(text_of([&] { set.set("elsewhere.power=1"); }),
            "--set elsewhere.power=1: unknown key elsewhere.power; did you mean inner.deep.power?");
}

TEST(Options, AWordOfOtherProgramsNamesWhatItIsHere) {
  Outer o;
  OptionSet set(o);
  for (const char* word : {"powers", "inner.powers", "inner.deep.powers"}) {
    const std::string key = word;
    EXPECT_EQ(text_of([&] { set.set(key + "=1"); }),
              "--set " + key + "=1: unknown key " + key +
                  "; did you mean inner.deep.power and inner.twin.power?");
  }
}

TEST(Options, UnknownKeyThatIsNearNoneNamesAllWhereTheyAreFew) {
  Inner few;
  EXPECT_EQ(text_of([&] { OptionSet(few).set("zzzzzzzzzzzz=1"); }),
            "--set zzzzzzzzzzzz=1: unknown key zzzzzzzzzzzz; the keys are count, rate, sizes, "
            "deep.power, deep.colour, twin.power, twin.colour");
  EXPECT_EQ(text_of([&] { OptionSet(few).set("cuont=1"); }),
            "--set cuont=1: unknown key cuont; did you mean count?");
}

TEST(Options, WrongTypesAndValuesOutOfRangeAreRefused) {
  Outer o;
  OptionSet set(o);
  EXPECT_EQ(text_of([&] { set.read_toml_text("[inner]\ncount = \"7\"\n", "f"); }),
            "f:2: inner.count must be a whole number, not \"7\"");
  EXPECT_EQ(text_of([&] { set.read_toml_text("[inner]\ncount = 1.5\n", "f"); }),
            "f:2: inner.count must be a whole number, not 1.5");
  EXPECT_EQ(text_of([&] { set.read_toml_text("[inner]\ncount = 11\n", "f"); }),
            "f:2: inner.count = 11 is out of range; allowed: from 1 to 10");
  EXPECT_EQ(text_of([&] { set.read_toml_text("[inner]\nrate = 0\n", "f"); }),
            "f:2: inner.rate = 0 is out of range; allowed: above 0");
  EXPECT_EQ(text_of([&] { set.read_toml_text("[inner]\nrate = nan\n", "f"); }),
            "f:2: inner.rate must be a finite number");
  EXPECT_EQ(text_of([&] { set.read_toml_text("[inner]\nsizes = [3, 0]\n", "f"); }),
            "f:2: inner.sizes = 0 is out of range; allowed: at least 1");
  EXPECT_EQ(
      text_of([&] { set.read_toml_text("mode = \"fats\"\n", "f"); }),
      "f:1: mode = \"fats\" is not known; did you mean \"fast\"? Allowed: \"slow\", \"fast\"");
  EXPECT_EQ(text_of([&] { set.read_toml_text("inner = 3\n", "f"); }),
            "f:1: inner is a section, not a value; write [inner]");
  EXPECT_NE(text_of([&] { set.read_toml_text("a = = 3\n", "f"); }).find("f:1: "),
            std::string::npos);
  EXPECT_NE(text_of([&] { set.read_toml_text("name = 2020-01-01\n", "f"); }).find("a string"),
            std::string::npos);
  EXPECT_EQ(o.inner.count, 3) << "a refused value leaves the old one";
}

TEST(Options, AssignmentsTakeBareStringsNumbersAndLists) {
  Outer o;
  OptionSet set(o);
  set.set("name=hello world");
  set.set("inner.count=1e1");
  set.set("inner.sizes=[9]");
  set.set("flag=true");
  set.set("mode=\"fast\"");
  EXPECT_EQ(o.name, "hello world");
  EXPECT_EQ(o.inner.count, 10);
  EXPECT_EQ(o.inner.sizes, std::vector<int64_t>{9});
  EXPECT_EQ(o.mode, "fast");
  EXPECT_EQ(set.find("name")->origin.text, "--set");
  EXPECT_EQ(text_of([&] { set.set("inner.count=ten"); }),
            "--set inner.count=ten: inner.count must be a whole number, not \"ten\"");
  EXPECT_NE(text_of([&] { set.set("novalue"); }).find("write key=value"), std::string::npos);
}

TEST(Options, ANumberThatIsTooLargeIsRefusedAsSuch) {
  Outer o;
  OptionSet set(o);
  for (const std::string number : {"1e400", "-1e400"}) {
    EXPECT_EQ(text_of([&] { set.set("inner.rate=" + number); }),
              "--set inner.rate=" + number + ": " + number +
                  " is too large a number; the largest is 1.7976931348623157e+308");
  }
  EXPECT_NE(text_of([&] { set.set("inner.rate=1e400x"); }).find("must be a number"),
            std::string::npos);
  EXPECT_EQ(o.inner.rate, 0.5);
}

TEST(Options, ANumberThatWouldBecomeZeroIsRefused) {
  Outer o;
  OptionSet set(o);
  const std::string what =
      " is too small a number and would become 0; the smallest above 0 is 5e-324";
  EXPECT_EQ(text_of([&] { set.set("inner.rate=1e-400"); }),
            "--set inner.rate=1e-400: 1e-400" + what);
  EXPECT_EQ(text_of([&] { set.set("inner.sizes=[1, -2_0.5E-999]"); }),
            "--set inner.sizes=[1, -2_0.5E-999]: -2_0.5E-999" + what);
  EXPECT_EQ(
      text_of([&] {
        set.read_toml_text(
            "mode = \"fast\"\r\n[inner]\r\ndeep = {colour = \"\xc3\xa4\", power = 1e-400}\r\n",
            "f");
      }),
      "f:3: 1e-400" + what);
  const char* environment[] = {"DUCTILE_INNER__RATE=0.1e-400", nullptr};
  EXPECT_EQ(text_of([&] { set.read_environment(environment); }),
            "environment DUCTILE_INNER__RATE inner.rate=0.1e-400: 0.1e-400" + what);
  EXPECT_EQ(o.inner.rate, 0.5);
  for (const char* zero : {"0", "0.0", "-0.0", "0e-999", "+0.00e5", "5e-324"})
    EXPECT_NO_THROW(set.set(std::string("inner.deep.power=") + zero)) << zero;
  set.set("name=1e-400");
  EXPECT_EQ(o.name, "1e-400");
}

TEST(Options, WhatIsNotUtf8IsRefused) {
  Outer o;
  OptionSet set(o);
  EXPECT_EQ(text_of([&] { set.set("name=a\xff"); }),
            "--set name=a\xEF\xBF\xBD: not UTF-8 text (byte 7 is 0xff)");
  EXPECT_NE(text_of([&] { set.set("tags=[\"\xc3\"]"); }).find("not UTF-8"), std::string::npos);
  EXPECT_NE(text_of([&] { set.set("n\xe9me=1"); }).find("not UTF-8"), std::string::npos);
  const char* environment[] = {"DUCTILE_INNER__COUNT=4", "DUCTILE_INNER__RATE=\xfe", nullptr};
  EXPECT_NE(text_of([&] { set.read_environment(environment); }).find("not UTF-8"),
            std::string::npos);
  EXPECT_NE(text_of([&] { set.read_toml_text("name = \"\xff\"\n", "f"); }).find("f:1: "),
            std::string::npos);
  EXPECT_EQ(o.name, "a\"b") << "a refused value leaves the old one";
}

TEST(Options, EnvironmentNamesTheVariable) {
  Outer o;
  OptionSet set(o);
  const char* good[] = {"DUCTILE_INNER__COUNT=4", "DUCTILE_WORKER=/x", "HOME=/root", nullptr};
  set.read_environment(good);
  EXPECT_EQ(o.inner.count, 4);
  EXPECT_EQ(set.find("inner.count")->origin.text, "environment DUCTILE_INNER__COUNT");
  const char* wrong[] = {"DUCTILE_INNER__COUNTS=4", nullptr};
  EXPECT_EQ(
      text_of([&] { set.read_environment(wrong); }),
      "environment DUCTILE_INNER__COUNTS: unknown key inner.counts; did you mean inner.count?");
}

TEST(Options, AVariableThatIsNearlyAnOptionIsAnErrorThatNamesTheRightOne) {
  Outer o;
  OptionSet set(o);
  const auto error = [&](const char* variable) {
    const char* environment[] = {variable, nullptr};
    return text_of([&] { set.read_environment(environment); });
  };
  EXPECT_EQ(error("DUCTILE_INNER_COUNT=4"),
            "environment DUCTILE_INNER_COUNT: names no option; did you mean DUCTILE_INNER__COUNT?");
  EXPECT_EQ(error("DUCTILE_INNER_CUONT=4"),
            "environment DUCTILE_INNER_CUONT: names no option; did you mean DUCTILE_INNER__COUNT?");
  EXPECT_EQ(error("DUCTILE_INNER_DEEP_POWER=4"),
            "environment DUCTILE_INNER_DEEP_POWER: names no option; did you mean "
            "DUCTILE_INNER__DEEP__POWER?");
  const char* another[] = {"DUCTILE_WORKER=4", nullptr};
  EXPECT_NO_THROW(set.read_environment(another));
  EXPECT_EQ(o.inner.count, 3);
}

TEST(Options, ASectionIsNoOption) {
  Outer o;
  OptionSet set(o);
  EXPECT_EQ(text_of([&] { set.set("inner=3"); }),
            "--set inner=3: inner is a section, not an option; name one of its options, such as "
            "inner.count");
  EXPECT_EQ(text_of([&] { set.set("inner.deep=3"); }),
            "--set inner.deep=3: inner.deep is a section, not an option; name one of its options, "
            "such as inner.deep.power");
}

TEST(Options, AMovedKeyIsAnErrorThatNamesTheNewOne) {
  Outer o;
  OptionSet set(o);
  EXPECT_EQ(text_of([&] { set.read_toml_text("[inner]\ncolour = \"blue\"\n", "job.toml"); }),
            "job.toml:2: inner.colour is now inner.deep.colour");
  EXPECT_EQ(text_of([&] { set.set("inner.power=3"); }),
            "--set inner.power=3: inner.power is now inner.deep.power or inner.twin.power");
  const char* environment[] = {"DUCTILE_INNER__COLOUR=blue", nullptr};
  EXPECT_EQ(text_of([&] { set.read_environment(environment); }),
            "environment DUCTILE_INNER__COLOUR: inner.colour is now inner.deep.colour");
  EXPECT_EQ(text_of([&] {
              set.read_json({{"inner", {{"power", 3}}}}, "saved");
            }),
            "saved: inner.power is now inner.deep.power or inner.twin.power");
  EXPECT_EQ(o.inner.deep.power, 2.0);
}

TEST(Options, AKeyThatMovedOutOfATableThatIsGoneNamesTheNewOne) {
  Outer o;
  OptionSet set(o);
  const std::string is_now = "outside.colour is now inner.deep.colour";
  EXPECT_EQ(text_of([&] { set.set("outside.colour=blue"); }),
            "--set outside.colour=blue: " + is_now);
  EXPECT_EQ(text_of([&] { set.read_toml_text("[outside]\ncolour = \"blue\"\n", "f"); }),
            "f:2: " + is_now);
  EXPECT_EQ(text_of([&] { set.read_toml_text("[outside]\nzzzzzzzzzzzz = 3\n", "f"); }),
            "f:2: unknown key outside.zzzzzzzzzzzz");
  EXPECT_EQ(text_of([&] { set.read_toml_text("outside = 3\n", "f"); }), "f:1: unknown key outside");
  set.read_toml_text("[outside]\ncolour = \"blue\"\n", "f", Moved::follow);
  EXPECT_EQ(o.inner.deep.colour, "blue");
}

TEST(Options, WhatAnEarlierVersionSavedIsReadAsWhatItIsNow) {
  Outer o;
  OptionSet set(o);
  set.read_toml_text("[inner]\npower = 3\ncolour = \"blue\"\n", "job.toml", Moved::follow);
  EXPECT_EQ(o.inner.deep.power, 3.0);
  EXPECT_EQ(o.inner.twin.power, 3.0);
  EXPECT_EQ(o.inner.deep.colour, "blue");
  EXPECT_EQ(o.inner.twin.colour, "red");
  set.read_json({{"inner", {{"power", 4}}}}, "saved", Moved::follow);
  EXPECT_EQ(o.inner.twin.power, 4.0);
  EXPECT_NE(text_of([&] {
              set.read_toml_text("[inner]\npower = 10\n", "f", Moved::follow);
            }).find("f:2: inner.deep.power = 10 is out of range"),
            std::string::npos);
}

TEST(Options, ChoicesOfATableAreListedWithTheirHelp) {
  Outer o;
  OptionSet set(o);
  EXPECT_EQ(text_of([&] { set.set("inner.deep.colour=rde"); }),
            "--set inner.deep.colour=rde: inner.deep.colour = \"rde\" is not known; did you mean "
            "\"red\"? Allowed: \"red\", \"blue\", \"none\"");
  set.set("inner.deep.colour=none");
  const std::string text = set.markdown();
  EXPECT_NE(text.find("| `\"blue\"` | as the sky |"), std::string::npos) << text;
  EXPECT_NE(text.find("| `\"none\"` | as glass |"), std::string::npos) << text;
}

struct LateField {
  Inner inner;
  int64_t late = 0;
};
void describe(Describer& d, LateField& o) {
  d.section("inner", o.inner, "The inside.");
  d.field("late", o.late, "too late");
}
struct LateInside {
  LateField outer;
};
void describe(Describer& d, LateInside& o) { d.section("outer", o.outer, "The outside."); }

// The table of a section would be opened twice.
TEST(Options, AFieldAfterASectionOfItsTableIsABug) {
  LateField late;
  EXPECT_THROW(OptionSet{late}, Error);
  LateInside inside;
  EXPECT_THROW(OptionSet{inside}, Error);
}

TEST(Options, SchemaAndMarkdownShowEveryField) {
  Outer o;
  OptionSet set(o);
  const auto schema = set.json_schema("outer");
  const auto& count = schema.at("properties").at("inner").at("properties").at("count");
  EXPECT_EQ(count.at("type"), "integer");
  EXPECT_EQ(count.at("minimum"), 1);
  EXPECT_EQ(count.at("default"), 3);
  EXPECT_EQ(schema.at("properties").at("mode").at("enum").size(), 2u);
  EXPECT_FALSE(schema.at("properties").at("inner").at("additionalProperties").get<bool>());
  const std::string text = set.markdown();
  for (const OptionField& f : set.fields()) EXPECT_NE(text.find(f.help), std::string::npos);
}

}  // namespace
}  // namespace ductile
