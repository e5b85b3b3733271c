#include "ductile/base/base64.h"

#include <string>

#include <gtest/gtest.h>

namespace ductile {
namespace {

std::string encoded(std::string_view text) { return to_base64(std::as_bytes(std::span(text))); }

// Section 10 of RFC 4648.
TEST(Base64, HasTheLettersOfTheStandard) {
  const std::pair<const char*, const char*> known[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"}};
  for (const auto& [text, letters] : known) {
    EXPECT_EQ(encoded(text), letters);
    EXPECT_EQ(from_base64(letters), text);
  }
  EXPECT_EQ(encoded("\xfb\xef\xff"), "++//");
  EXPECT_EQ(from_base64("Zg"), "f") << "without what fills it up";
}

TEST(Base64, EveryByteAtEveryPlaceComesBack) {
  for (int byte = 0; byte < 256; ++byte)
    for (size_t length = 1; length < 8; ++length)
      for (size_t at = 0; at < length; ++at) {
        std::string text(length, '\x5a');
        text[at] = static_cast<char>(byte);
        ASSERT_EQ(from_base64(encoded(text)), text);
      }
}

TEST(Base64, OtherTextIsNone) {
  for (const char* text :
       {"A", "AAAAA", "Zg=", "Z===", "====", "=Zg=", "Zm9v\n", "Zm-v", "Zm9v ", "Zg==Zg=="})
    EXPECT_EQ(from_base64(text), std::nullopt) << text;
  EXPECT_EQ(from_base64(std::string_view("AAA\0", 4)), std::nullopt);
}

}  // namespace
}  // namespace ductile
