// The models of the searchers against slow, obvious twins.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/json.h"
#include "ductile/tune/cholesky.h"
#include "ductile/tune/curve_model.h"
#include "ductile/tune/gp.h"
#include "ductile/tune/searchers_impl.h"
#include "ductile/tune/testing/problems.h"
#include "ductile/tune/tpe.h"
#include "ductile/tune/warp.h"

namespace ductile::tune {
namespace {

using Exact = long double;
using Matrix = std::vector<std::vector<Exact>>;

// Gauss-Jordan with row exchanges; also gives the logarithm of the determinant.
Matrix inverse(Matrix a, Exact* log_determinant = nullptr) {
  const size_t n = a.size();
  Matrix out(n, std::vector<Exact>(n, 0));
  for (size_t i = 0; i < n; ++i) out[i][i] = 1;
  Exact log_det = 0;
  for (size_t c = 0; c < n; ++c) {
    size_t pivot = c;
    for (size_t r = c; r < n; ++r)
      if (std::abs(a[r][c]) > std::abs(a[pivot][c])) pivot = r;
    std::swap(a[c], a[pivot]);
    std::swap(out[c], out[pivot]);
    log_det += std::log(std::abs(a[c][c]));
    const Exact by = a[c][c];
    for (size_t k = 0; k < n; ++k) {
      a[c][k] /= by;
      out[c][k] /= by;
    }
    for (size_t r = 0; r < n; ++r) {
      if (r == c) continue;
      const Exact times = a[r][c];
      for (size_t k = 0; k < n; ++k) {
        a[r][k] -= times * a[c][k];
        out[r][k] -= times * out[c][k];
      }
    }
  }
  if (log_determinant != nullptr) *log_determinant = log_det;
  return out;
}

struct Twin {
  Exact mean, variance, log_likelihood;
};
// mean = k' A^-1 y, variance = k(x, x) - k' A^-1 k.
Twin naive(const Matrix& a, const std::vector<Exact>& k, Exact prior,
           const std::vector<double>& y) {
  Exact log_det = 0;
  const Matrix inv = inverse(a, &log_det);
  Twin out{0, prior, 0};
  const size_t n = y.size();
  Exact fit = 0;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      out.mean += k[i] * inv[i][j] * y[j];
      out.variance -= k[i] * inv[i][j] * k[j];
      fit += y[i] * inv[i][j] * y[j];
    }
  }
  out.log_likelihood =
      -0.5L * (fit + log_det + static_cast<Exact>(n) * std::log(2 * std::numbers::pi_v<Exact>));
  return out;
}

Exact exact_matern(Exact r) {
  const Exact s = std::sqrt(Exact{5}) * r;
  return (1 + s + s * s / 3) * std::exp(-s);
}

Point random_point(Rng& rng, size_t dims) {
  Point out(dims);
  for (double& u : out) u = rng.uniform(0, 1);
  return out;
}

TEST(CholeskyTest, ReproducesItsMatrixAndSolvesLikeAnInverse) {
  Rng rng(7);
  const size_t n = 40;
  Matrix a(n, std::vector<Exact>(n));
  std::vector<Point> rows;
  for (size_t i = 0; i < n; ++i) rows.push_back(random_point(rng, n));
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j)
      a[i][j] = dot(rows[i].data(), rows[j].data(), n) + (i == j ? 0.5 : 0);
  Cholesky factor;
  std::vector<double> row, grown;
  const Point b = random_point(rng, n);
  for (size_t i = 0; i < n; ++i) {
    row.clear();
    for (size_t j = 0; j < i; ++j) row.push_back(static_cast<double>(a[i][j]));
    factor.append(row, static_cast<double>(a[i][i]));
    if (i % 7 == 0)
      factor.extend_forward(std::span(b).subspan(grown.size(), i + 1 - grown.size()), grown);
  }
  factor.extend_forward(std::span(b).subspan(grown.size()), grown);
  EXPECT_EQ(grown, factor.forward(b));  // whenever it grew, the same bits
  Exact log_det = 0;
  const Matrix inv = inverse(a, &log_det);
  const std::vector<double> x = factor.backward(factor.forward(b));
  for (size_t i = 0; i < n; ++i) {
    Exact sum = 0;
    for (size_t j = 0; j < n; ++j) sum += inv[i][j] * b[j];
    EXPECT_NEAR(x[i], static_cast<double>(sum), 1e-9);
  }
  EXPECT_NEAR(factor.log_determinant(), static_cast<double>(log_det), 1e-9);
}

TEST(CholeskyTest, ThePointThatIsThereTwiceDoesNotBreakIt) {
  Cholesky factor;
  factor.append({}, 1);
  factor.append(std::vector<double>{1}, 1);
  factor.append(std::vector<double>{1, 1}, 1);
  for (const double v : factor.backward(factor.forward(std::vector<double>{1, 1, 1})))
    EXPECT_TRUE(std::isfinite(v));
}

TEST(GaussianProcessTest, AgreesWithANaiveInverseInLongDouble) {
  Rng rng(2);
  for (const size_t n : {1, 2, 10, 60}) {
    const size_t dims = 1 + n % 4;
    std::vector<Point> x;
    std::vector<double> y;
    for (size_t i = 0; i < n; ++i) {
      x.push_back(random_point(rng, dims));
      y.push_back(rng.normal());
    }
    GaussianProcess::Scales s{{}, 1.7, 0.01};
    for (size_t d = 0; d < dims; ++d) s.lengths.push_back(rng.uniform(0.2, 2));
    const auto k = [&](const Point& a, const Point& b) {
      Exact sum = 0;
      for (size_t d = 0; d < dims; ++d) {
        const Exact r = (Exact{a[d]} - b[d]) / s.lengths[d];
        sum += r * r;
      }
      return s.signal * exact_matern(std::sqrt(sum));
    };
    Matrix a(n, std::vector<Exact>(n));
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) a[i][j] = k(x[i], x[j]) + (i == j ? s.noise : 0);
    const GaussianProcess process(x, y, s);
    for (int i = 0; i < 10; ++i) {
      const Point at = i == 0 ? x[0] : random_point(rng, dims);
      std::vector<Exact> to;
      for (const Point& p : x) to.push_back(k(p, at));
      const Twin twin = naive(a, to, s.signal, y);
      const Normal here = process.predict(at);
      EXPECT_NEAR(here.mean, static_cast<double>(twin.mean), 1e-9);
      EXPECT_NEAR(here.variance, static_cast<double>(twin.variance), 1e-9);
      EXPECT_NEAR(process.log_likelihood(), static_cast<double>(twin.log_likelihood), 1e-8);
    }
  }
}

TEST(GaussianProcessTest, FittedScalesAreMoreLikelyAndFindTheDimensionThatMatters) {
  Rng rng(5);
  std::vector<Point> x;
  std::vector<double> y;
  for (int i = 0; i < 60; ++i) {
    x.push_back(random_point(rng, 3));
    y.push_back(std::sin(6 * x.back()[1]));
  }
  const auto start = usual_scales(3);
  const auto fitted = fit_scales(x, y, true, start);
  EXPECT_GT(GaussianProcess(x, y, fitted).log_likelihood(),
            GaussianProcess(x, y, start).log_likelihood() + 5);
  EXPECT_LT(fitted.lengths[1], 0.5 * fitted.lengths[0]);
  EXPECT_LT(fitted.lengths[1], 0.5 * fitted.lengths[2]);
  const auto shared = fit_scales(x, y, false, start);
  EXPECT_EQ(shared.lengths[0], shared.lengths[2]);
}

TEST(CurveModelTest, AgreesWithANaiveInverseInLongDouble) {
  Rng rng(9);
  CurveScales s = usual_curve_scales(2);
  s.lengths = {0.3, 0.9};
  s.time = 1.3;
  std::vector<CurveModel::Place> places;
  std::vector<double> y;
  for (int64_t trial = 0; trial < 12; ++trial) {
    const Point features = random_point(rng, 2);
    for (int k = 0; k <= trial % 4; ++k) {
      places.push_back({trial, features, std::log(std::pow(2, k) / 16)});
      y.push_back(rng.normal());
    }
  }
  const auto k = [&](const CurveModel::Place& a, const CurveModel::Place& b) {
    Exact sum = 0;
    for (size_t d = 0; d < 2; ++d) {
      const Exact r = (Exact{a.features[d]} - b.features[d]) / s.lengths[d];
      sum += r * r;
    }
    const Exact m = exact_matern(std::abs(Exact{a.when} - b.when) / s.time);
    const bool same = a.trial >= 0 && a.trial == b.trial;
    return s.mean * m + exact_matern(std::sqrt(sum)) * (s.level + s.shape * m) +
           (same ? s.own_level + s.own_shape * m : 0);
  };
  const size_t n = places.size();
  Matrix a(n, std::vector<Exact>(n));
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) a[i][j] = k(places[i], places[j]) + (i == j ? s.noise : 0);
  CurveModel model(s);
  // A known trial and an unknown one, asked for at times while the model grows.
  CurveModel::Target known{{3, places[6].features, 0}}, fresh{{-1, random_point(rng, 2), 0}};
  for (size_t i = 0; i < n; ++i) {
    model.append(places[i], y[i]);
    if (i % 5 == 2) model.forecast(fresh);
  }
  for (CurveModel::Target* target : {&known, &fresh}) {
    std::vector<Exact> to;
    for (const auto& p : places) to.push_back(k(p, target->place));
    const Exact prior = s.mean + s.level + s.shape + s.own_level + s.own_shape;
    const Twin twin = naive(a, to, prior, y);
    const Normal here = model.forecast(*target);
    EXPECT_NEAR(here.mean, static_cast<double>(twin.mean), 1e-9);
    EXPECT_NEAR(here.variance, static_cast<double>(twin.variance), 1e-9);
    EXPECT_NEAR(model.log_likelihood(), static_cast<double>(twin.log_likelihood), 1e-8);
    CurveModel::Target again{target->place};
    const Normal once = model.forecast(again);
    EXPECT_EQ(once.mean, here.mean);  // grown or computed at once: the same bits
    EXPECT_EQ(once.variance, here.variance);
  }
}

TEST(CurveModelTest, TheExplainedShareIsTheDoubtThatOneValueTakes) {
  Rng rng(5);
  for (int i = 0; i < 200; ++i) {
    CurveScales s = usual_curve_scales(1);
    s.mean = 1e-12;  // all trials share it
    for (double* scale : {&s.level, &s.shape, &s.own_level, &s.own_shape, &s.noise, &s.time})
      *scale = std::exp(rng.uniform(-5, 1));
    const double when = -rng.uniform(0, 6);
    CurveModel model(s);
    CurveModel::Target end{{0, {0.5}, 0}};
    const double before = model.forecast(end).variance;
    model.append({0, {0.5}, when}, 1);
    EXPECT_NEAR(explained_share(s, when), 1 - model.forecast(end).variance / before, 1e-8);
  }
}

TEST(ParzenDensityTest, AgreesWithItsDefinitionAndIntegratesToOne) {
  const Space space({{"x"}, {"c", Kind::choice, Scale::linear, 0, 1, {"1", "2", "3"}}});
  Rng rng(4);
  std::vector<Point> points;
  for (int i = 0; i < 7; ++i)
    points.push_back(space.to_point(space.at({rng.uniform(0, 1), rng.uniform(0, 1)})));
  const ParzenDensity density(space, points);
  const Exact w = density.width();
  const auto phi = [](Exact z) { return std::erfc(-z / std::sqrt(Exact{2})) / 2; };
  const auto normal = [&](Exact x, Exact center, Exact width) {
    const Exact z = (x - center) / width;
    return std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi_v<Exact>) / width /
           (phi((1 - center) / width) - phi(-center / width));
  };
  Exact integral = 0;
  for (int choice = 0; choice < 3; ++choice) {
    for (int i = 0; i < 2000; ++i) {
      const Point at = {(i + 0.5) / 2000, (choice + 0.5) / 3};
      Exact sum = normal(at[0], 0.5L, 1) / 3;
      for (const Point& p : points)
        sum += normal(at[0], p[0], w) * ((p[1] == at[1] ? 1 - w : 0) + w / 3);
      const Exact expected = sum / static_cast<Exact>(points.size() + 1);
      ASSERT_NEAR(density.log_density(at), static_cast<double>(std::log(expected)), 1e-9);
      integral += expected / 2000;
    }
  }
  EXPECT_NEAR(static_cast<double>(integral), 1, 1e-6);
}

// Scott's rule where there are many points, and of one point and the prior a third.
TEST(ParzenDensityTest, IsAsWideAsThePointsAreDense) {
  const Space space({{"x"}});
  const auto points = [](size_t n) { return std::vector<Point>(n, Point{0.5}); };
  EXPECT_DOUBLE_EQ(ParzenDensity(space, points(1)).width(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(ParzenDensity(space, points(1000)).width(), 0.2 * std::pow(1000, -0.2));
}

TEST(ParzenDensityTest, DrawsFollowTheDensity) {
  const Space space({{"x"}});
  const ParzenDensity density(space, {{0.1}, {0.15}, {0.8}});
  Rng rng(6);
  constexpr int kDraws = 40000, kBins = 10;
  std::vector<int> counts(kBins);
  for (int i = 0; i < kDraws; ++i) {
    const double x = density.draw(rng)[0];
    ASSERT_TRUE(x >= 0 && x <= 1);
    ++counts[std::min(kBins - 1, static_cast<int>(x * kBins))];
  }
  for (int b = 0; b < kBins; ++b) {
    double share = 0;
    for (int i = 0; i < 100; ++i)
      share += std::exp(density.log_density({(b + (i + 0.5) / 100) / kBins})) / (100 * kBins);
    const double deviation = std::sqrt(share * (1 - share) / kDraws);
    EXPECT_NEAR(counts[static_cast<size_t>(b)] / double{kDraws}, share, 5 * deviation) << b;
  }
}

TEST(ScoresTest, NormalScoresKeepTheOrderShareTiesAndPutTheLostLast) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> scores =
      normal_scores(std::vector<double>{3, -1e300, inf, 7, 7, std::nan("")});
  EXPECT_LT(scores[1], scores[0]);
  EXPECT_LT(scores[0], scores[3]);
  EXPECT_EQ(scores[3], scores[4]);
  EXPECT_LT(scores[4], scores[2]);
  EXPECT_EQ(scores[2], scores[5]);
  EXPECT_NEAR(normal_cdf(scores[1]), 0.5 / 6, 1e-8);
  EXPECT_NEAR(normal_cdf(scores[2]), 5.0 / 6, 1e-8);  // the middle of the last two places
  for (const double p : {1e-9, 0.001, 0.02, 0.3, 0.5, 0.77, 0.98, 0.9999})
    EXPECT_NEAR(normal_cdf(normal_quantile(p)), p, 2e-9);
}

TEST(WarpTest, KeepsTheOrderOnAnyScaleAndTellsNewBestValuesApart) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double factor : {1e-200, 1.0, 1e200}) {
    std::vector<double> values = {inf, std::nan("")};
    for (int i = 0; i < 50; ++i) values.push_back(factor * (i < 25 ? 5 : i));
    const Warp warp(values);
    double sum = 0, squares = 0;
    for (const double v : values) {
      sum += warp(v);
      squares += warp(v) * warp(v);
    }
    EXPECT_NEAR(sum / 52, 0, 1e-9);
    EXPECT_NEAR(squares / 52, 1, 1e-9);
    EXPECT_LT(warp(5 * factor), warp(30 * factor));
    EXPECT_LT(warp(4 * factor), warp(5 * factor));
    EXPECT_LT(warp(3 * factor), warp(4 * factor));
    EXPECT_GT(warp(-inf), warp(30 * factor));
    EXPECT_EQ(warp(inf), warp(49 * factor));
    EXPECT_EQ(warp(1e300), warp(49 * factor));
    EXPECT_GT(warp(-1e300), -20);
  }
  for (const std::vector<double>& alike : {std::vector<double>{}, {3}, {2, 2, 2}, {inf, inf}})
    EXPECT_TRUE(std::isfinite(Warp(alike)(2)));
}

TEST(ScoresTest, ExpectedImprovementAgreesWithItsIntegralAlsoFarBelow) {
  for (const double best : {1.0, 0.0, -1.0, -5.0, -9.9, -10.1, -20.0, -35.0}) {
    // The integral of (best - y) phi(y) below best, y = best - t, with exp(-best^2 / 2) taken out.
    Exact sum = 0;
    const Exact step = 1e-4L;
    for (Exact t = step / 2; t < 30; t += step) sum += t * std::exp(best * t - t * t / 2) * step;
    const Exact expected =
        std::log(sum) - Exact{best} * best / 2 - std::log(2 * std::numbers::pi_v<Exact>) / 2;
    EXPECT_NEAR(log_expected_improvement(0, 1, best), static_cast<double>(expected), 2e-3) << best;
    EXPECT_NEAR(log_expected_improvement(3, 2, 3 + 2 * best),
                static_cast<double>(expected + std::log(2.0L)), 2e-3);
  }
}

TEST(ScoresTest, TheLargestBudgetWithEnoughTrialsIsModelled) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  std::vector<Trial> trials(6);
  trials[0].seen = {{1, 5}, {3, 4}, {9, 3}};
  trials[1].seen = {{1, 6}, {3, 7}};
  trials[2].seen = {{1, 8}};
  trials[3].seen = {{1, 2}, {2, nan}};
  trials[3].diverged = true;
  trials[4].seen = {{1, 1}, {3, 0.5}};
  const auto scores = scores_of(trials, 3);  // trial 5 was never told
  ASSERT_EQ(scores.size(), 4u);
  EXPECT_EQ(scores[0].value, 4);
  EXPECT_EQ(scores[1].value, 6);
  EXPECT_EQ(scores[2].value, inf);
  EXPECT_EQ(scores[3].trial, 4);
  EXPECT_EQ(scores_of(trials, 5).size(), 5u);
  EXPECT_TRUE(scores_of({}, 3).empty());
}

}  // namespace
}  // namespace ductile::tune
