#include "ductile/base/text.h"

namespace ductile {

size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char c = byte(at);
  const size_t n = c < 0x80                ? 1
                   : c >= 0xC2 && c < 0xE0 ? 2
                   : c >= 0xE0 && c < 0xF0 ? 3
                   : c >= 0xF0 && c < 0xF5 ? 4
                                           : 0;
  if (n == 0 || at + n > text.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  if (c == 0xE0 && byte(at + 1) < 0xA0) return 0;   // written longer than need be
  if (c == 0xED && byte(at + 1) >= 0xA0) return 0;  // half of a surrogate pair
  if (c == 0xF0 && byte(at + 1) < 0x90) return 0;
  if (c == 0xF4 && byte(at + 1) >= 0x90) return 0;  // above U+10FFFF
  return n;
}

size_t find_not_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t n = utf8_length(text, i);
    if (n == 0) return i;
    i += n;
  }
  return std::string_view::npos;
}

std::string to_utf8(std::string_view text) {
  std::string out;
  for (size_t bad; (bad = find_not_utf8(text)) != std::string_view::npos;) {
    out.append(text.substr(0, bad)).append("\xEF\xBF\xBD");
    text.remove_prefix(bad + 1);
  }
  return out.append(text);
}

}  // namespace ductile
