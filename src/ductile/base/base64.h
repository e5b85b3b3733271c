#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// Bytes as text of 64 letters (RFC 4648, section 4), for what carries text alone.
namespace ductile {

// Four letters for each three bytes, the last ones filled up with '='.
std::string to_base64(std::span<const std::byte> bytes);

// The bytes; none where the text is not base64. The '=' at its end may be absent.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace ductile
