#pragma once

#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/options.h"
#include "ductile/graph/graph.h"

namespace ductile::graph {

// No figure of a graph is negative or absurd. Refused here, it is named as its file names it:
// `what`.
inline double in_range(double value, std::string_view what) {
  if (!(value >= 0 && value <= kMaxBytes)) {
    fail(ErrorCode::invalid_argument, "{} is {}, it must be from 0 to {}", what, value, kMaxBytes);
  }
  return value;
}

// Reads fields of one JSON object, with errors that name `where` (the operator, the edge) and the
// field. Holds references: for use on the stack.
class Fields {
 public:
  Fields(const nlohmann::json& value, std::string where) : value_(value), where_(std::move(where)) {
    if (!value.is_object()) {
      fail(ErrorCode::invalid_argument, "{}: an object is wanted, not {}", where_,
           value.type_name());
    }
  }

  const std::string& where() const { return where_; }
  bool has(const char* key) const { return value_.contains(key); }

  const nlohmann::json& at(const char* key) const {
    const auto found = value_.find(key);
    if (found == value_.end()) fail(ErrorCode::invalid_argument, "{}: {} is missing", where_, key);
    return *found;
  }

  double number(const char* key) const { return as_number(at(key), key); }
  double number(const char* key, double otherwise) const {
    return has(key) ? number(key) : otherwise;
  }
  double as_number(const nlohmann::json& v, const char* key) const {
    if (!v.is_number()) wrong(key, "a number", v);
    const double d = v.get<double>();
    if (!(d >= 0 && d <= kMaxBytes)) in_range(d, fmt::format("{}: {}", where_, key));
    return d;
  }

  int64_t integer(const char* key, int64_t low, int64_t high) const {
    return as_integer(at(key), key, low, high);
  }
  int64_t integer_or(const char* key, int64_t otherwise, int64_t low, int64_t high) const {
    return has(key) ? integer(key, low, high) : otherwise;
  }
  int64_t as_integer(const nlohmann::json& v, const char* key, int64_t low, int64_t high) const {
    if (!v.is_number()) wrong(key, "a whole number", v);
    const double d = v.get<double>();
    if (d != std::floor(d)) wrong(key, "a whole number", v);
    if (!(d >= static_cast<double>(low) && d <= static_cast<double>(high))) {
      fail(ErrorCode::invalid_argument, "{}: {} is {}, it must be from {} to {}", where_, key,
           dump_json(v), low, high);
    }
    return static_cast<int64_t>(d);
  }

  bool boolean(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    const nlohmann::json& v = at(key);
    if (!v.is_boolean()) wrong(key, "true or false", v);
    return v.get<bool>();
  }

  bool flag(const char* key) const {  // true, false, 1 or 0; absent: false
    if (has(key) && at(key).is_boolean()) return at(key).get<bool>();
    return integer_or(key, 0, 0, 1) != 0;
  }

  std::string text(const char* key) const {
    const nlohmann::json& v = at(key);
    if (!v.is_string()) wrong(key, "text", v);
    return v.get<std::string>();
  }
  std::string text(const char* key, std::string otherwise) const {
    return has(key) ? text(key) : std::move(otherwise);
  }

  const nlohmann::json& array(const char* key) const {
    const nlohmann::json& v = at(key);
    if (!v.is_array()) wrong(key, "a list", v);
    return v;
  }

  // Refuses keys not in `known`, naming the nearest.
  void only(std::initializer_list<const char*> known) const {
    for (const auto& [key, v] : value_.items()) {
      bool found = false;
      for (const char* k : known) found = found || key == k;
      if (found) continue;
      const std::vector<std::string> names(known.begin(), known.end());
      const auto nearest = nearest_name(key.substr(0, 80), names);
      fail(ErrorCode::invalid_argument, "{}: unknown field \"{}\"{}", where_, shorten(key),
           nearest ? fmt::format("; did you mean \"{}\"?", *nearest) : "");
    }
  }

  [[noreturn]] void wrong(const char* key, const char* wanted, const nlohmann::json& v) const {
    const bool is_plain = !v.is_object() && !v.is_array();
    fail(ErrorCode::invalid_argument, "{}: {} must be {}, it is {}", where_, key, wanted,
         is_plain ? shorten(dump_json(v)) : v.type_name());
  }

  static std::string shorten(std::string text) {
    if (text.size() > 80) text = text.substr(0, 77) + "...";
    return text;
  }

 private:
  const nlohmann::json& value_;
  std::string where_;
};

}  // namespace ductile::graph
