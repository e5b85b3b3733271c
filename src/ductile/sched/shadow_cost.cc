#include "ductile/sched/shadow_cost.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace ductile::sched {

void keep_concave(std::vector<CurvePoint>& points) {
  std::sort(points.begin(), points.end(), [](const CurvePoint& a, const CurvePoint& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.rate > b.rate;
  });
  size_t end = 0;
  const auto slope = [&](size_t last, const CurvePoint& p) {
    const CurvePoint from = last > 0 ? points[last - 1] : CurvePoint{};
    return p.cost > from.cost ? (p.rate - from.rate) / (p.cost - from.cost) : 0;
  };
  for (const CurvePoint p : points) {
    if (!(p.rate > 0) || !(p.cost > 0)) continue;
    if (end > 0 && p.rate <= points[end - 1].rate) continue;
    while (end > 0 && slope(end, p) >= slope(end - 1, points[end - 1])) --end;
    points[end++] = p;
  }
  points.resize(end);
}

namespace {
constexpr int kGrid = 128;  // prices tried: none, and geometric steps of about 12 %
}

std::vector<double> shadow_costs(std::vector<SizedJob> jobs, std::span<const CurvePoint> points,
                                 double capacity, int num_jobs, double standing) {
  std::vector<double> worth(static_cast<size_t>(num_jobs), 0.0);
  if (jobs.empty() || !(capacity > 0)) return worth;
  // Of equal sizes, the first is the one that is to end first.
  std::stable_sort(jobs.begin(), jobs.end(), [](const SizedJob& a, const SizedJob& b) {
    return a.size != b.size ? a.size > b.size : a.job > b.job;
  });
  double count = 0;
  for (const SizedJob& j : jobs) count += j.share;

  // best[g]: capacity at price g plus what the jobs so far gain from it; the least over g is the
  // most that they can be worth together.
  std::array<double, kGrid> price{};
  std::array<double, kGrid> best{};
  const double high = std::max(count, 1.0) / capacity;
  const double low = high * 1e-6;
  for (int g = 1; g < kGrid; ++g) {
    const auto i = static_cast<size_t>(g);
    price[i] = low * std::pow(high / low, (g - 1) / (kGrid - 2.0));
    best[i] = std::max(price[i] * capacity, standing);
  }
  best[0] = standing;
  double alive = standing;
  for (const SizedJob& j : jobs) {
    alive += j.share;
    const CurvePoint* curve = points.data() + j.curve_begin;
    const int n = j.curve_end - j.curve_begin;
    if (n == 0) continue;
    // The least w at which the total reaches `alive` at every price. The best corner moves little
    // from one price to the next, and there is one minimum over the corners.
    double w = 0;
    int k = n - 1;
    for (size_t g = 0; g < kGrid; ++g) {
      const double missing = (alive - best[g]) / j.share;
      if (missing <= 0) continue;
      const auto least = [&](int i) {
        return (missing + price[g] * curve[i].cost) / curve[i].rate;
      };
      double here = least(k);
      for (double next; k > 0 && (next = least(k - 1)) <= here; here = next) --k;
      for (double next; k + 1 < n && (next = least(k + 1)) < here; here = next) ++k;
      w = std::max(w, here);
    }
    if (w <= 0) continue;
    worth[static_cast<size_t>(j.job)] += j.share * w;
    k = n - 1;
    for (size_t g = 0; g < kGrid; ++g) {
      const auto gain_at = [&](int i) { return w * curve[i].rate - price[g] * curve[i].cost; };
      double gain = gain_at(k);
      for (double next; k > 0 && (next = gain_at(k - 1)) >= gain; gain = next) --k;
      if (gain <= 0) break;
      best[g] += j.share * gain;
    }
  }
  return worth;
}

}  // namespace ductile::sched
