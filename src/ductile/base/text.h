#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Text that comes from outside, above all names of files, may be any bytes.
namespace ductile {

// The length of the UTF-8 character that begins at `at`, or 0 if none begins there.
size_t utf8_length(std::string_view text, size_t at);

// The position of the first byte that belongs to no UTF-8 character; npos if the whole text is
// UTF-8.
size_t find_not_utf8(std::string_view text);

// The text with U+FFFD instead of every byte that belongs to no UTF-8 character.
std::string to_utf8(std::string_view text);

}  // namespace ductile
