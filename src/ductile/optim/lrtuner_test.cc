#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/optim/quadratic_fit.h"
#include "ductile/optim/rate_control.h"

namespace ductile::optim {
namespace {

using Json = nlohmann::json;

TEST(QuadraticFit, IsExactThroughThreePoints) {
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    const double scale = std::exp(rng.uniform(-20, 20));
    const Quadratic want = {rng.uniform(-3, 3), rng.uniform(-2, 2) / scale,
                            rng.uniform(-2, 2) / (scale * scale)};
    const std::vector<double> x = {0, scale * rng.uniform(0.3, 0.7), scale * rng.uniform(0.8, 2)};
    std::vector<double> y;
    for (const double v : x) y.push_back(want.k0 + want.k1 * v + want.k2 * v * v);
    const auto fit = fit_quadratic(x, y);
    ASSERT_TRUE(fit);
    EXPECT_NEAR(fit->k0, want.k0, 1e-11);
    EXPECT_NEAR(fit->k1 * scale, want.k1 * scale, 1e-10);
    EXPECT_NEAR(fit->k2 * scale * scale, want.k2 * scale * scale, 1e-10);
  }
}

// The slow twin: no small change of the coefficients lowers the sum of squares.
TEST(QuadraticFit, HasTheLeastSumOfSquares) {
  Rng rng(2);
  for (int i = 0; i < 500; ++i) {
    std::vector<double> x, y;
    for (int k = 0; k < 7; ++k) {
      x.push_back(rng.uniform(0, 3));
      y.push_back(rng.uniform(-1, 1));
    }
    const auto fit = fit_quadratic(x, y);
    ASSERT_TRUE(fit);
    const auto squares = [&](double k0, double k1, double k2) {
      double out = 0;
      for (size_t j = 0; j < x.size(); ++j)
        out += std::pow(y[j] - (k0 + k1 * x[j] + k2 * x[j] * x[j]), 2);
      return out;
    };
    const double least = squares(fit->k0, fit->k1, fit->k2);
    for (const double step : {-1e-4, 1e-4}) {
      EXPECT_GT(squares(fit->k0 + step, fit->k1, fit->k2), least);
      EXPECT_GT(squares(fit->k0, fit->k1 + step, fit->k2), least);
      EXPECT_GT(squares(fit->k0, fit->k1, fit->k2 + step), least);
    }
  }
}

TEST(QuadraticFit, RefusesPointsThatDetermineNoParabola) {
  const auto fit = [](std::vector<double> x, std::vector<double> y) { return fit_quadratic(x, y); };
  EXPECT_FALSE(fit({}, {}));
  EXPECT_FALSE(fit({0, 1}, {1, 2}));
  EXPECT_FALSE(fit({0, 1, 1, 0}, {1, 2, 3, 4}));
  EXPECT_FALSE(fit({0, 1, 2}, {1, 2, NAN}));
  EXPECT_FALSE(fit({0, 1, INFINITY}, {1, 2, 3}));
}

// Gradient descent with a control, as train/probing.h has it.
struct Descent {
  std::function<double(const std::vector<double>&)> loss;
  std::function<std::vector<double>(const std::vector<double>&)> gradient;
  std::vector<double> w, before, kept;
  std::vector<Json> events;
  std::vector<double> rates;
  int probes = 0;

  void run(const spec::JobOptions& job, int64_t updates, bool through_text = false) {
    const auto control = make_rate_control(job);
    Json memory = Json::object();
    Observed seen{.total = static_cast<double>(updates),
                  .steps_per_epoch = updates / 10,
                  .last = Hyper::of(job)};
    Hyper hyper = control->next(seen, memory);
    while (seen.updates < updates) {
      if (through_text) memory = Json::parse(memory.dump());
      seen.probe_loss.reset();
      if (const std::optional<double> at = control->probe(memory)) {
        ++probes;
        std::vector<double> there = before;
        for (size_t i = 0; i < w.size(); ++i) there[i] += *at * (w[i] - before[i]);
        const double value = loss(there);
        seen.probe_loss = std::isfinite(value) ? value : INFINITY;
      } else {
        const bool keep = control->keeps_weights(memory);
        const std::vector<double> g = gradient(w);
        for (size_t i = 0; i < w.size(); ++i) w[i] -= hyper.lr * g[i];
        if (keep) kept = w;
        before = kept.empty() ? w : kept;
        rates.push_back(hyper.lr);
        seen.last = hyper;
        seen.position = ++seen.updates;
        seen.loss = loss(w);
      }
      hyper = control->next(seen, memory);
      if (memory.contains("event")) {
        events.push_back(memory["event"]);
        events.back()["update"] = seen.updates;
      }
    }
  }
};

spec::JobOptions tuned(double lr, double explore) {
  spec::JobOptions job;
  job.train.rate_control = "lrtuner";
  job.train.lrtuner.explore = explore;
  job.optimizer.lr = lr;
  job.optimizer.momentum = 0;
  return job;
}

Descent parabola(double curvature) {
  Descent d;
  d.loss = [=](const std::vector<double>& w) { return 3 + 0.5 * curvature * w[0] * w[0]; };
  d.gradient = [=](const std::vector<double>& w) { return std::vector<double>{curvature * w[0]}; };
  d.w = {2};
  return d;
}

// The rate grows until it is near 2 / curvature, where updates lead as far up as they led down.
TEST(Lrtuner, SuitsAParabolaFromAnyLearningRate) {
  for (const double curvature : {1e-3, 1.0, 400.0}) {
    for (const double lr : {1e-300, 1e-15, 0.1, 30.0, 1e6}) {
      for (const double explore : {0.1, 0.5}) {
        Descent d = parabola(curvature);
        d.run(tuned(lr, explore), 2000);
        EXPECT_LT(std::abs(d.w[0]), 1e-6) << curvature << " " << lr << " " << explore;
        for (const double rate : d.rates) ASSERT_LT(rate, 4 / curvature);
      }
    }
  }
}

// Where updates of plain gradient descent with a small rate r have gone n times, the minimum lies
// at the rate n times that of one update from the beginning, 1 / curvature, but for the r curvature
// that each has come nearer.
TEST(Lrtuner, ReportsTheMinimumOfTheParabola) {
  int64_t found = 0;
  for (const double curvature : {0.5, 1.0, 40.0}) {
    Descent d = parabola(curvature);
    d.run(tuned(0.1, 0.5), 400);
    int64_t begun = 1;  // the updates at the beginning of the way
    for (const Json& e : d.events) {
      const auto end = e["update"].get<int64_t>();
      double left = 1;  // of the distance to the minimum, at the end of the way
      for (int64_t i = begun; i < end; ++i) left *= 1 - curvature * d.rates[static_cast<size_t>(i)];
      begun = end + 1;
      if (e["minimum_lr"].is_null() || std::abs(left) > 0.999) continue;
      if (e["probes"][0][1].get<double>() - 3 < 1e-6) continue;  // the rest is rounding
      ++found;
      EXPECT_NEAR(e["minimum_lr"].get<double>() * (1 - left), e["probed_lr"].get<double>(),
                  1e-6 * e["probed_lr"].get<double>())
          << e;
    }
  }
  EXPECT_GT(found, 10);
}

TEST(Lrtuner, KeepsTheLearningRateWhereARoundSaysNothing) {
  const auto first_event = [](const std::function<double(double)>& loss, double slope) {
    Descent d;
    d.loss = [=](const std::vector<double>& w) { return loss(w[0]); };
    d.gradient = [=](const std::vector<double>&) { return std::vector<double>{slope}; };
    d.w = {0};
    d.run(tuned(0.1, 1), 6);
    return d.events.at(0);
  };
  const Json uphill = first_event([](double w) { return 3 - w; }, 1);
  EXPECT_EQ(uphill["lr"], uphill["lr_before"]);
  EXPECT_EQ(uphill["why"], "the last updates did not lower the loss");
  EXPECT_TRUE(uphill["minimum_lr"].is_null());
  const Json lost = first_event([](double) { return NAN; }, 1);
  EXPECT_EQ(lost["lr"], lost["lr_before"]);
  EXPECT_EQ(lost["why"], "the loss at the weights is not finite");
  // A line that bends down has no minimum, and one that bends up a little has it far away.
  for (const double bend : {0.1, -0.1}) {
    const Json e = first_event([=](double w) { return 3 + w + bend * w * w; }, 1);
    EXPECT_EQ(e["why"], bend < 0 ? "the loss falls all along, and the parabola has no minimum"
                                 : "more such updates would lower the loss further");
    EXPECT_EQ(e["minimum_lr"].is_null(), bend < 0);
    EXPECT_EQ(e["lr"].get<double>(), 2 * e["lr_before"].get<double>());
  }
}

TEST(Lrtuner, HalvesTheLearningRateWhereRoundAfterRoundLeadsUp) {
  Descent d;
  d.loss = [](const std::vector<double>& w) { return 3 - w[0]; };
  d.gradient = [](const std::vector<double>&) { return std::vector<double>{1}; };
  d.w = {0};
  d.run(tuned(0.1, 1), 100);
  ASSERT_GE(d.events.size(), 6U);
  EXPECT_EQ(d.events[1]["lr"], d.events[0]["lr_before"]);
  for (size_t i = 4; i < d.events.size(); ++i)
    EXPECT_LE(d.events[i]["lr"].get<double>(), 0.5 * d.events[i - 4]["lr_before"].get<double>());
}

TEST(Lrtuner, ExploitsAlongALineToZero) {
  Descent d = parabola(2);
  d.run(tuned(0.01, 0.5), 200);
  const double peak = d.rates[99];
  EXPECT_GT(peak, 0.05);
  EXPECT_LT(peak, 2.0);  // 4 / curvature
  for (size_t i = 100; i < 200; ++i)
    EXPECT_LE(d.rates[i], 1.0001 * peak * (static_cast<double>(200 - i) / 100));
  EXPECT_GT(d.rates[199], 0.0);
}

// A way that is flat and long, and a sharp direction across it in which there is next to nothing at
// first: a single update shows only that a step of 20 does not raise the loss, and a few such steps
// make the sharp direction all there is. Momentum brings it in late.
TEST(Lrtuner, DoesNotRunAwayWithWhatOneUpdateShows) {
  const std::vector<double> curvature = {0.1, 100};
  for (const double momentum : {0.0, 0.9}) {
    std::vector<double> velocity = {0, 0};
    Descent d;
    d.w = {100, 1e-6};
    d.loss = [&](const std::vector<double>& w) {
      return 0.5 * (curvature[0] * w[0] * w[0] + curvature[1] * w[1] * w[1]);
    };
    d.gradient = [&](const std::vector<double>& w) {
      for (size_t i = 0; i < 2; ++i) velocity[i] = momentum * velocity[i] + curvature[i] * w[i];
      return velocity;
    };
    const double begin = d.loss(d.w);
    spec::JobOptions job = tuned(0.1, 0.5);
    job.optimizer.momentum = momentum;
    d.run(job, 2000);
    EXPECT_LT(d.loss(d.w), 0.1 * begin) << momentum;
    for (const double rate : d.rates) ASSERT_LT(rate, 1) << momentum;
  }
}

// Where rounds are far apart, a rate that has become too large may do harm for long.
TEST(Lrtuner, ALossThatLeapsBeginsARound) {
  Descent d;
  d.w = {1};
  d.loss = [&d](const std::vector<double>&) { return d.rates.size() < 333 ? 3 : 5; };
  d.gradient = [](const std::vector<double>&) { return std::vector<double>{0}; };
  spec::JobOptions job = tuned(0.1, 1);
  job.train.lrtuner.every_epochs = 1;
  d.run(job, 1000);
  std::vector<int64_t> at;
  for (const Json& e : d.events) at.push_back(e["update"]);
  EXPECT_NE(std::ranges::find(at, 333), at.end()) << Json(at);
}

// Near the minimum, gradients are noise, and that of an update is none of the samples that are
// probed after it: most steps raise the loss of the probes, and the losses of training are level
// but for noise. Neither may keep the rate far below its line.
TEST(Lrtuner, NoiseDoesNotHoldTheRateBelowTheLine) {
  int below = 0, seen = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    double slope = 0;
    Descent d;
    d.w = {2};
    d.loss = [&](const std::vector<double>& w) { return 3 + w[0] * w[0] + slope * w[0]; };
    d.gradient = [&](const std::vector<double>& w) {
      slope = rng.normal();
      return std::vector<double>{2 * w[0] + rng.normal()};
    };
    d.run(tuned(0.01, 0.5), 2000);
    const double peak = d.rates[999];
    EXPECT_GT(peak, 0.001) << seed;
    for (size_t i = 1000; i < 2000; ++i, ++seen)
      below += d.rates[i] < 0.2 * peak * static_cast<double>(2000 - i) / 1000;
  }
  EXPECT_LT(below, seen / 10);
}

// After a cut the rate grows again, and nowhere above the line.
TEST(Lrtuner, GrowsBackToTheLineAfterACutAndNoFurther) {
  Descent d;
  d.w = {2};
  d.loss = [&d](const std::vector<double>& w) {
    const size_t n = d.rates.size();
    return (n > 1000 && n < 1040 ? 5 : 3) + 0.5 * w[0] * w[0];  // a rise that passes
  };
  d.gradient = [](const std::vector<double>& w) { return std::vector<double>{w[0]}; };
  d.run(tuned(0.01, 0.4), 2000);
  const double peak = d.rates[799];
  double least = 1, largest = 0;  // of the line
  for (size_t i = 800; i < 2000; ++i) {
    const double share = d.rates[i] / (peak * static_cast<double>(2000 - i) / 1200);
    EXPECT_LE(share, 1.0001) << i;
    if (share < least) largest = 0;
    least = std::min(least, share);
    largest = std::max(largest, share);
  }
  EXPECT_LT(least, 0.6);
  EXPECT_GT(largest, 1.5 * least);
}

// Without an explore phase the line begins at the first rate.
TEST(Lrtuner, NeverGrowsWithoutAnExplorePhase) {
  Descent d = parabola(1e-3);
  d.run(tuned(0.1, 0), 200);
  for (size_t i = 0; i < 200; ++i)
    EXPECT_LE(d.rates[i], 1.0001e-3 * static_cast<double>(200 - i) / 200) << i;
  ASSERT_GT(d.events.size(), 3U);
  for (const Json& e : d.events)
    if (const size_t update = e["update"].get<size_t>(); update < 200) {
      EXPECT_DOUBLE_EQ(e["lr"].get<double>(), d.rates[update]);
    }
  EXPECT_EQ(d.events[0]["why"],
            "more such updates would lower the loss further; the rate follows its line to 0");
}

// What a round says and what it changes is the rate that is trained with, not one above the line.
TEST(Lrtuner, RoundsOnTheLineSayAndChangeTheRateThatIsUsed) {
  Descent falling = parabola(2);  // its minimum stays where it is, and the line goes below it
  falling.run(tuned(0.01, 0.5), 200);
  Descent lost = parabola(2);
  lost.loss = [&lost](const std::vector<double>& w) {
    return (lost.rates.size() < 110 ? 1 : -1) * w[0] * w[0];  // no step lowers it any more
  };
  lost.run(tuned(0.01, 0.5), 200);
  for (const Descent* d : {&falling, &lost}) {
    size_t exploiting = 0;
    for (const Json& e : d->events) {
      const size_t update = e["update"].get<size_t>();  // those done
      if (e["phase"] != "exploit" || update >= d->rates.size()) continue;
      ++exploiting;
      EXPECT_DOUBLE_EQ(e["lr"].get<double>(), d->rates[update]) << e;
      EXPECT_LE(e["lr_before"].get<double>(), d->rates[update - 1]) << e;
    }
    EXPECT_GE(exploiting, 4U);
  }
}

TEST(Lrtuner, ConvergesOnARandomQuadraticProblem) {
  Rng rng(5);
  Descent d;
  std::vector<double> curvature;
  for (int i = 0; i < 20; ++i) {
    curvature.push_back(std::exp(rng.uniform(-2, 2)));
    d.w.push_back(rng.normal());
  }
  d.loss = [=](const std::vector<double>& w) {
    double out = 0;
    for (size_t i = 0; i < w.size(); ++i) out += 0.5 * curvature[i] * w[i] * w[i];
    return out;
  };
  d.gradient = [=](const std::vector<double>& w) {
    std::vector<double> g;
    for (size_t i = 0; i < w.size(); ++i) g.push_back(curvature[i] * w[i]);
    return g;
  };
  const double begin = d.loss(d.w);
  d.run(tuned(1e-8, 0.5), 400);
  EXPECT_LT(d.loss(d.w), 1e-4 * begin);
}

TEST(Lrtuner, GoesOnToTheBitFromASavedMemory) {
  Descent a = parabola(3), b = parabola(3);
  a.run(tuned(1e-5, 0.5), 100, false);
  b.run(tuned(1e-5, 0.5), 100, true);
  EXPECT_EQ(a.rates, b.rates);
  EXPECT_EQ(a.events, b.events);
}

// Overflow in fp16 skips an update, whose loss may not be finite. JSON has no such number, so the
// memory of a checkpoint would not be that of the run.
TEST(Lrtuner, GoesOnFromAMemoryThatWasSavedAfterAnOverflow) {
  const auto control = make_rate_control(tuned(0.1, 1));
  for (const double loss : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    Json memory = Json::object();
    Observed seen;
    seen.total = seen.steps_per_epoch = 100;
    seen.last = control->next(seen, memory);
    seen.position = seen.updates = 1;
    seen.loss = loss;
    seen.last = control->next(seen, memory);
    Json saved = Json::parse(memory.dump());
    EXPECT_EQ(saved, memory);
    seen.position = ++seen.updates;
    seen.loss = 2;
    EXPECT_EQ(control->next(seen, saved).lr, control->next(seen, memory).lr);
    EXPECT_EQ(saved, memory);
  }
}

// An update of fp16 that overflows moves no weight, so its probes say nothing.
TEST(Lrtuner, AnUpdateThatChangedNothingChangesNoRate) {
  Descent d;
  d.loss = [](const std::vector<double>&) { return 3; };
  d.gradient = [](const std::vector<double>&) { return std::vector<double>{0}; };
  d.w = {1};
  d.run(tuned(0.1, 1), 6);
  ASSERT_FALSE(d.events.empty());
  EXPECT_EQ(d.events[0]["lr"], d.events[0]["lr_before"]);
  EXPECT_EQ(d.events[0]["why"], "the last updates did not change the loss");
  EXPECT_EQ(d.events[0]["probes"].size(), 3U);
}

// Weights of fp32 round small updates away, and the line along them is a point.
TEST(Lrtuner, FindsARateThoughTheFirstUpdatesAreRoundedAway) {
  Descent d;
  d.loss = [](const std::vector<double>& w) {
    const double x = static_cast<float>(w[0]);
    return 0.5 * (x - 3000) * (x - 3000);
  };
  d.gradient = [](const std::vector<double>& w) {
    return std::vector<double>{1e-4 * (w[0] - 3000)};
  };
  d.w = {4096};
  const double begin = d.loss(d.w);
  d.run(tuned(1e-12, 0.5), 400);
  EXPECT_EQ(d.events.at(0)["why"], "the last updates did not change the loss");
  EXPECT_LT(d.loss(d.w), 1e-3 * begin);
}

TEST(Lrtuner, BeginsWithARateThatNeitherDestroysNorIsRoundedAway) {
  for (const double lr : {0.0, 1e-320, 1e-15, 1e-3, 0.1, 1e3, 1e300}) {
    Descent d = parabola(1);
    const double begin = d.loss(d.w);
    d.run(tuned(lr, 0.5), 40);
    EXPECT_GE(d.rates.at(0), 1e-4) << lr;
    EXPECT_LE(d.rates.at(0), 1e-3) << lr;
    EXPECT_LT(d.loss(d.w), begin) << lr;
  }
}

TEST(Lrtuner, StaysFiniteWhereUpdatesChangeNothing) {
  Descent d;
  d.loss = [](const std::vector<double>&) { return 3; };
  d.gradient = [](const std::vector<double>&) { return std::vector<double>{0}; };
  d.w = {1};
  d.run(tuned(0.1, 1), 5000);
  for (const double rate : d.rates) ASSERT_LE(rate, 1e6);
}

// Weight decay goes on there, and a rate out of all bounds would make it destroy the weights.
TEST(Lrtuner, ALossOfZeroIsNoReasonToRaiseTheRate) {
  Descent d;
  d.loss = [](const std::vector<double>&) { return 0; };
  d.gradient = [](const std::vector<double>&) { return std::vector<double>{0}; };
  d.w = {1};
  d.run(tuned(0.1, 1), 2000);
  for (const double rate : d.rates) ASSERT_LE(rate, 1e-3);
  EXPECT_EQ(d.events.back()["why"], "the loss is 0: nothing is left to gain");
}

// Before an update that begins a way a step method may only look at samples.
TEST(Lrtuner, KeepsTheWeightsOfTheNextUpdateHoweverLongThatTakes) {
  const auto job = tuned(0.1, 0.5);
  const auto control = make_rate_control(job);
  Json memory = Json::object();
  Observed seen{.total = 100, .steps_per_epoch = 10, .last = Hyper::of(job)};
  for (int look = 0; look < 3; ++look) {
    seen.last = control->next(seen, memory);
    EXPECT_TRUE(control->keeps_weights(memory));
  }
  seen.position = seen.updates = 1;
  seen.loss = 1;
  control->next(seen, memory);
  EXPECT_FALSE(control->keeps_weights(memory));
}

}  // namespace
}  // namespace ductile::optim
