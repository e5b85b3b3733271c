#include "ductile/base/json.h"

#include <algorithm>

namespace ductile {
namespace {

using Json = nlohmann::json;

template <class J>
std::string text_of(const J& value, int indent) {
  return value.dump(indent, ' ', false, J::error_handler_t::replace);
}

}  // namespace

std::string dump_json(const Json& value, int indent) { return text_of(value, indent); }

std::string dump_json(const nlohmann::ordered_json& value, int indent) {
  return text_of(value, indent);
}

std::string dump_json_exactly(const Json& value, std::string_view what) {
  try {
    return value.dump();
  } catch (const Json::exception& e) {
    fail(ErrorCode::invalid_argument, "{} is not UTF-8 text: {}", what, e.what());
  }
}

int json_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

Json parse_json(std::string_view text, std::string_view name, ErrorCode code) {
  if (const int depth = json_depth(text); depth > kMaxJsonDepth) {
    fail(code, "{}: JSON nested {} deep, at most {} is accepted", name, depth, kMaxJsonDepth);
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    std::string_view why = e.what();  // "[json.exception.parse_error.101] parse error at ..."
    if (const size_t end = why.find("] "); end != std::string_view::npos)
      why.remove_prefix(end + 2);
    fail(code, "{}: not JSON: {}", name, why);
  }
}

}  // namespace ductile
