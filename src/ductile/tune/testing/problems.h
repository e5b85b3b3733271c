#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ductile/base/json_value.h"
#include "ductile/tune/searcher.h"

// For tests: spaces, functions with a known optimum, and JSON made wrong in every place.
namespace ductile::tune::testing {

inline Space cube(size_t dims) {
  std::vector<Dimension> out;
  for (size_t d = 0; d < dims; ++d) out.push_back({"x" + std::to_string(d)});
  return Space(std::move(out));
}

// The largest distance in any coordinate from 0.3: for n uniform draws the least of it lies above r
// with probability (1 - (2 r)^dims)^n.
inline double far_from_optimum(const Setting& setting) {
  double most = 0;
  for (const double x : setting) most = std::max(most, std::abs(x - 0.3));
  return most;
}
inline double median_of_random(size_t dims, int n) {
  return 0.5 * std::pow(1 - std::pow(0.5, 1.0 / n), 1.0 / static_cast<double>(dims));
}

// The value with each of its parts in turn replaced by something else, or left out.
inline std::vector<nlohmann::json> damaged(const nlohmann::json& good) {
  std::vector<nlohmann::json> out;
  const std::vector<nlohmann::json> wrong = {
      nullptr, -1, 1e300, "x", nlohmann::json::array(), nlohmann::json::object(), {1, 2, 3}};
  for (const nlohmann::json& w : wrong) out.push_back(w);
  if (good.is_object()) {
    for (const auto& [key, value] : good.items()) {
      nlohmann::json without = good;
      without.erase(key);
      out.push_back(without);
      for (const nlohmann::json& inner : damaged(value)) {
        nlohmann::json with = good;
        with[key] = inner;
        out.push_back(std::move(with));
      }
    }
  } else if (good.is_array() && !good.empty()) {
    for (const nlohmann::json& inner : damaged(good.back())) {
      nlohmann::json with = good;
      with.back() = inner;
      out.push_back(std::move(with));
    }
  }
  return out;
}

}  // namespace ductile::tune::testing
