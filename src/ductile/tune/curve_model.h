#pragma once

#include <span>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/tune/cholesky.h"
#include "ductile/tune/gp.h"
#include "ductile/tune/space.h"

namespace ductile::tune {

// A Gaussian process over (trial, setting, budget), whose covariance is a sum of what could make
// two values alike:
//   the mean curve        mean * M(t)                      all trials fall alike
//   their settings        K(x) * (level + shape * M(t))    a setting is good, or falls in its own
//   way being one trial       own_level + own_shape * M(t)     what the setting does not explain
//   being one value       noise
// K is the Matern covariance of the settings, M that of the logarithms of the budgets. It is the
// idea of freeze-thaw optimisation (Swersky et al., arXiv 1406.3896) with the shape of the curves
// learnt instead of taken to be exponential. Values may be on any scale around 0.
struct CurveScales {
  std::vector<double> lengths;  // of each feature
  double time = 2;              // length in the logarithm of the budget
  double mean = 0.5, level = 0.5, shape = 0.1, own_level = 0.05, own_shape = 0.05, noise = 0.01;
};
CurveScales usual_curve_scales(size_t num_features);
nlohmann::json to_json(const CurveScales& scales);
// Throws invalid_argument for anything else than scales of so many features.
CurveScales curve_scales_from_json(const nlohmann::json& json, size_t num_features);

// The share of the variance of trials' values at the full budget that one value of each at the
// logarithm `when` of the budget (0: the full one) explains: the squared correlation of the two,
// over trials of settings chosen at random. The mean curve is the same for all, so it counts not.
double explained_share(const CurveScales& scales, double when);

class CurveModel {
 public:
  explicit CurveModel(CurveScales scales);

  struct Place {
    int64_t trial = -1;  // -1: one that does not exist yet, unlike every other
    Point features;
    double when = 0;  // logarithm of the budget
  };
  void append(Place place, double value);

  // A place whose forecast is asked for again and again: what was computed is kept.
  struct Target {
    Place place;
    std::vector<double> solved = {};
  };
  // The curve there, without noise.
  Normal forecast(Target& target) const;

  size_t size() const { return places_.size(); }
  double log_likelihood() const;
  double covariance(const Place& a, const Place& b) const;  // without noise
  const CurveScales& scales() const { return scales_; }

 private:
  CurveScales scales_;
  std::vector<double> per_length_;  // 1 / length
  std::vector<Place> places_;
  std::vector<double> values_;
  std::vector<double> solved_;  // L^-1 values
  Cholesky factor_;
};

// The scales that are most likely, given mild priors around the usual ones. Begins from `start`.
CurveScales fit_curve_scales(const std::vector<CurveModel::Place>& places,
                             const std::vector<double>& values, bool ard, const CurveScales& start);

}  // namespace ductile::tune
