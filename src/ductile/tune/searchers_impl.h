#pragma once

#include <limits>
#include <memory>

#include "ductile/tune/searcher.h"

namespace ductile::tune {

std::unique_ptr<Searcher> make_random(const Space& space, const SearcherOptions& options);
std::unique_ptr<Searcher> make_grid(const Space& space, const SearcherOptions& options);
std::unique_ptr<Searcher> make_tpe(const Space& space, const SearcherOptions& options);
std::unique_ptr<Searcher> make_gp(const Space& space, const SearcherOptions& options);
std::unique_ptr<Searcher> make_curves(const Space& space, const SearcherOptions& options);

// A searcher that forecasts curves. Whoever asks it for the next piece of budget says before each
// question how much more a trial can still get.
class ForecastingSearcher : public Searcher {
 public:
  using Searcher::Searcher;
  bool forecasts() const final { return true; }

  struct Rest {
    double budget = std::numeric_limits<double>::infinity();
    // What a new trial could reach is worth a look at it. If not, one is begun only where there is
    // no other to go on with.
    bool pays_for_new = true;
  };
  void set_rest(Rest rest) { rest_ = rest; }

 protected:
  const Rest& rest() const { return rest_; }

 private:
  Rest rest_;
};

// What a model of settings alone is fitted to: one value for each trial, at one budget. That is the
// largest budget which at least `enough` trials have reached (Falkner et al., "BOHB", ICML 2018,
// section 3.2), or the smallest where none is; a trial that diverged on the way counts as infinite.
struct Scored {
  int64_t trial;
  double value;
};
std::vector<Scored> scores_of(const std::vector<Trial>& trials, size_t enough);

// The places of the values among each other as quantiles of the normal distribution: the least is
// the lowest, equal ones share a place, values that are not finite share the last. For values on
// any scale, with any outliers.
std::vector<double> normal_scores(std::span<const double> values);
// The inverse of the normal distribution function, by Acklam's approximation (error below 1.2e-9).
double normal_quantile(double p);
double normal_cdf(double z);
// log of the expected amount by which a normal variable falls below `best`.
double log_expected_improvement(double mean, double deviation, double best);

}  // namespace ductile::tune
