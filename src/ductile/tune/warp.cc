#include "ductile/tune/warp.h"

#include <algorithm>
#include <cmath>

#include "ductile/tune/searchers_impl.h"

namespace ductile::tune {

Warp::Warp(std::span<const double> values) {
  std::vector<double> finite;
  for (const double v : values)
    if (std::isfinite(v)) finite.push_back(v);
  if (finite.empty()) return;
  std::sort(finite.begin(), finite.end());
  sorted_ = std::move(finite);
  const double low = sorted_.front(), median = sorted_[sorted_.size() / 2];
  // Values that are all alike but for rounding are not spread out.
  scale_ = std::max({median / 2 - low / 2, 1e-9 * std::abs(low), 1e-300});
  const double n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double v : values) sum += quantile(v);
  mean_ = sum / n;
  for (const double v : values) squares += (quantile(v) - mean_) * (quantile(v) - mean_);
  if (squares > 1e-6 * n) deviation_ = std::sqrt(squares / n);
}

double Warp::quantile(double value) const {
  const double v = std::isfinite(value) ? std::min(value, sorted_.back()) : sorted_.back();
  const auto below = std::lower_bound(sorted_.begin(), sorted_.end(), v) - sorted_.begin();
  const auto until = std::upper_bound(sorted_.begin(), sorted_.end(), v) - sorted_.begin();
  const double n = static_cast<double>(sorted_.size());
  const double place = static_cast<double>(below + until) / 2 / n;
  const double out = normal_quantile(std::clamp(place, 0.5 / n, 1 - 0.5 / n));
  if (v >= sorted_.front()) return out;
  // At most as far again as a normal variable goes: one value cannot end the search.
  return out - std::min(3.0, (sorted_.front() / 2 - v / 2) / scale_);
}

}  // namespace ductile::tune
