#include "ductile/base/toml.h"

#include <algorithm>

namespace ductile {
namespace {

// The place behind the string or comment that begins at `at`, as TOML 1.0 delimits them; the text's
// end where it is not closed, which the parser then reports.
size_t skip_opaque(std::string_view text, size_t at) {
  const char quote = text[at];
  if (quote == '#') return std::min(text.find('\n', at), text.size());
  const bool many_lines = text.substr(at, 3) == std::string(3, quote);
  size_t i = at + (many_lines ? 3 : 1);
  for (; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (many_lines && text.substr(i, 3) == std::string(3, quote)) {
      const size_t close = i + 3;  // up to two quotes before these belong to the string itself
      for (i = close; i < close + 2 && i < text.size() && text[i] == quote;) ++i;
      return i;
    } else if (!many_lines && (text[i] == quote || text[i] == '\n')) {
      return i + 1;
    }
  }
  return text.size();
}

}  // namespace

void check_toml_depth(std::string_view text, std::string_view name) {
  int line = 1, brackets = 0, dots = 0;
  const auto bound = [&](int depth, std::string_view what) {
    if (depth <= kMaxTomlDepth) return;
    fail(ErrorCode::invalid_argument, "{}:{}: {}, at most {} are accepted", name, line, what,
         kMaxTomlDepth);
  };
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'' || c == '#') {
      const size_t end = skip_opaque(text, i);
      for (; i < end; ++i) line += text[i] == '\n';
      if (c != '#' && text[i - 1] == '\n') dots = 0;
      continue;
    }
    if (c == '\n') {
      ++line;
      dots = 0;
    } else if (c == '[' || c == '{') {
      bound(++brackets, "brackets nested too deeply");
      dots = 0;
    } else if (c == ']' || c == '}') {
      brackets = std::max(0, brackets - 1);
      dots = 0;
    } else if (c == '=' || c == ',') {
      dots = 0;
    } else if (c == '.') {
      bound(++dots + 1, "a key of too many parts");
    }
    ++i;
  }
}

}  // namespace ductile
