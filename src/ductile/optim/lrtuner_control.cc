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
  double at = 0;    // in multiples of the way since the last round
  double loss = 0;  // infinite where it was not finite
};

// LRTuner (Iyer et al., arXiv 2105.14526) as far as its abstract and standard mathematics define
// it: along the direction that training takes the loss is nearly k0 + k1 a + k2 a^2, which a
// least-squares fit finds from probes, and the learning rate explores and then exploits (Knee,
// arXiv 2003.03977).
//
// The direction is the way from the weights at the last round to the present ones, all updates
// together. The line of a single update does not show where the updates after it lead: a small GPT
// bears an AdamW step of 0.2 once, and a hundred such steps destroy its attention. The way of
// several updates has in it what momentum brings in and what their noise comes to.
//
// A round probes the beginning of the way (0), its end (1) and, where the loss fell, as far again
// (2). In the explore phase:
// - The rate grows where the parabola's minimum lies beyond the way's end: more updates of the same
//   kind would lower the loss further. It doubles while rounds follow soon after one another (the
//   first ones, and those where it keeps growing), and grows by 2^(1 - smoothing) later.
// - It is cut where the way, or the mean loss of training since the last round, has risen by a
//   tenth: to half of the last rate whose way led down, since the rate before may have done the
//   damage that is seen now. It does not grow where that mean is above its lowest. Both means are
//   of noisy losses: a rise that their standard errors explain is none.
// - It is halved where kPatience rounds in a row found that the way did not lead down.
// A loss far above those before begins a round at once.
//
// In the exploit phase the rate follows a line from the last one of the explore phase to 0. It may
// be cut there, and then grow back to the line at most. The way is level there but for noise, so
// that its rising says nothing. Without an explore phase the line begins at the first rate.
//
// The parabola's minimum is reported, and is not what the rate becomes: a step to it along one way
// is right for that way alone.
class Lrtuner final : public RateControl {
 public:
  explicit Lrtuner(const spec::JobOptions& job)
      : options_(job.train.lrtuner), hyper_(Hyper::of(job)) {}

  std::optional<Probing> probing() const override { return Probing{options_.batches}; }

  bool keeps_weights(const Json& memory) const override { return memory.value("keep", false); }

  std::optional<double> probe(const Json& memory) const override {
    const auto at = memory.find("at");
    return at == memory.end() ? std::nullopt : std::optional(at->get<double>());
  }

  Hyper next(const Observed& observed, Json& memory) const override {
    memory.erase("event");
    // Until an update has come: a step method may look at samples before.
    if (memory.value("begun", int64_t{0}) <= observed.updates) memory["keep"] = false;
    if (!memory.contains("begun")) {
      if (!memory.contains("lr")) memory["lr"] = first_rate();
      begin_way(observed, first_spacing(observed), memory);
    }
    // A step of fp16 that overflowed has a loss that may not be finite, and changed nothing.
    // Between two updates a step method may ask for other steps: each loss counts once.
    if (!observed.probe_loss && observed.updates > memory.value("counted", int64_t{0}) &&
        std::isfinite(observed.loss.value_or(INFINITY))) {
      memory["counted"] = observed.updates;
      memory["loss_sum"] = memory.value("loss_sum", 0.0) + *observed.loss;
      memory["loss_squares"] = memory.value("loss_squares", 0.0) + *observed.loss * *observed.loss;
      memory["loss_count"] = memory.value("loss_count", 0) + 1;
      if (leaps(*observed.loss, memory) && observed.updates > memory["begun"].get<int64_t>())
        memory["round_at"] = observed.updates;
    }
    if (observed.probe_loss) {
      const double loss = *observed.probe_loss;
      memory["points"].push_back({memory["at"], std::isfinite(loss) ? Json(loss) : Json()});
      go_on(observed, memory);
    } else if (observed.updates == memory["round_at"].get<int64_t>() &&
               observed.position < observed.total) {
      memory["points"] = Json::array();
      memory["at"] = 0.0;
    }
    const double lr = memory["lr"].get<double>();
    if (exploring(observed) || !memory.contains("peak")) memory["peak"] = lr;
    Hyper hyper = hyper_;
    hyper.lr = on_line(lr, observed, memory);
    return hyper;
  }

 private:
  // A hundredth of the job file's learning rate, within bounds. One that is far too large may
  // destroy a network with its first step; updates far too small are rounded away, and their way
  // shows nothing.
  static constexpr double kFirst = 0.01, kLeastFirst = 1e-4, kMostFirst = 1e-3;
  // Updates between the first rounds: about those that a momentum of 0.9 needs to build up.
  static constexpr int64_t kFirstSpacing = 8;
  static constexpr int kPatience = 5;  // where all is noise, half of the ways lead down
  // Where three rounds in a row, and none before, found that updates change nothing.
  static constexpr double kOutOfFlatness = 1024;
  // As of optimizer.lr. Where updates change nothing any more, no step raises the loss.
  static constexpr double kLargest = 1e6;

  double first_rate() const { return std::clamp(kFirst * hyper_.lr, kLeastFirst, kMostFirst); }

  static int64_t first_spacing(const Observed& observed) {
    return std::clamp<int64_t>(static_cast<int64_t>(observed.total) / 100, 2, kFirstSpacing);
  }

  // The weights after the next update are its beginning.
  static void begin_way(const Observed& observed, int64_t spacing, Json& memory) {
    memory["keep"] = true;
    memory["spacing"] = spacing;
    memory["begun"] = observed.updates + 1;
    memory["round_at"] = observed.updates + 1 + spacing;
  }

  bool exploring(const Observed& observed) const {
    return observed.position < options_.explore * observed.total;
  }

  // The share of the exploit phase that is left.
  double share_left(const Observed& observed) const {
    const double begin = options_.explore * observed.total;
    return (observed.total - observed.position) / std::max(observed.total - begin, 1.0);
  }

  // At most the line of the exploit phase: rounds compare with, cut and report what is trained
  // with.
  double on_line(double lr, const Observed& observed, const Json& memory) const {
    if (exploring(observed)) return lr;
    return std::min(lr, memory.value("peak", lr) * share_left(observed));
  }

  // Far above the losses between the last two rounds.
  static bool leaps(double loss, const Json& memory) {
    const auto mean = memory.find("mean");
    if (mean == memory.end()) return false;
    const double level = std::abs(mean->get<double>());
    return loss >
           mean->get<double>() + std::max(0.2 * level, 5 * memory["deviation"].get<double>());
  }

  // The next probe of the round, or its end.
  void go_on(const Observed& observed, Json& memory) const {
    std::vector<Point> points;
    for (const Json& p : memory["points"])
      points.push_back({p[0].get<double>(), p[1].is_null() ? INFINITY : p[1].get<double>()});
    const double origin = points.front().loss;
    if (points.size() == 1 && std::isfinite(origin)) {
      memory["at"] = 1.0;
    } else if (points.size() == 2 && points[1].loss <= origin) {
      memory["at"] = 2.0;
    } else {
      memory.erase("at");
      end_round(observed, points, memory);
      memory.erase("points");
    }
  }

  void end_round(const Observed& observed, const std::vector<Point>& points, Json& memory) const {
    const double lr = on_line(memory["lr"].get<double>(), observed, memory);
    const int64_t first = first_spacing(observed);
    int64_t spacing = memory["spacing"].get<int64_t>();
    const double growth = spacing <= first ? 2 : std::exp2(1 - options_.smoothing);
    Choice choice = choose(points, lr, growth, exploring(observed), memory);
    bound(choice, lr, points, memory);
    const double line = on_line(choice.lr, observed, memory);
    if (line < choice.lr) choice.why += "; the rate follows its line to 0";
    choice.lr = std::min(line, kLargest);
    memory["lr"] = choice.lr;
    memory["rounds"] = memory.value("rounds", 0) + 1;
    const auto every = std::max<int64_t>(
        4, std::llround(options_.every_epochs * static_cast<double>(observed.steps_per_epoch)));
    if (choice.lr > lr) spacing /= 2;
    if (choice.lr == lr) spacing *= 2;
    begin_way(observed, std::clamp(spacing, first, std::max(first, every)), memory);
    memory["event"] = {{"what", "probe_round"},
                       {"round", memory["rounds"]},
                       {"phase", exploring(observed) ? "explore" : "exploit"},
                       {"probes", memory["points"]},
                       {"probed_lr", observed.last.lr},
                       {"fit", over_rates(choice.fit, observed.last.lr)},
                       {"minimum_lr", minimum_of(choice.fit, observed.last.lr)},
                       {"lr_before", lr},
                       {"lr", choice.lr},
                       {"why", choice.why}};
  }

  struct Choice {
    double lr = 0;
    std::string why;
    std::optional<Quadratic> fit = std::nullopt;  // over multiples of the way
  };

  static Json over_rates(const std::optional<Quadratic>& fit, double lr) {
    return fit ? Json{fit->k0, fit->k1 / lr, fit->k2 / (lr * lr)} : Json();
  }

  // a* of the paper: the learning rate whose updates would have led to the minimum. There is none
  // where the fit is invalid: it bends down, or rises from the beginning of the way.
  static Json minimum_of(const std::optional<Quadratic>& fit, double lr) {
    const bool is_valid = fit && fit->k1 < 0 && fit->k2 > 0;
    return is_valid ? Json(-fit->k1 / (2 * fit->k2) * lr) : Json();
  }

  // As after a step of fp16 that overflowed, or where updates are rounded away.
  static bool changes_nothing(const std::vector<Point>& points) {
    return points.size() == 3 && std::ranges::all_of(points, [&](const Point& p) {
             return p.loss == points.front().loss;
           });
  }

  // By the probes. `counts`: a way that does not lead down says something.
  static Choice choose(const std::vector<Point>& points, double lr, double growth, bool counts,
                       Json& memory) {
    if (changes_nothing(points)) {
      if (points.front().loss == 0) return {lr, "the loss is 0: nothing is left to gain"};
      memory["flat"] = memory.value("flat", 0) + 1;
      const bool leave = !memory.contains("failures") && memory["flat"].get<int>() >= 3;
      return {leave ? kOutOfFlatness * lr : lr, "the last updates did not change the loss"};
    }
    memory["flat"] = 0;
    const double origin = points.front().loss;
    if (points.size() < 3) {  // not finite, or leads up
      const int failures = counts ? memory.value("failures", 0) + 1 : 0;
      memory["failures"] = failures % kPatience;
      if (failures == kPatience) return {lr / 2, "round after round updates do not lower the loss"};
      return {lr, std::isfinite(origin) ? "the last updates did not lower the loss"
                                        : "the loss at the weights is not finite"};
    }
    memory["failures"] = 0;
    memory["good"] = lr;
    const std::vector<double> x = {points[0].at, points[1].at, points[2].at};
    const std::vector<double> y = {points[0].loss, points[1].loss, points[2].loss};
    const std::optional<Quadratic> fit = fit_quadratic(x, y);
    if (fit && fit->k2 <= 0 && fit->k1 < 0)
      return {growth * lr, "the loss falls all along, and the parabola has no minimum", fit};
    if (fit && -fit->k1 > 2 * fit->k2)
      return {growth * lr, "more such updates would lower the loss further", fit};
    return {lr, "updates lower the loss, and more such ones would not", fit};
  }

  // By what training did since the last round.
  static void bound(Choice& choice, double lr, const std::vector<Point>& points, Json& memory) {
    const int count = memory.value("loss_count", 0);
    if (count == 0) return;
    const double mean = memory["loss_sum"].get<double>() / count;
    const double square = std::max(0.0, memory["loss_squares"].get<double>() / count - mean * mean);
    const double deviation = memory.value("deviation", std::sqrt(square));
    memory["loss_sum"] = memory["loss_squares"] = 0.0;
    memory["loss_count"] = 0;
    memory["mean"] = mean;
    memory["deviation"] = std::sqrt(square);
    const double variance = square / count;  // of the mean
    if (mean <= memory.value("lowest", mean)) {
      memory["lowest"] = mean;
      memory["lowest_variance"] = variance;
    }
    const double lowest = memory["lowest"].get<double>(), risen = mean - lowest;
    const double noise = 2 * std::sqrt(variance + memory["lowest_variance"].get<double>());
    const double origin = points.front().loss;
    const double climbed = points.size() > 1 ? points[1].loss - origin : 0;
    if (risen > std::max(0.1 * std::abs(lowest), noise) ||
        climbed > std::max(0.1 * std::abs(origin), deviation)) {
      choice.lr = std::min({choice.lr, lr / 2, memory.value("good", lr) / 2});
      choice.why = "training has raised the loss";
      // The next cut takes another rise.
      memory["lowest"] = mean;
      memory["lowest_variance"] = variance;
    } else if (risen > std::max(0.02 * std::abs(lowest), noise) && choice.lr > lr) {
      choice.lr = lr;
      choice.why = "training does not lower the loss";
    }
  }

  spec::LrtunerOptions options_;
  Hyper hyper_;
};

}  // namespace

std::unique_ptr<RateControl> make_lrtuner_control(const spec::JobOptions& job) {
  return std::make_unique<Lrtuner>(job);
}

}  // namespace ductile::optim
