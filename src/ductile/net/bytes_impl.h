#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace ductile::net {

// Little-endian numbers at the end of, or at a place in, a byte string.
template <class T>
void append_number(std::vector<std::byte>& to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    to.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i)));
  }
}

template <class T>
T read_number(std::span<const std::byte> from, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<uint64_t>(from[at + i]) << (8 * i);
  }
  return static_cast<T>(value);
}

inline void append_bytes(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace ductile::net
