#include "ductile/minima/sharpness.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/minima/testing/surfaces.h"

namespace ductile::minima {
namespace {

using testing::Quadratic;
using testing::with_eigenvalues;

// Remembers how far from the weights it was asked.
class Watched : public Surface {
 public:
  explicit Watched(Surface& inner) : inner_(inner), farthest(inner.weights().size()) {}

  std::span<const float> weights() const override { return inner_.weights(); }
  std::span<const Filter> filters() const override { return inner_.filters(); }
  double loss(std::span<const float> at) override { return inner_.loss(at); }
  double gradient(std::span<const float> at, std::span<float> out) override {
    const double loss = inner_.gradient(at, out);
    highest = std::max(highest, loss);
    for (size_t i = 0; i < at.size(); ++i)
      farthest[i] = std::max(farthest[i], std::abs(static_cast<double>(at[i]) - weights()[i]));
    ++count;
    return loss;
  }

 private:
  Surface& inner_;

 public:
  std::vector<double> farthest;
  double highest = -std::numeric_limits<double>::infinity();
  int64_t count = 0;
};

double side(float w, double epsilon) { return epsilon * (std::abs(static_cast<double>(w)) + 1); }

// The loss at the corner of the box that the bits of `number` name.
double corner_loss(Surface& surface, double epsilon, uint64_t number) {
  const std::span<const float> x = surface.weights();
  std::vector<float> at(x.begin(), x.end());
  for (size_t i = 0; i < at.size(); ++i)
    at[i] +=
        static_cast<float>((number >> i & 1) != 0 ? side(x[i], epsilon) : -side(x[i], epsilon));
  return surface.loss(at);
}

TEST(Sharpness, OfOneWeightIsWhatPaperAndPencilGive) {
  Quadratic surface({{8}}, {3}, {3}, /*base=*/1.0);  // 1 + 4 (w - 3)^2, side 0.1 * 4
  const Sharpness got = sharpness(surface, 1.0, {.epsilon = 0.1});
  EXPECT_NEAR(got.loss, 1 + 4 * 0.16, 1e-6);
  EXPECT_NEAR(got.value, 100 * 0.64 / 2, 1e-4);
  EXPECT_EQ(got.epsilon, 0.1);
}

TEST(Sharpness, StaysInTheBoxAndCountsItsGradients) {
  Quadratic surface(with_eigenvalues({1, 5, -3, 90, 2}, 1), {0, -0.5, 2, 7, 1e-3f},
                    {0.1, 0, 0, 7, 0});
  for (const int64_t steps : {1, 2, 7, 30}) {
    Watched watched(surface);
    const double epsilon = 0.05;
    const Sharpness got = sharpness(watched, surface.loss(surface.weights()),
                                    {.epsilon = epsilon, .steps = steps, .starts = 3});
    EXPECT_EQ(watched.count, 3 * steps);
    EXPECT_EQ(std::max(watched.highest, surface.loss(surface.weights())), got.loss);
    for (size_t i = 0; i < 5; ++i)
      EXPECT_LE(watched.farthest[i], side(surface.weights()[i], epsilon) * (1 + 1e-5));
    EXPECT_GE(got.value, got.halfway);
    EXPECT_GE(got.halfway, 0);
  }
}

// The maximum of a convex quadratic lies in a corner: all of them are tried.
TEST(Sharpness, FindsTheHighestCornerOfSmallProblems) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    Rng rng(seed);
    std::vector<double> eigenvalues;
    std::vector<float> x;
    for (int i = 0; i < 10; ++i) {
      eigenvalues.push_back(std::exp(rng.uniform(-3, 4)));
      x.push_back(rng.normal());
    }
    Quadratic surface(with_eigenvalues(eigenvalues, seed), x, {x.begin(), x.end()});
    const double epsilon = 0.02;
    double highest = 0;
    for (uint64_t corner = 0; corner < 1024; ++corner)
      highest = std::max(highest, corner_loss(surface, epsilon, corner));
    const double loss = surface.loss(x);
    const Sharpness got = sharpness(surface, loss, {.epsilon = epsilon, .starts = 16});
    EXPECT_NEAR(got.loss - loss, highest - loss, 1e-3 * (highest - loss)) << seed;
  }
}

// As it is used, on a loss that is not convex.
TEST(Sharpness, IsAtLeastThatOfRandomPoints) {
  for (const uint64_t seed : {1, 2, 3}) {
    Rng rng(seed);
    std::vector<double> eigenvalues;
    std::vector<float> x;
    for (int i = 0; i < 40; ++i) {
      eigenvalues.push_back(rng.normal() * (i < 3 ? 100 : 1));
      x.push_back(rng.normal());
    }
    Quadratic surface(with_eigenvalues(eigenvalues, seed), x, {x.begin(), x.end()});
    const Sharpness got = sharpness(surface, surface.loss(x), {.epsilon = 0.01, .seed = seed});
    for (int i = 0; i < 1000; ++i) {
      std::vector<float> at = x;
      for (float& w : at) w += static_cast<float>(side(w, 0.01) * rng.uniform(-1, 1));
      EXPECT_LE(surface.loss(at), got.loss);
    }
    for (int i = 0; i < 1000; ++i) EXPECT_LE(corner_loss(surface, 0.01, rng.next64()), got.loss);
  }
}

class Trail : public Quadratic {
 public:
  using Quadratic::Quadratic;
  double gradient(std::span<const float> at, std::span<float> out) override {
    places.push_back(at[0]);
    return Quadratic::gradient(at, out);
  }
  std::vector<float> places;
};

TEST(Sharpness, TakesBackAStepThatDoesNotRaiseTheLoss) {
  Trail surface({{-2}}, {0}, {0.3});  // a hill with its top at 0.3; the side is 1
  sharpness(surface, surface.loss(surface.weights()), {.epsilon = 1, .steps = 9, .starts = 1});
  EXPECT_EQ(surface.places, (std::vector<float>{0, 1, 1, 0.5f, 0, 0.25f, 0.5f, 0.375f, 0.3125f}));
}

TEST(Sharpness, IsNeverBelowZero) {
  Quadratic surface({{-1, 0}, {0, -2}}, {1, 1}, {1, 1});  // a maximum
  EXPECT_EQ(sharpness(surface, 0.5, {}).value, 0);
}

TEST(Sharpness, GrowsWithTheCurvatureAndTheBox) {
  const auto of = [](double curvature, double epsilon) {
    Quadratic surface({{curvature, 0}, {0, 0.1}}, {1, 1}, {1, 1});
    return sharpness(surface, 0.5, {.epsilon = epsilon}).value;
  };
  EXPECT_GT(of(10, 1e-3), 5 * of(1, 1e-3));
  EXPECT_NEAR(of(10, 1e-3) / of(10, 5e-4), 4, 0.1);
}

// The box of a subspace: |y_i| <= epsilon (|(A^+ x)_i| + 1), seen through what it does to the loss.
TEST(Sharpness, OfASubspaceMovesAlongItsSignsAlone) {
  std::vector<float> x(300, 0.0f);
  const testing::Matrix unit = [] {
    testing::Matrix m(300, std::vector<double>(300));
    for (size_t i = 0; i < 300; ++i) m[i][i] = 1;
    return m;
  }();
  Quadratic surface(unit, x, std::vector<double>(300));
  Watched watched(surface);
  const double epsilon = 0.01;
  // At 0, A^+ x = 0 and each of the two coordinates moves every weight by at most epsilon.
  const Sharpness got = sharpness(watched, 0.5, {.epsilon = epsilon, .subspace = 2, .starts = 4});
  for (const double far : watched.farthest) EXPECT_LE(far, 2 * epsilon * (1 + 1e-5));
  // |A y|^2 / 2 = 300 epsilon^2 (1 + |cosine of the columns|) in the best corner.
  EXPECT_GE(got.loss - 0.5, 300 * epsilon * epsilon * (1 - 1e-4));
  EXPECT_LE(got.loss - 0.5, 2 * 300 * epsilon * epsilon);
}

TEST(Sharpness, OfASubspaceMeasuresTheBoxInItsOwnCoordinates) {
  // One column a: A^+ x = a.x / n. With x = 5 a the side is epsilon (5 + 1).
  std::vector<float> x(256, 0.0f);
  std::vector<double> zero(256);
  testing::Matrix unit(256, std::vector<double>(256));
  for (size_t i = 0; i < 256; ++i) unit[i][i] = 1;
  // The signs are found from where the ascent goes.
  std::vector<float> signs(256);
  {
    Quadratic surface(unit, x, zero);
    class Tell : public Watched {
     public:
      Tell(Surface& inner, std::vector<float>& signs) : Watched(inner), signs_(signs) {}
      double gradient(std::span<const float> at, std::span<float> out) override {
        for (size_t i = 0; i < at.size(); ++i)
          if (at[i] != 0) signs_[i] = at[i] > 0 ? 1.0f : -1.0f;
        return Watched::gradient(at, out);
      }

     private:
      std::vector<float>& signs_;
    } tell(surface, signs);
    sharpness(tell, 0.5, {.epsilon = 0.01, .subspace = 1, .starts = 2});
  }
  for (size_t i = 0; i < 256; ++i) {
    ASSERT_NE(signs[i], 0);
    x[i] = 5 * signs[i];
  }
  Quadratic surface(unit, x, {x.begin(), x.end()});
  Watched watched(surface);
  sharpness(watched, 0.5, {.epsilon = 0.01, .subspace = 1, .starts = 4});
  for (const double far : watched.farthest) EXPECT_NEAR(far, 0.01 * 6, 1e-4);
}

TEST(Sharpness, RefusesASubspaceThatIsLargerThanTheSpace) {
  Quadratic surface({{1}}, {1}, {1});
  try {
    sharpness(surface, 0.5, {.subspace = 2});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
  }
}

class Cliff : public Quadratic {
 public:
  using Quadratic::Quadratic;
  double gradient(std::span<const float> at, std::span<float> out) override {
    Quadratic::gradient(at, out);
    return at[0] > 1.0005f ? std::numeric_limits<double>::quiet_NaN() : loss(at);
  }
};

TEST(Sharpness, IsInfiniteWhereTheLossIsNotFiniteInTheBox) {
  Cliff surface({{2}}, {1}, {0.9});
  EXPECT_EQ(sharpness(surface, surface.loss(surface.weights()), {}).value,
            std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace ductile::minima
