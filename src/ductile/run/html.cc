#include "ductile/run/html.h"

namespace ductile::run {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The length of the UTF-8 character that begins at `at`, or 0 if it is malformed.
size_t character_length(std::string_view text, size_t at) {
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
  if (c == 0xE0 && byte(at + 1) < 0xA0) return 0;
  if (c == 0xED && byte(at + 1) >= 0xA0) return 0;
  if (c == 0xF0 && byte(at + 1) < 0x90) return 0;
  if (c == 0xF4 && byte(at + 1) >= 0x90) return 0;
  return n;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (size_t i = 0; i < text.size();) {
    const size_t n = character_length(text, i);
    const char c = text[i];
    if (n == 0 || (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
      out += kReplacement;
      i += 1;
      continue;
    }
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += text.substr(i, n);
    }
    i += n;
  }
  return out;
}

}  // namespace ductile::run
