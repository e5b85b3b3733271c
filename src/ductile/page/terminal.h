#pragma once

#include <string>
#include <string_view>
#include <vector>

// Text for terminals. Nothing that these return can move the cursor or change the terminal's
// state, whatever they were given.
namespace ductile::page {

// The text without control characters; tabs and newlines are kept.
std::string without_controls(std::string_view text);

// The same on one line: tabs and newlines are spaces.
std::string one_line(std::string_view text);

// Columns that a text takes: one per character.
int columns_of(std::string_view text);

// One word for a shell, quoted where it must be.
std::string shell_word(std::string_view text);

enum class Align : unsigned char { left, right };

// Columns padded to their widest cell, two spaces apart, aligned to the left where `align` names
// no other; the first row is the header.
std::string table(const std::vector<std::vector<std::string>>& rows,
                  const std::vector<Align>& align = {});

}  // namespace ductile::page
