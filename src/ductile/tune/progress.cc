#include "ductile/tune/progress.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace ductile::tune {

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::diverged:
      return "diverged";
    case Verdict::unstable:
      return "unstable";
    case Verdict::converging:
      return "converging";
  }
  return "";
}

bool is_ten_times(double gain, double start) { return gain > 9 * std::abs(start); }

Progress progress_of(Observation start, std::span<const Observation> clocks) {
  Progress out;
  // First, because a value that is not finite passes every comparison.
  const bool is_finite = std::all_of(clocks.begin(), clocks.end(),
                                     [](const Observation& o) { return std::isfinite(o.value); });
  if (!is_finite || !std::isfinite(start.value)) {
    out.verdict = Verdict::diverged;
    return out;
  }
  if (clocks.empty()) return out;
  const size_t block = std::max<size_t>(1, clocks.size() / kProgressSamples);
  const size_t blocks = clocks.size() / block;
  double last = start.value;
  for (size_t b = 0; b < blocks; ++b) {
    const size_t from = b * block, to = b + 1 == blocks ? clocks.size() : from + block;
    double sum = 0;
    for (size_t i = from; i < to; ++i) sum += clocks[i].value;
    const double sample = sum / static_cast<double>(to - from);
    out.noise = std::max(out.noise, sample - last);
    last = sample;
  }
  out.gain = last - start.value;
  if (is_ten_times(out.gain, start.value)) {
    out.verdict = Verdict::diverged;
  } else {
    const bool is_steady = out.gain < 0 && out.noise <= 0.1 * std::abs(out.gain);
    out.verdict = is_steady ? Verdict::converging : Verdict::unstable;
  }
  const double slope = (out.gain + out.noise) / (clocks.back().budget - start.budget);
  if (out.verdict != Verdict::diverged && slope <= 0) out.slope = slope;
  return out;
}

bool has_settled(std::span<const double> slopes) {
  if (slopes.size() < 5) return false;
  std::vector<double> sorted(slopes.begin(), slopes.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted[0] < 0 && 1 - sorted[4] / sorted[0] < 0.1;
}

int64_t values_without_best(std::span<const double> values) {
  double best = std::numeric_limits<double>::infinity();
  int64_t count = 0;
  for (const double v : values) {
    count = v < best ? 0 : count + 1;
    best = std::min(best, v);
  }
  return count;
}

}  // namespace ductile::tune
