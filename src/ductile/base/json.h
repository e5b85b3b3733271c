#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "ductile/base/error.h"

// The one way of JSON out of the process and into it. A test refuses the library's own dump() and
// parse() elsewhere: the first throws on text that is not UTF-8, the second builds values so deep
// that copying them ends the process.
namespace ductile {

// The text of a value: on one line, or indented. Bytes that are not UTF-8 (names of files may hold
// any) become U+FFFD, so that an error message always arrives.
std::string dump_json(const nlohmann::json& value, int indent = -1);
std::string dump_json(const nlohmann::ordered_json& value, int indent = -1);

// The same for what must be read back as it is, such as the names of tensors: throws
// invalid_argument, beginning with `what`, where some text is not UTF-8.
std::string dump_json_exactly(const nlohmann::json& value, std::string_view what);

// Deeper texts are none that we write; each level of a value costs stack when it is copied.
inline constexpr int kMaxJsonDepth = 200;

// The deepest nesting of arrays and objects in a JSON text, found without parsing.
int json_depth(std::string_view text);

// The value, or a discarded one for what is not JSON or too deep. `callback` as the library's; J
// may be nlohmann::ordered_json.
template <class J = nlohmann::json>
J parse_json(std::string_view text, const typename J::parser_callback_t& callback = nullptr) {
  if (json_depth(text) > kMaxJsonDepth) return J(J::value_t::discarded);
  return J::parse(text, callback, /*allow_exceptions=*/false);
}

// The value; throws `code`, naming `name`, the place and the reason.
nlohmann::json parse_json(std::string_view text, std::string_view name, ErrorCode code);

}  // namespace ductile
