#include "ductile/page/html.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/page/assets.h"
#include "ductile/page/testing/page_fault.h"

namespace ductile::page {
namespace {

using nlohmann::json;

// What the build embeds is what lies in the tree, byte for byte, also after a change.
TEST(Assets, AreTheFilesOfTheTree) {
  const std::string folder = DUCTILE_SOURCE_DIR "/src/ductile/page/";
  EXPECT_TRUE(kColorsCss == read_file(folder + "colors.css")) << "another kColorsCss";
  EXPECT_TRUE(kThemeCss == read_file(folder + "theme.css")) << "another kThemeCss";
  EXPECT_TRUE(kTextJs == read_file(folder + "text.js")) << "another kTextJs";
  EXPECT_TRUE(kAxesJs == read_file(folder + "axes.js")) << "another kAxesJs";
  EXPECT_TRUE(kChartsJs == read_file(folder + "charts.js")) << "another kChartsJs";
}

RC_GTEST_PROP(Escape, LeavesOnlyHarmlessValidText, (std::string text)) {
  const std::string out = escape_html(text);
  RC_ASSERT(out.find_first_of("<>\"'") == std::string::npos);
  RC_ASSERT(json::parse(json(out).dump()).get<std::string>() == out);  // throws on bad UTF-8
}

TEST(Escape, KeepsLettersOfEveryLanguage) {
  EXPECT_EQ(escape_html("a\u00e9\u4e2d\U0001F600 & <b>\n"),
            "a\u00e9\u4e2d\U0001F600 &amp; &lt;b&gt;\n");
  EXPECT_EQ(escape_html("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");  // a lone surrogate
  EXPECT_EQ(escape_html(std::string_view("\0\x1b", 2)), "\uFFFD\uFFFD");
}

Page evil_page() {
  Page page;
  page.title = page.kind = page.heading = page.status = page.footer = kEvil;
  page.data = json{{kEvil, kEvil}}.dump();
  page.scripts = {"// none\n"};
  HtmlTable table({{kEvil, true}, {"b"}});
  table.row({kEvil, Cell(kEvil).with_title(kEvil)}, "changed", kEvil);
  page.body = tiles({{kEvil, kEvil, kEvil}}) + section(kEvil, meter(0.5, kEvil) + table.html());
  return page;
}

TEST(Page, NeedsNothingButItselfAndLetsNoTextBecomeMarkup) {
  const std::string html = to_html(evil_page());
  EXPECT_EQ(page_fault(html), "");
  EXPECT_EQ(data_of(html), (json{{kEvil, kEvil}}));
  // Without scripts there is no data block either, and one tag fewer to break.
  Page page = evil_page();
  page.scripts.clear();
  EXPECT_EQ(page_fault(to_html(page)), "");
  EXPECT_EQ(to_html(page).find("<script"), std::string::npos);
}

TEST(Page, TheTestOfPagesFindsFaults) {
  const std::string html = to_html(evil_page());
  EXPECT_NE(page_fault(html + kEvil), "");
  EXPECT_NE(page_fault(html + "<script src=x></script>"), "");
  EXPECT_NE(page_fault(html + "</script>"), "");
}

TEST(Tiles, TheMainOnesStandFirst) {
  const std::string html = tiles({{"a", "1"}, {"b", "2", "why", true}});
  EXPECT_LT(html.find("tiles main"), html.find("class=\"tiles\""));
  EXPECT_LT(html.find(">b<"), html.find(">a<"));
  EXPECT_NE(html.find("<div class=\"note\">why</div>"), std::string::npos);
}

TEST(HtmlTable, AlignsNumbersAndSpansColumns) {
  HtmlTable table({{"name"}, {"seconds", true}, {"more"}}, "figures");
  table.row({"x", Cell("3").with_tone("best"), "y"});
  table.row({Cell("all").across(2), "z"}, "first");
  EXPECT_EQ(table.html(),
            "<div class=\"scroll\"><table class=\"figures\"><thead><tr><th>name</th>"
            "<th class=\"num\">seconds</th><th>more</th></tr></thead><tbody>\n"
            "<tr><td>x</td><td class=\"num best\">3</td><td>y</td></tr>\n"
            "<tr class=\"first\"><td colspan=\"2\">all</td><td>z</td></tr>\n"
            "</tbody></table></div>\n");
  EXPECT_EQ(HtmlTable({{""}, {""}}).html().find("<thead>"), std::string::npos);
}

TEST(Meter, IsFullAtMost) {
  EXPECT_NE(meter(0.25, "x").find("width: 25.0%"), std::string::npos);
  EXPECT_NE(meter(1.5, "x").find("meter over\"><i style=\"width: 100.0%"), std::string::npos);
}

}  // namespace
}  // namespace ductile::page
