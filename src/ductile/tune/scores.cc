#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "ductile/tune/searchers_impl.h"

namespace ductile::tune {

std::vector<Scored> scores_of(const std::vector<Trial>& trials, size_t enough) {
  std::vector<double> reached;
  for (const Trial& t : trials)
    if (!t.seen.empty()) reached.push_back(t.budget());
  if (reached.empty()) return {};
  std::sort(reached.begin(), reached.end(), std::greater<>());
  const double budget = reached[std::min(std::max<size_t>(enough, 1), reached.size()) - 1];
  std::vector<Scored> out;
  for (size_t i = 0; i < trials.size(); ++i) {
    const Trial& t = trials[i];
    if (t.seen.empty()) continue;
    if (t.diverged && t.budget() <= budget) {
      out.push_back({static_cast<int64_t>(i), std::numeric_limits<double>::infinity()});
    } else if (t.budget() >= budget) {
      double best = std::numeric_limits<double>::infinity();
      for (const Observation& o : t.seen)
        if (o.budget <= budget && std::isfinite(o.value)) best = std::min(best, o.value);
      if (!std::isfinite(best)) best = t.seen.front().value;  // its first look came later
      out.push_back({static_cast<int64_t>(i), best});
    }
  }
  return out;
}

std::vector<double> normal_scores(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    return std::isfinite(values[i]) ? values[i] : std::numeric_limits<double>::infinity();
  };
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return key(a) < key(b) || (key(a) == key(b) && a < b); });
  std::vector<double> out(values.size());
  const double n = static_cast<double>(values.size());
  for (size_t from = 0; from < order.size();) {
    size_t to = from + 1;
    while (to < order.size() && key(order[to]) == key(order[from])) ++to;
    const double middle = (static_cast<double>(from) + static_cast<double>(to)) / 2;
    for (size_t i = from; i < to; ++i) out[order[i]] = normal_quantile(middle / n);
    from = to;
  }
  return out;
}

// P. J. Acklam's rational approximation.
double normal_quantile(double p) {
  constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                          1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                          6.680131188771972e+01, -1.328068155288572e+01};
  constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                          -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                          3.754408661907416e+00};
  constexpr double kTail = 0.02425;
  if (p > 1 - kTail) return -normal_quantile(1 - p);
  if (p < kTail) {
    if (!(p > 0)) return -std::numeric_limits<double>::infinity();
    const double q = std::sqrt(-2 * std::log(p));
    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  }
  const double q = p - 0.5, r = q * q;
  return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
         (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

// EI = s * (phi(u) + u Phi(u)) with u = (best - mean) / s. Far below, where that cancels to
// nothing, the first terms of its asymptotic series: phi(u) / u^2 * (1 - 3 / u^2).
double log_expected_improvement(double mean, double deviation, double best) {
  if (!(deviation > 0)) return best > mean ? std::log(best - mean) : -1e300;
  const double u = (best - mean) / deviation;
  const double log_phi = -0.5 * u * u - 0.5 * std::log(2 * std::numbers::pi);
  if (u < -10) return std::log(deviation) + log_phi - 2 * std::log(-u) + std::log1p(-3 / (u * u));
  return std::log(deviation) + std::log(std::exp(log_phi) + u * normal_cdf(u));
}

}  // namespace ductile::tune
