#include "ductile/minima/sharpness.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/minima/vectors.h"

namespace ductile::minima {
namespace {

using Vector = std::vector<float>;

constexpr uint64_t kStartStream = 1, kSignStream = 2;

// The coordinates y in which the box is given.
class Coordinates {
 public:
  virtual ~Coordinates() = default;
  virtual size_t size() const = 0;
  virtual Vector of_place() const = 0;                           // A^+ x
  virtual void place(const Vector& y, Vector& out) const = 0;    // x + A y
  virtual void pull(const Vector& from, Vector& out) const = 0;  // A' from
};

class AllWeights final : public Coordinates {
 public:
  explicit AllWeights(std::span<const float> x) : x_(x) {}

  size_t size() const override { return x_.size(); }
  Vector of_place() const override { return {x_.begin(), x_.end()}; }
  void place(const Vector& y, Vector& out) const override {
    for (size_t i = 0; i < y.size(); ++i) out[i] = x_[i] + y[i];
  }
  void pull(const Vector& from, Vector& out) const override { out = from; }

 private:
  std::span<const float> x_;
};

// Columns of random signs, which are drawn again each time: they may be more than memory holds.
class Subspace final : public Coordinates {
 public:
  Subspace(std::span<const float> x, int64_t dimensions, uint64_t seed)
      : x_(x), dimensions_(static_cast<size_t>(dimensions)), key_(mix(seed, kSignStream)) {}

  size_t size() const override { return dimensions_; }

  // The least squares solution of A c = x by conjugate gradients on A'A c = A'x. A'A is nearly a
  // multiple of the identity if the columns are few, so few rounds are enough.
  Vector of_place() const override {
    Vector c(dimensions_), residual(dimensions_), way, image(dimensions_), wide(x_.size());
    pull(Vector(x_.begin(), x_.end()), residual);
    way = residual;
    double square = dot(residual, residual);
    const double enough = square * 1e-12;
    for (size_t round = 0; round < 2 * dimensions_ && square > enough; ++round) {
      push(way, wide);
      pull(wide, image);
      const double length = square / dot(way, image);
      add(c, length, way);
      add(residual, -length, image);
      const double next = dot(residual, residual);
      for (size_t i = 0; i < way.size(); ++i)
        way[i] = static_cast<float>(residual[i] + next / square * static_cast<double>(way[i]));
      square = next;
    }
    return c;
  }
  void place(const Vector& y, Vector& out) const override {
    push(y, out);
    for (size_t i = 0; i < out.size(); ++i) out[i] += x_[i];
  }
  void pull(const Vector& from, Vector& out) const override {
    for (size_t j = 0; j < dimensions_; ++j) {
      double sum = 0;
      signs(j, [&](size_t i, float sign) { sum += static_cast<double>(sign * from[i]); });
      out[j] = static_cast<float>(sum);
    }
  }

 private:
  void push(const Vector& y, Vector& out) const {  // A y
    std::vector<double> sums(x_.size());
    for (size_t j = 0; j < dimensions_; ++j)
      signs(j, [&](size_t i, float sign) { sums[i] += static_cast<double>(sign * y[j]); });
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(sums[i]);
  }
  template <class Visit>
  void signs(size_t column, const Visit& visit) const {
    std::array<uint32_t, 4> block{};
    for (size_t i = 0; i < x_.size(); ++i) {
      if (i % 128 == 0)
        block = philox(key_, {static_cast<uint32_t>(i / 128), static_cast<uint32_t>(column), 0, 0});
      visit(i, (block[i % 128 / 32] >> (i % 32) & 1) != 0 ? 1.0f : -1.0f);
    }
  }

  std::span<const float> x_;
  size_t dimensions_;
  uint64_t key_;
};

class Ascent {
 public:
  Ascent(Surface& surface, const Coordinates& coordinates, double epsilon)
      : surface_(surface), coordinates_(coordinates), side_(coordinates.of_place()) {
    for (float& side : side_)
      side = static_cast<float>(epsilon * (std::abs(static_cast<double>(side)) + 1));
    at_.resize(surface.weights().size());
    wide_.resize(at_.size());
  }

  Vector random_point(Rng rng) const {
    Vector y(side_);
    for (float& value : y) value *= 2 * rng.uniform() - 1;
    return y;
  }

  // Climbs from y and calls found(step, loss) with each loss that it meets.
  template <class Found>
  void climb(Vector y, int64_t steps, const Found& found) {
    Vector slope(y.size()), next(y.size()), next_slope(y.size());
    double loss = look(y, slope);
    found(0, loss);
    float share = 2;  // from one corner to the opposite one
    for (int64_t step = 1; step < steps && std::isfinite(loss); ++step) {
      for (size_t i = 0; i < y.size(); ++i) {
        const float sign = slope[i] > 0 ? 1.0f : slope[i] < 0 ? -1.0f : 0.0f;
        next[i] = std::clamp(y[i] + share * sign * side_[i], -side_[i], side_[i]);
      }
      const double next_loss = look(next, next_slope);
      found(step, next_loss);
      if (next_loss <= loss) {
        share /= 2;
        continue;
      }
      loss = next_loss;
      std::swap(y, next);
      std::swap(slope, next_slope);
    }
  }

 private:
  double look(const Vector& y, Vector& slope) {
    coordinates_.place(y, at_);
    const double loss = surface_.gradient(at_, wide_);
    coordinates_.pull(wide_, slope);
    return std::isnan(loss) ? std::numeric_limits<double>::infinity() : loss;
  }

  Surface& surface_;
  const Coordinates& coordinates_;
  Vector side_, at_, wide_;
};

}  // namespace

Sharpness sharpness(Surface& surface, double loss, const SharpnessOptions& options) {
  const std::span<const float> x = surface.weights();
  DUCTILE_CHECK(options.starts > 0 && options.steps > 0);
  if (options.subspace > static_cast<int64_t>(x.size()))
    fail(ErrorCode::invalid_argument,
         "a subspace of {} dimensions was asked for, and the model has {} weights",
         options.subspace, x.size());
  std::unique_ptr<Coordinates> coordinates;
  if (options.subspace > 0) {
    coordinates = std::make_unique<Subspace>(x, options.subspace, options.seed);
  } else {
    coordinates = std::make_unique<AllWeights>(x);
  }
  Ascent ascent(surface, *coordinates, options.epsilon);
  double highest = loss, halfway = loss;
  for (int64_t start = 0; start < options.starts; ++start) {
    Vector y(coordinates->size());
    if (start > 0) y = ascent.random_point(Rng(options.seed, kStartStream, start));
    ascent.climb(std::move(y), options.steps, [&](int64_t step, double found) {
      highest = std::max(highest, found);
      if (step < (options.steps + 1) / 2) halfway = std::max(halfway, found);
    });
  }
  const auto measure = [&](double top) { return 100 * (top - loss) / (1 + loss); };
  return {options.epsilon, measure(highest), measure(halfway), highest};
}

}  // namespace ductile::minima
