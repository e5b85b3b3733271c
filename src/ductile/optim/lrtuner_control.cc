#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/json_value.h"
#include "ductile/optim/quadratic_fit.h"
#include "ductile/optim/rate_control.h"

namespace ductile::optim {
namespace {

using Json = nlohmann::json;

struct Point {
  double lr = 0;    // the length of the step from the weights before the last update
  double loss = 0;  // infinite where it was not finite
};

// LRTuner (Iyer et al., arXiv 2105.14526) as far as its abstract and standard mathematics define
// it: along the direction u of the last update the loss is nearly L(w - a u) = k0 + k1 a + k2 a^2,
// which a least-squares fit finds from probes at several a. In the explore phase the learning rate
// is the largest a whose predicted loss does not exceed L(w); in the exploit phase it is the
// minimum a* = -k1 / (2 k2), and at most the line that falls from the last learning rate of the
// explore phase to 0 at the end (the exploit phase of Knee, arXiv 2003.03977).
//
// A single update does not show where the updates after it lead, so the choice is bounded by what
// training did since the last round: the learning rate rises only while the mean loss is near or
// below its lowest, and is halved where it has risen by a tenth. Both means are of noisy losses: in
// the exploit phase a rise that their standard errors explain is none. (In the explore phase the
// strict comparison holds: without it the rate ran away.) Near a minimum the gain of one update is
// smaller than the noise of the probes, so in the exploit phase a round that finds no step says
// nothing, and the rate stays on its line.
//
// A round probes w itself, then the last learning rate, then its doubles until the loss exceeds
// L(w), or else its halves until the loss is below L(w). The first rounds follow soon after one
// another and reach 2^24 times as far, since the job file's learning rate may be anything; later
// ones reach 4 times as far.
class Lrtuner final : public RateControl {
 public:
  explicit Lrtuner(const spec::JobOptions& job)
      : options_(job.train.lrtuner), hyper_(Hyper::of(job)), name_(job.optimizer.name) {}

  std::optional<Probing> probing() const override { return Probing{options_.batches}; }

  bool keeps_weights(const Json& memory) const override { return memory.value("keep", false); }

  std::optional<double> probe(const Json& memory) const override {
    const auto at = memory.find("at");
    return at == memory.end() ? std::nullopt : std::optional(at->get<double>());
  }

  Hyper next(const Observed& observed, Json& memory) const override {
    if (memory.empty()) memory = {{"lr", first_rate()}, {"rounds", 0}, {"round_at", 2}};
    memory.erase("event");
    // A step of fp16 that overflowed has a loss that may not be finite, and changed nothing.
    // Between two updates a step method may ask for other steps: each loss counts once.
    if (!observed.probe_loss && observed.updates > memory.value("counted", int64_t{0}) &&
        std::isfinite(observed.loss.value_or(INFINITY))) {
      memory["counted"] = observed.updates;
      memory["loss_sum"] = memory.value("loss_sum", 0.0) + *observed.loss;
      memory["loss_squares"] = memory.value("loss_squares", 0.0) + *observed.loss * *observed.loss;
      memory["loss_count"] = memory.value("loss_count", 0) + 1;
    }
    if (observed.probe_loss) {
      double loss = *observed.probe_loss;
      memory["points"].push_back({memory["at"], std::isfinite(loss) ? Json(loss) : Json()});
      go_on(observed, memory);
    } else if (observed.updates == memory["round_at"].get<int64_t>()) {
      memory["points"] = Json::array();
      memory["at"] = 0.0;
    }
    memory["keep"] = !memory.contains("at") &&
                     observed.updates + 2 == memory["round_at"].get<int64_t>() &&
                     observed.position + 2 < observed.total;
    Hyper hyper = hyper_;
    hyper.lr = bounded(memory["lr"].get<double>(), observed, memory);
    return hyper;
  }

 private:
  static constexpr int kEarlyRounds = 3;
  // For the two updates before the first round: a hundredth of the job file's learning rate, within
  // bounds. One that is far too large may destroy a network with its first step; updates far too
  // small are rounded away, and their line shows nothing.
  static constexpr double kFirst = 0.01, kLeastFirst = 1e-4, kMostFirst = 1e-3;
  // Where three rounds in a row, and none before, found that updates change nothing.
  static constexpr double kOutOfFlatness = 1024;
  // A round's gain beyond which the momentum is counted.
  static constexpr double kJump = 4;
  // As of optimizer.lr. Where updates change nothing any more, no step raises the loss.
  static constexpr double kLargest = 1e6;

  double first_rate() const { return std::clamp(kFirst * hyper_.lr, kLeastFirst, kMostFirst); }

  // What is left of a step after the steps that its momentum adds to it.
  double share_of_path() const {
    const bool by_momentum = name_ == "sgd" || name_ == "lars" || name_ == "muon";
    return 1 - std::clamp(by_momentum ? hyper_.momentum : hyper_.beta1, 0.0, 1.0);
  }

  // Of rounds that saw something.
  static bool is_early(const Json& memory) {
    return memory.value("seen", memory["rounds"].get<int>()) < kEarlyRounds;
  }

  bool exploring(const Observed& observed) const {
    return static_cast<double>(observed.position) <
           options_.explore * static_cast<double>(observed.total);
  }

  // The share of the exploit phase that is left.
  double share_left(const Observed& observed) const {
    const double begin = options_.explore * static_cast<double>(observed.total);
    return (static_cast<double>(observed.total - observed.position)) /
           std::max(static_cast<double>(observed.total) - begin, 1.0);
  }

  // At most the line of the exploit phase: rounds compare with, halve and report what is trained
  // with. Without an explore phase there is no line.
  double on_line(double lr, const Observed& observed, const Json& memory) const {
    if (exploring(observed) || !memory.contains("peak")) return lr;
    return std::min(lr, memory["peak"].get<double>() * share_left(observed));
  }

  double bounded(double lr, const Observed& observed, Json& memory) const {
    if (exploring(observed)) memory["peak"] = lr;
    if (!memory.contains("peak")) return lr * share_left(observed);
    return on_line(lr, observed, memory);
  }

  // The next probe of the round, or its end.
  void go_on(const Observed& observed, Json& memory) const {
    std::vector<Point> points;
    for (const Json& p : memory["points"])
      points.push_back(
          {p[0].get<double>() * observed.last.lr, p[1].is_null() ? INFINITY : p[1].get<double>()});
    const double reach = is_early(memory) ? 1 << 24 : 4;
    if (const std::optional<double> at = next_place(points, memory["at"].get<double>(), reach)) {
      memory["at"] = *at;
    } else {
      end_round(observed, points, memory);
    }
  }

  // In multiples of the last update; nullopt: there are enough points.
  static std::optional<double> next_place(const std::vector<Point>& points, double last,
                                          double reach) {
    const double origin = points.front().loss;
    if (!std::isfinite(origin)) return std::nullopt;
    if (points.size() == 1) return 1.0;
    const bool rises = !(points.back().loss <= origin);
    if (points.size() == 3 && changes_nothing(points)) return std::nullopt;
    if (points[1].loss <= origin) {  // growing
      if (!rises && last < reach) return 2 * last;
      // A point far up says nothing of the curvature near the minimum.
      const double least = least_loss(points);
      const bool far = rises && points.back().loss - origin > 2 * (origin - least);
      const auto kept = static_cast<double>(largest_below(points, origin) / points[1].lr);
      if (far && last - kept > 0.2 * kept) return kept + (last - kept) / 2;
      return std::nullopt;
    }
    return rises && last > 1 / reach ? std::optional(last / 2) : std::nullopt;
  }

  // As after a step of fp16 that overflowed. One step may end as high as it began: that of 2 / the
  // curvature.
  static bool changes_nothing(const std::vector<Point>& points) {
    return points.size() >= 3 && std::ranges::all_of(points, [&](const Point& p) {
             return p.loss == points.front().loss;
           });
  }
  static double least_loss(const std::vector<Point>& points) {
    return std::ranges::min(points, {}, &Point::loss).loss;
  }
  // The longest step whose loss does not exceed `origin`.
  static double largest_below(const std::vector<Point>& points, double origin) {
    double out = 0;
    for (const Point& p : points)
      if (p.loss <= origin) out = std::max(out, p.lr);
    return out;
  }

  void end_round(const Observed& observed, std::vector<Point> points, Json& memory) const {
    memory.erase("at");
    const double lr = on_line(memory["lr"].get<double>(), observed, memory);
    const int round = memory["rounds"].get<int>();
    Choice choice = choose(std::move(points), exploring(observed));
    bound(choice, lr, exploring(observed), memory);
    // The velocity of so many updates goes on along the line after a step that is many times
    // theirs.
    const bool early = is_early(memory);
    if (early && choice.lr > kJump * lr)
      choice.lr = std::max(kJump * lr, choice.lr * share_of_path());
    double chosen = lr;
    memory["flat"] = choice.flat ? memory.value("flat", 0) + 1 : 0;
    if (choice.flat) {
      if (!memory.contains("failures") && memory["flat"].get<int>() >= 3)
        chosen = lr * kOutOfFlatness;
    } else if (choice.lr > 0) {
      const double keep = early ? 0 : options_.smoothing;
      chosen = std::exp(keep * std::log(std::max(lr, 1e-300)) + (1 - keep) * std::log(choice.lr));
      memory["failures"] = 0;
    } else {
      memory["failures"] = exploring(observed) ? memory.value("failures", 0) + 1 : 1;
      if (memory["failures"].get<int>() % 2 == 0) chosen = lr / 2;
    }
    chosen = on_line(std::min(chosen, kLargest), observed, memory);
    memory["lr"] = chosen;
    memory["rounds"] = round + 1;
    memory["seen"] = memory.value("seen", round) + (choice.flat ? 0 : 1);
    const auto every = std::max<int64_t>(
        4, std::llround(options_.every_epochs * static_cast<double>(observed.steps_per_epoch)));
    memory["round_at"] = observed.updates + std::clamp<int64_t>(observed.updates, 2, every);
    memory["event"] = {{"what", "probe_round"},
                       {"round", round + 1},
                       {"phase", exploring(observed) ? "explore" : "exploit"},
                       {"probes", memory["points"]},
                       {"probed_lr", observed.last.lr},
                       {"fit", choice.fit},
                       {"lr_before", lr},
                       {"lr", chosen},
                       {"why", choice.why}};
    memory.erase("points");
  }

  struct Choice {
    double lr = 0;  // 0: the fit is invalid
    std::string why;
    Json fit;
    bool flat = false;  // nothing was seen
  };

  // By the mean loss of the updates since the last round, against the lowest such mean.
  static void bound(Choice& choice, double lr, bool explore, Json& memory) {
    const int count = memory.value("loss_count", 0);
    if (count == 0) return;
    const double mean = memory["loss_sum"].get<double>() / count;
    const double spread = memory["loss_squares"].get<double>() / count - mean * mean;
    const double variance = std::max(0.0, spread) / count;  // of the mean
    memory["loss_sum"] = memory["loss_squares"] = 0.0;
    memory["loss_count"] = 0;
    if (mean <= memory.value("lowest", mean)) {
      memory["lowest"] = mean;
      memory["lowest_variance"] = variance;
    }
    const double lowest = memory["lowest"].get<double>(), level = std::abs(lowest);
    const double noise =
        explore ? 0 : 2 * std::sqrt(variance + memory["lowest_variance"].get<double>());
    const double risen = mean - lowest;
    if (risen > std::max(0.1 * level, noise)) {
      choice.lr = choice.lr > 0 ? std::min(choice.lr, lr / 2) : lr / 2;
      choice.why = "training has raised the loss";
    } else if (risen > std::max(0.02 * level, noise) && choice.lr > lr) {
      choice.lr = lr;
      choice.why = "training does not lower the loss";
    }
  }

  static Choice choose(std::vector<Point> points, bool explore) {
    const double origin = points.front().loss;
    if (!std::isfinite(origin)) return {0, "the loss at the weights is not finite", {}};
    if (changes_nothing(points)) return {0, "the last update did not change the loss", {}, true};
    const double longest = largest_below(points, origin);
    if (longest == 0) return {0, "no step along the update lowers the loss", {}};
    std::erase_if(points, [](const Point& p) { return !std::isfinite(p.loss); });
    // The bracket's points only: what lies far below it says nothing of the curvature.
    std::ranges::sort(points, {}, &Point::lr);
    double upper = longest;
    for (const Point& p : points) {
      if (p.lr > longest) {
        upper = p.lr;
        break;
      }
    }
    if (upper == longest) return {longest, "the loss still falls at the longest step probed", {}};
    std::vector<double> x, y;
    for (const Point& p : points) {
      if (p.lr > upper || (p.lr > 0 && p.lr < upper / 16)) continue;
      x.push_back(p.lr);
      y.push_back(p.loss);
    }
    const std::optional<Quadratic> fit = fit_quadratic(x, y);
    if (!fit || fit->k2 <= 0 || fit->k1 >= 0)
      return {0, "the fit has no minimum ahead", fit ? Json{fit->k0, fit->k1, fit->k2} : Json()};
    const double best = -fit->k1 / (2 * fit->k2);
    double lr = best;
    if (explore) {  // the larger root of k0 + k1 a + k2 a^2 = L(w)
      const double inside = best * best - (fit->k0 - origin) / fit->k2;
      lr = inside > 0 ? best + std::sqrt(inside) : best;
    }
    const double shortest = x.size() > 1 ? x[1] : lr;
    return {std::clamp(lr, shortest / 2, upper),
            explore ? "the largest step that does not raise the loss" : "the minimum of the fit",
            Json{fit->k0, fit->k1, fit->k2}};
  }

  spec::LrtunerOptions options_;
  Hyper hyper_;
  std::string name_;  // of the optimiser
};

}  // namespace

std::unique_ptr<RateControl> make_lrtuner_control(const spec::JobOptions& job) {
  return std::make_unique<Lrtuner>(job);
}

}  // namespace ductile::optim
