#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/net/bytes_impl.h"

namespace ductile::net {

// A request is one frame: kind, id, then by kind
//   set:  key, value      get, wait: milliseconds to wait, number of keys, keys      add: key,
//   delta
// and so is an answer: id, ErrorCode + 1 or 0, then value, sum or the error's message. Strings
// carry their length (4 bytes). Answers come in any order.
enum class StoreRequest : uint8_t { set = 1, get = 2, add = 3, wait = 4 };

inline constexpr size_t kStoreMaxFrame = (1 << 20) + (1 << 16);

inline void append_text(std::vector<std::byte>& to, std::string_view text) {
  append_number(to, static_cast<uint32_t>(text.size()));
  append_bytes(to, bytes_of(text));
}

// Reads the fields of a frame; throws data_loss where it is too short.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T number() {
    need(sizeof(T));
    const T value = read_number<T>(bytes_, 0);
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }

  std::string text() {
    const size_t size = number<uint32_t>();
    need(size);
    const std::string text(text_of(bytes_.first(size)));
    bytes_ = bytes_.subspan(size);
    return text;
  }

 private:
  void need(size_t size) const {
    if (bytes_.size() < size) fail(ErrorCode::data_loss, "a message of the store is cut short");
  }
  std::span<const std::byte> bytes_;
};

}  // namespace ductile::net
