#include "ductile/base/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace ductile {
namespace {

constexpr std::string_view kLetters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNoLetter = 64;

constexpr std::array<uint8_t, 256> kValues = [] {
  std::array<uint8_t, 256> out{};
  out.fill(kNoLetter);
  for (uint8_t value = 0; value < kLetters.size(); ++value)
    out[static_cast<unsigned char>(kLetters[value])] = value;
  return out;
}();

}  // namespace

std::string to_base64(std::span<const std::byte> bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (; !bytes.empty(); bytes = bytes.subspan(std::min<size_t>(3, bytes.size()))) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (i < bytes.size() ? static_cast<uint32_t>(bytes[i]) : 0);
    for (size_t i = 0; i < 4; ++i)
      out += i <= bytes.size() ? kLetters[bits >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 == 0)
    for (int filled = 0; filled < 2 && text.ends_with('='); ++filled) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const uint8_t value = kValues[static_cast<unsigned char>(c)];
    if (value == kNoLetter) return std::nullopt;
    bits = bits << 6 | value;
    held += 6;
    if (held < 8) continue;
    held -= 8;
    out += static_cast<char>(bits >> held & 0xff);
  }
  return out;
}

}  // namespace ductile
