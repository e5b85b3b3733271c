#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Text that comes from outside may be any bytes: names of files above all.
namespace ductile {

// The length of the UTF-8 character that begins at `at`, or 0 where none does.
size_t utf8_length(std::string_view text, size_t at);

// The place of the first byte that belongs to no UTF-8 character; npos where all of it is UTF-8.
size_t find_not_utf8(std::string_view text);

// The text with U+FFFD in the place of every byte that belongs to no UTF-8 character.
std::string to_utf8(std::string_view text);

}  // namespace ductile
