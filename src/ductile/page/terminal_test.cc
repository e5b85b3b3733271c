#include "ductile/page/terminal.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace ductile::page {
namespace {

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(table({{"NAME", "SIZE", "STATE"}, {"a", "1.5 KiB", "ok"}, {"longer", "2 B", ""}}),
            "NAME    SIZE     STATE\n"
            "a       1.5 KiB  ok\n"
            "longer  2 B\n");
  EXPECT_EQ(table({}), "");
}

TEST(Table, NumbersMayStandToTheRight) {
  EXPECT_EQ(table({{"size", "", "takes"}, {"1 KiB", "*", "3 us"}, {"40 KiB", "", "12.5 us"}},
                  {Align::right, Align::left, Align::right}),
            "  size       takes\n"
            " 1 KiB  *     3 us\n"
            "40 KiB     12.5 us\n");
}

TEST(Table, CountsCharactersNotBytesAndStaysOnItsLines) {
  EXPECT_EQ(table({{"ρ", "x"}, {"été", "y"}}), "ρ    x\nété  y\n");
  EXPECT_EQ(table({{"a\nb\x1b[2J",
                    "\xC2\x9B"
                    "1;1H\tz"}}),
            "a b[2J  1;1H z\n");
}

RC_GTEST_PROP(Table, HasALinePerRowAndNoControls, (std::vector<std::vector<std::string>> rows)) {
  const std::string text = table(rows);
  RC_ASSERT(std::count(text.begin(), text.end(), '\n') == static_cast<long>(rows.size()));
  for (const char c : text)
    RC_ASSERT(c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F));
}

TEST(ShellWord, IsQuotedOnlyWhereItMustBe) {
  EXPECT_EQ(shell_word("runs/digits-1"), "runs/digits-1");
  EXPECT_EQ(shell_word("my run"), "'my run'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("$(rm x)"), "'$(rm x)'");
  EXPECT_EQ(shell_word(""), "''");
}

}  // namespace
}  // namespace ductile::page
