#include <algorithm>
#include <cmath>
#include <numbers>

#include "ductile/tune/searchers_impl.h"
#include "ductile/tune/tpe.h"

namespace ductile::tune {
namespace {

constexpr size_t kTpeStartup = 10;
constexpr size_t kTpeCandidates = 64;

class TpeSearcher final : public Searcher {
 public:
  using Searcher::Searcher;

 private:
  Pick pick(Rng& rng, std::span<const int64_t>) override {
    const size_t enough = startup(kTpeStartup);
    const std::vector<Scored> scores = scores_of(trials(), enough);
    if (scores.size() < enough) return {.fresh = random_candidate(rng)};
    const auto [good, rest] = split(scores);
    const size_t most =
        options().candidates > 0 ? static_cast<size_t>(options().candidates) : kTpeCandidates;
    std::vector<Candidate> from;
    if (space().listed().empty()) {
      for (size_t i = 0; i < most; ++i) {
        Setting setting = space().at(good.draw(rng));
        if (space().count() == 0) from.push_back({std::move(setting)});
      }
    }
    // A finite space is drawn from without what was tried.
    if (from.empty()) from = candidates(rng, std::max(most, kListed), {});
    const Candidate* best = nullptr;
    double best_ratio = 0;
    for (const Candidate& c : from) {
      const Point point = space().to_point(c.setting);
      const double ratio = good.log_density(point) - rest.log_density(point);
      if (best != nullptr && !(ratio > best_ratio)) continue;
      best = &c;
      best_ratio = ratio;
    }
    if (best == nullptr) return {.fresh = random_candidate(rng)};
    return {.fresh = *best};
  }

  static constexpr size_t kListed = 500;

  // A tenth of the trials, at most 25, is good.
  std::pair<ParzenDensity, ParzenDensity> split(std::vector<Scored> scores) const {
    std::stable_sort(scores.begin(), scores.end(),
                     [](const Scored& a, const Scored& b) { return a.value < b.value; });
    const size_t num_good = std::min<size_t>(25, (scores.size() + 9) / 10);
    std::vector<Point> good, rest;
    for (size_t i = 0; i < scores.size(); ++i) {
      (i < num_good ? good : rest).push_back(space().to_point(trials()[scores[i].trial].setting));
    }
    return {ParzenDensity(space(), std::move(good)), ParzenDensity(space(), std::move(rest))};
  }
};

}  // namespace

ParzenDensity::ParzenDensity(const Space& space, std::vector<Point> points)
    : points_(std::move(points)) {
  const double n = static_cast<double>(points_.size()), dims = static_cast<double>(space.size());
  // Scott's rule for the unit cube, not narrower than the points are dense (Optuna's "magic clip",
  // which counts the prior as one of the kernels).
  width_ = std::max(0.2 * std::pow(std::max(n, 1.0), -1 / (dims + 4)), 1 / std::min(100.0, 2 + n));
  for (const Dimension& d : space.dimensions())
    choices_.push_back(d.kind == Kind::choice ? static_cast<int>(d.choices.size()) : 0);
  points_.push_back(Point(space.size(), 0.5));
  for (size_t i = 0; i < points_.size(); ++i)
    log_scales_.push_back(log_scale(points_[i], i + 1 < points_.size() ? width_ : 1));
}

double ParzenDensity::log_scale(const Point& center, double width) const {
  double sum = 0;
  for (size_t d = 0; d < center.size(); ++d) {
    if (choices_[d] > 0) continue;
    const double inside = normal_cdf((1 - center[d]) / width) - normal_cdf(-center[d] / width);
    sum -= std::log(width * inside * std::sqrt(2 * std::numbers::pi));
  }
  return sum;
}

double ParzenDensity::log_kernel(const Point& center, double width, const Point& x) const {
  double sum = 0;
  for (size_t d = 0; d < x.size(); ++d) {
    if (choices_[d] == 0) {
      const double z = (x[d] - center[d]) / width;
      sum -= 0.5 * z * z;
      continue;
    }
    const double k = choices_[d], shared = width / k;  // of the weight, what all choices share
    const bool is_same = width < 1 && std::floor(center[d] * k) == std::floor(x[d] * k);
    sum += std::log(is_same ? 1 - width + shared : shared);
  }
  return sum;
}

double ParzenDensity::log_density(const Point& x) const {
  double most = -1e300;
  std::vector<double> logs(points_.size());
  for (size_t i = 0; i < points_.size(); ++i) {
    logs[i] = log_scales_[i] + log_kernel(points_[i], i + 1 < points_.size() ? width_ : 1, x);
    most = std::max(most, logs[i]);
  }
  double total = 0;
  for (const double l : logs) total += std::exp(l - most);
  return most + std::log(total / static_cast<double>(logs.size()));
}

Point ParzenDensity::draw(Rng& rng) const {
  const size_t at = rng.below(static_cast<uint32_t>(points_.size()));
  const double width = at + 1 < points_.size() ? width_ : 1;
  Point out(choices_.size());
  for (size_t d = 0; d < out.size(); ++d) {
    const double center = points_[at][d];
    if (choices_[d] > 0) {
      out[d] = rng.uniform(0, 1) < width ? rng.uniform(0, 1) : center;
      continue;
    }
    // The quantile of the truncated normal distribution.
    const double low = normal_cdf(-center / width), high = normal_cdf((1 - center) / width);
    out[d] = std::clamp(center + width * normal_quantile(rng.uniform(low, high)), 0.0, 1.0);
  }
  return out;
}

std::unique_ptr<Searcher> make_tpe(const Space& space, const SearcherOptions& options) {
  return std::make_unique<TpeSearcher>("tpe", space, options);
}

}  // namespace ductile::tune
