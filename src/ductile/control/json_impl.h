#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>

#include "ductile/base/json_fields.h"

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

}  // namespace ductile::control
