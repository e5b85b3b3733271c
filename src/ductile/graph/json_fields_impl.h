#pragma once

#include <string>
#include <string_view>

#include "ductile/base/json_fields.h"
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

// The fields of an object whose numbers are figures of a graph.
class Fields : public JsonFields {
 public:
  using JsonFields::JsonFields;

  double number(const char* key) const { return as_number(at(key), key); }
  double number(const char* key, double otherwise) const {
    return has(key) ? number(key) : otherwise;
  }
  double as_number(const nlohmann::json& v, const char* key) const {
    return JsonFields::as_number(v, key, 0, kMaxBytes);
  }
  bool flag(const char* key) const {  // true, false, 1 or 0; absent: false
    if (has(key) && at(key).is_boolean()) return at(key).get<bool>();
    return integer_or(key, 0, 0, 1) != 0;
  }
};

}  // namespace ductile::graph
