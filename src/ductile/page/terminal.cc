#include "ductile/page/terminal.h"

#include <algorithm>
#include <cctype>

namespace ductile::page {

// C0 controls but tab and newline, DEL, and the C1 controls, which in UTF-8 are 0xC2 0x80..0x9F.
std::string without_controls(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == 0xC2 && i + 1 < text.size()) {
      const auto next = static_cast<unsigned char>(text[i + 1]);
      if (next >= 0x80 && next < 0xA0) {
        ++i;
        continue;
      }
    }
    if ((c >= 0x20 && c != 0x7F) || c == '\t' || c == '\n') out += text[i];
  }
  return out;
}

std::string one_line(std::string_view text) {
  std::string out = without_controls(text);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return out;
}

int columns_of(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string shell_word(std::string_view text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("/._-+,:@").find(c) != std::string_view::npos;
  });
  if (plain) return std::string(text);
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string table(const std::vector<std::vector<std::string>>& rows,
                  const std::vector<Align>& align) {
  std::vector<std::vector<std::string>> clean = rows;
  std::vector<int> width;
  for (auto& row : clean) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = one_line(row[i]);
      width[i] = std::max(width[i], columns_of(row[i]));
    }
  }
  std::string text;
  for (const auto& row : clean) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const auto room = static_cast<size_t>(width[i] - columns_of(row[i]));
      const bool right = i < align.size() && align[i] == Align::right;
      if (i > 0) line += "  ";
      if (right) line.append(room, ' ');
      line += row[i];
      if (!right) line.append(room, ' ');
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace ductile::page
