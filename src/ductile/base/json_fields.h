#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/table.h"

namespace ductile {

// Reads the fields of one JSON object that a stranger wrote, or that a disk may have altered. Every
// error is invalid_argument. It names where the object is ("report", "operator \"conv1\"", a file
// and line) and which field is missing, of another type, out of range, or not known. Holds a
// reference to the object, so it is for use on the stack.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) {
      fail(ErrorCode::invalid_argument, "{}: an object is wanted, not {}", where_,
           object.type_name());
    }
  }

  const std::string& where() const { return where_; }
  bool has(const char* key) const { return object_.contains(key); }

  const nlohmann::json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(ErrorCode::invalid_argument, "{}: {} is missing", where_, key);
    return *found;
  }
  const nlohmann::json& array(const char* key) const {
    const nlohmann::json& v = at(key);
    if (!v.is_array()) wrong(key, "a list", v);
    return v;
  }

  double number(const char* key, double low, double high) const {
    return as_number(at(key), key, low, high);
  }
  // An item of a list that stands under `key`.
  double as_number(const nlohmann::json& v, const char* key, double low, double high) const {
    if (!v.is_number()) wrong(key, "a number", v);
    const double d = v.get<double>();
    if (!(d >= low && d <= high)) {
      fail(ErrorCode::invalid_argument, "{}: {} is {}, it must be from {} to {}", where_, key, d,
           low, high);
    }
    return d;
  }

  // 3.0 is a whole number, too.
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
    return v.is_number_float() ? static_cast<int64_t>(d) : v.get<int64_t>();
  }

  bool boolean(const char* key) const {
    const nlohmann::json& v = at(key);
    if (!v.is_boolean()) wrong(key, "true or false", v);
    return v.get<bool>();
  }
  bool boolean(const char* key, bool otherwise) const {
    return has(key) ? boolean(key) : otherwise;
  }

  std::string text(const char* key) const {
    const nlohmann::json& v = at(key);
    if (!v.is_string()) wrong(key, "text", v);
    return v.get<std::string>();
  }
  std::string text(const char* key, std::string otherwise) const {
    return has(key) ? text(key) : std::move(otherwise);
  }

  // Reads a field that Ductile wrote itself, which has exactly that type.
  void read(const char* key, bool& value) const { value = boolean(key); }
  void read(const char* key, std::string& value) const { value = text(key); }
  void read(const char* key, uint64_t& value) const {
    if (!at(key).is_number_unsigned()) wrong(key, "a whole number from 0 on", at(key));
    value = at(key).get<uint64_t>();
  }
  void read(const char* key, int64_t& value) const {
    const nlohmann::json& v = at(key);
    if (!v.is_number_integer() ||
        (v.is_number_unsigned() && v.get<uint64_t>() > uint64_t{INT64_MAX}))
      wrong(key, "a whole number", v);
    value = v.get<int64_t>();
  }
  // An enumerator by its word: `words` are pairs of both.
  template <class E, class Words>
  void read(const char* key, E& value, const Words& words) const {
    const std::string word = text(key);
    for (const auto& [e, known] : words) {
      if (known == word) {
        value = e;
        return;
      }
    }
    std::vector<std::string> all;
    for (const auto& [e, known] : words) all.emplace_back(known);
    fail_unknown_name(fmt::format("{}: {} =", where_, key), word, all);
  }

  // Refuses fields that are not `known`, naming the nearest.
  void only(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, v] : object_.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      fail_unknown_name(where_ + ": field", key,
                        std::vector<std::string>(known.begin(), known.end()));
    }
  }

  [[noreturn]] void wrong(const char* key, const char* wanted, const nlohmann::json& v) const {
    const bool is_plain = !v.is_object() && !v.is_array();
    fail(ErrorCode::invalid_argument, "{}: {} must be {}, it is {}", where_, key, wanted,
         is_plain ? shorten(dump_json(v)) : v.type_name());
  }

  // What a message shows of a text that may be long.
  static std::string shorten(std::string text) {
    if (text.size() > 80) text = text.substr(0, 77) + "...";
    return text;
  }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace ductile
