#pragma once

#include <string>
#include <string_view>

#include <toml++/toml.h>

#include "ductile/base/error.h"

// For modules that link toml++; not installed.
namespace ductile {

// Throws invalid_argument "name:line: ..." if a key has more parts, or brackets are nested deeper,
// than kMaxTomlDepth: toml++ builds and destroys a table for each level by recursion.
inline constexpr int kMaxTomlDepth = 16;
void check_toml_depth(std::string_view text, std::string_view name);

// Parses TOML text; all modules use this function. Throws invalid_argument "name:line: what is
// wrong".
inline toml::table parse_toml(std::string_view text, std::string_view name) {
  check_toml_depth(text, name);
  try {
    return toml::parse(text, std::string(name));
  } catch (const toml::parse_error& e) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    const bool is_json = first != std::string_view::npos && text[first] == '{';
    fail(ErrorCode::invalid_argument, "{}:{}: {}{}", name, e.source().begin.line, e.description(),
         is_json ? "; this is JSON, and what is read here is TOML" : "");
  }
}

}  // namespace ductile
