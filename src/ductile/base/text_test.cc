#include "ductile/base/text.h"

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"

namespace ductile {
namespace {

// The JSON library's own decoder as the twin: it throws on the first byte that is not UTF-8.
bool twin_accepts(const std::string& text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

TEST(Text, Utf8IsWhatTheJsonLibrarySaysItIs) {
  // Every first byte, and then bytes at the borders of what may follow.
  for (int a = 0; a < 256; ++a) {
    for (const int b : {-1, 0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff}) {
      for (const int c : {-1, 0x00, 0x7f, 0x80, 0x9f, 0xa0, 0xbf, 0xc0, 0xff}) {
        for (const int d : {-1, 0x80, 0x7f}) {
          std::string text(1, static_cast<char>(a));
          if (b >= 0) text += static_cast<char>(b);
          if (b >= 0 && c >= 0) text += static_cast<char>(c);
          if (b >= 0 && c >= 0 && d >= 0) text += static_cast<char>(d);
          const bool good = find_not_utf8(text) == std::string_view::npos;
          ASSERT_EQ(good, twin_accepts(text)) << a << " " << b << " " << c << " " << d;
          ASSERT_EQ(find_not_utf8(to_utf8(text)), std::string_view::npos);
          ASSERT_EQ(to_utf8(text) == text, good);
        }
      }
    }
  }
}

TEST(Text, BytesThatAreNoCharacterAreReplacedOneByOne) {
  EXPECT_EQ(to_utf8("a\xff\xfez"), "a\xEF\xBF\xBD\xEF\xBF\xBDz");
  EXPECT_EQ(to_utf8("\xc3"), "\xEF\xBF\xBD");
  EXPECT_EQ(find_not_utf8("ab\xff"), 2u);
  EXPECT_EQ(to_utf8(""), "");
}

}  // namespace
}  // namespace ductile
