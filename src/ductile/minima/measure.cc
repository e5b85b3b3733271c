#include "ductile/minima/measure.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "ductile/base/error.h"
#include "ductile/base/machine.h"
#include "ductile/minima/vectors.h"

namespace ductile::minima {
namespace {

constexpr int64_t kStarts = 2;
// Lanczos' method has the next vector, both places of a difference and the eigenvector beside those
// that it keeps.
constexpr int64_t kVectorsBesideTheBasis = 4;
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
  d.field("steps", o.steps, "gradients of each ascent, the first of which is at its start")
      .range(2, 1e6);
  d.field("lanczos", o.lanczos, "products with the Hessian at most; 0 = no eigenvalues")
      .range(0, 300);
  d.field("slices", o.slices, "slices of the loss along random directions")
      .one_of({"1d", "2d", "none"});
  d.field("seed", o.seed, "of the samples, starts and directions").at_least(0);
}

void require_memory(int64_t num_weights, const Options& options, int64_t available) {
  if (options.lanczos == 0 || available <= 0 || num_weights == 0) return;
  const int64_t vector = num_weights * static_cast<int64_t>(sizeof(float));
  const int64_t products = std::min(options.lanczos, num_weights);
  const int64_t needed = (products + kVectorsBesideTheBasis) * vector;
  if (needed <= available) return;
  const int64_t most = std::max<int64_t>(available / vector - kVectorsBesideTheBasis, 0);
  constexpr double kGiB = 1 << 30;
  fail(ErrorCode::unavailable,
       "--lanczos {}: the method keeps a vector of the model's {} weights for each product, {:.1f} "
       "GiB in all, and {:.1f} GiB of memory are free; {}",
       options.lanczos, num_weights, static_cast<double>(needed) / kGiB,
       static_cast<double>(available) / kGiB,
       most > 1 ? fmt::format("set --lanczos {} or less, or 0 for no eigenvalues", most)
                : "set --lanczos 0 for no eigenvalues, or use a machine with more memory");
}

Measurement measure(Surface& surface, const Options& options,
                    const std::function<void(double)>& each) {
  Counted counted(surface, planned_work(options), each);
  const std::span<const float> x = surface.weights();
  const MemoryShare memory = memory_share();
  require_memory(std::ssize(x), options,
                 memory.limit > 0 ? std::min(memory.limit, memory.available) : memory.available);
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
      fail(ErrorCode::invalid_argument,
           "epsilon = {}: the side of a box must be above 0 and finite", epsilon);
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
