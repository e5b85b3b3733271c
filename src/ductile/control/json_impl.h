#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"

// Reading JSON that a stranger, or a disk, may have altered: every error names the key.
namespace ductile::control {

// An enumerator and its word, as a table of pairs.
template <class E>
using Words = std::initializer_list<std::pair<E, std::string_view>>;

template <class E>
std::string_view word_of(const Words<E>& words, E value) {
  for (const auto& [e, word] : words)
    if (e == value) return word;
  return "?";
}

class JsonReader {
 public:
  JsonReader(const nlohmann::json& object, std::string_view what) : object_(object), what_(what) {
    if (!object.is_object())
      fail(ErrorCode::invalid_argument, "{}: not a JSON object but {}", what, object.type_name());
  }

  const nlohmann::json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end())
      fail(ErrorCode::invalid_argument, "{}: the key '{}' is missing", what_, key);
    return *found;
  }
  const nlohmann::json& array(const char* key) const {
    const nlohmann::json& value = at(key);
    if (!value.is_array()) wrong(key, "a list");
    return value;
  }

  void read(const char* key, bool& value) const {
    if (!at(key).is_boolean()) wrong(key, "true or false");
    value = at(key).get<bool>();
  }
  void read(const char* key, std::string& value) const {
    if (!at(key).is_string()) wrong(key, "a text");
    value = at(key).get<std::string>();
  }
  void read(const char* key, uint64_t& value) const {
    if (!at(key).is_number_unsigned()) wrong(key, "a whole number from 0 on");
    value = at(key).get<uint64_t>();
  }
  void read(const char* key, int64_t& value) const {
    if (!at(key).is_number_integer() ||
        (at(key).is_number_unsigned() && at(key).get<uint64_t>() > uint64_t{INT64_MAX}))
      wrong(key, "a whole number");
    value = at(key).get<int64_t>();
  }
  template <class E>
  void read(const char* key, E& value, const Words<E>& words) const {
    std::string word;
    read(key, word);
    for (const auto& [e, known] : words) {
      if (known == word) {
        value = e;
        return;
      }
    }
    std::string all;
    for (const auto& [e, known] : words) all += fmt::format("{}{}", all.empty() ? "" : ", ", known);
    fail(ErrorCode::invalid_argument, "{}: '{}' is \"{}\", which is none of {}", what_, key, word,
         all);
  }

 private:
  [[noreturn]] void wrong(const char* key, std::string_view right) const {
    fail(ErrorCode::invalid_argument, "{}: '{}' is not {}", what_, key, right);
  }

  const nlohmann::json& object_;
  std::string_view what_;
};

}  // namespace ductile::control
