#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"

// All JSON leaves and enters the process through these functions. A test refuses the library's own
// dump() and parse() elsewhere, because dump() throws on text that is not UTF-8, and parse() builds
// values so deep that copying them ends the process.
namespace ductile {

// The text of a value: on one line, or indented. Bytes that are not UTF-8 (names of files may hold
// any) become U+FFFD, so that an error message always arrives.
std::string dump_json(const nlohmann::json& value, int indent = -1);
std::string dump_json(const nlohmann::ordered_json& value, int indent = -1);

// The same for values that must be read back unchanged, such as the names of tensors. Throws
// invalid_argument, beginning with `what`, if some text is not UTF-8.
std::string dump_json_exactly(const nlohmann::json& value, std::string_view what);

// Ductile writes no deeper text. Each level of a value costs stack when the value is copied.
inline constexpr int kMaxJsonDepth = 200;

// The deepest nesting of arrays and objects in a JSON text, found without parsing.
int json_depth(std::string_view text);

// The value, or a discarded one if the text is not JSON or is too deep. `callback` is that of the
// library; J may be nlohmann::ordered_json.
template <class J = nlohmann::json>
J parse_json(std::string_view text, const typename J::parser_callback_t& callback = nullptr) {
  if (json_depth(text) > kMaxJsonDepth) return J(J::value_t::discarded);
  return J::parse(text, callback, /*allow_exceptions=*/false);
}

// The value; throws `code`, naming `name`, the place and the reason.
nlohmann::json parse_json(std::string_view text, std::string_view name, ErrorCode code);

}  // namespace ductile
