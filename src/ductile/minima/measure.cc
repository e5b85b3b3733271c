#include "ductile/minima/measure.h"

#include <algorithm>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/minima/vectors.h"

namespace ductile::minima {
namespace {

constexpr int64_t kStarts = 2;
constexpr double kGradientCost = 3;  // in losses: forward, and twice as much backward

// Counts what is computed.
class Counted final : public Surface {
 public:
  Counted(Surface& inner, double planned, const std::function<void(double)>& each)
      : inner_(inner), planned_(planned), each_(each) {}

  std::span<const float> weights() const override { return inner_.weights(); }
  std::span<const Filter> filters() const override { return inner_.filters(); }
  double loss(std::span<const float> at) override {
    const double out = inner_.loss(at);
    ++losses;
    tell();
    return out;
  }
  double gradient(std::span<const float> at, std::span<float> out) override {
    const double loss = inner_.gradient(at, out);
    ++gradients;
    tell();
    return loss;
  }

  int64_t losses = 0, gradients = 0;

 private:
  void tell() const {
    const double done =
        static_cast<double>(losses) + kGradientCost * static_cast<double>(gradients);
    if (each_) each_(std::min(done / planned_, 1.0));
  }

  Surface& inner_;
  double planned_;
  const std::function<void(double)>& each_;
};

// In losses; the most that it can be.
double planned_work(const Options& options) {
  const auto gradients = static_cast<double>(
      1 + static_cast<int64_t>(options.epsilon.size()) * kStarts * options.steps +
      (options.lanczos > 0 ? 2 * options.lanczos + 2 : 0));
  int64_t losses = 0;
  if (options.slices == "1d") losses = kLines * kLinePlaces;
  if (options.slices == "2d") losses = kPlanePlaces * kPlanePlaces;
  return kGradientCost * gradients + static_cast<double>(losses);
}

}  // namespace

void describe(Describer& d, Options& o) {
  d.field("samples", o.samples, "training samples on which the loss is measured").at_least(1);
  d.field("epsilon", o.epsilon, "sides of the boxes in which the loss's maximum is sought");
  d.field("subspace", o.subspace, "dimensions of the random subspace of the boxes; 0 = all weights")
      .range(0, 10'000);
  d.field("steps", o.steps, "gradients of each ascent").range(1, 1e6);
  d.field("lanczos", o.lanczos, "products with the Hessian at most; 0 = no eigenvalues")
      .range(0, 300);
  d.field("slices", o.slices, "slices of the loss along random directions")
      .one_of({"1d", "2d", "none"});
  d.field("seed", o.seed, "of the samples, starts and directions").at_least(0);
}

Measurement measure(Surface& surface, const Options& options,
                    const std::function<void(double)>& each) {
  Counted counted(surface, planned_work(options), each);
  const std::span<const float> x = surface.weights();
  Measurement out;
  std::vector<float> gradient(x.size());
  out.loss = counted.gradient(x, gradient);
  out.gradient_norm = norm(gradient);
  out.weight_norm = norm(x);
  if (!std::isfinite(out.loss) || !std::isfinite(out.gradient_norm))
    fail(ErrorCode::conflict,
         "the training loss ({}) or its gradient is not finite at these weights, so they are no "
         "minimum to measure",
         out.loss);
  const auto seed = static_cast<uint64_t>(options.seed);
  for (const double epsilon : options.epsilon) {
    if (!(epsilon > 0) || !std::isfinite(epsilon))
      fail(ErrorCode::invalid_argument, "epsilon = {}: the side of a box is above 0", epsilon);
    out.sharpness.push_back(
        sharpness(counted, out.loss, {epsilon, options.subspace, options.steps, kStarts, seed}));
  }
  if (options.lanczos > 0)
    out.hessian = hessian_spectrum(counted, {.max_products = options.lanczos, .seed = seed});
  if (options.slices == "1d") out.slices = slice_lines(counted, seed);
  if (options.slices == "2d") out.slices = slice_plane(counted, seed);
  out.losses = counted.losses;
  out.gradients = counted.gradients;
  return out;
}

}  // namespace ductile::minima
