#pragma once

#include <cstdint>
#include <optional>

// The noise of gradients: what a larger batch gains, and how the noise is estimated while training,
// from norms of gradients that are computed anyway (Pollux, sections 2.2 and 3.2; McCandlish et al.
// 2018, appendix A). Training measures it and the scheduler reads it.
namespace ductile::noise {

// Estimates of |g|^2 and of tr(Sigma) / M0, both for the initial batch size M0. Never negative.
struct GradientNoise {
  double sqr = 0, var = 0;
  bool operator==(const GradientNoise&) const = default;
};

// Progress of one step of batch M in steps of batch M0: (var + sqr) / (var M0/M + sqr), 1 if
// nothing is known; scale is M/M0. It is also AdaScale's learning-rate factor (Johnson et al.,
// ICML'20).
double gain(const GradientNoise& noise, double scale);
// gain / scale, in (0, 1].
double efficiency(const GradientNoise& noise, double scale);
// Factors on the learning rate for a batch `scale` times as large: for SGD, and for rules like
// Adam.
double adascale_factor(const GradientNoise& noise, double scale);
double square_root_factor(double scale);

// The measurements of one optimiser step. Norms are those of gradients after the optimiser's
// preconditioner P (for Adam 1/(sqrt(v)+eps), otherwise the identity); the gradient of each
// micro-batch is divided by its sample count.
struct NoiseSample {
  int32_t parts = 1;            // micro-batches of the step: replicas x accumulation, at least 2
  double scale = 1;             // the step's whole batch / M0
  double mean_square_norm = 0;  // mean over parts of |P g_k|^2
  double square_norm_mean = 0;  // |P mean_k g_k|^2
  double steps = 1;             // that it stands for, where not all of them are measured
};

// One step of several micro-batches gives |g|^2 and tr(Sigma) without bias. If steps have one part,
// the gradients of two successive ones can stand for two parts of a step that is twice as large;
// how far the weights went between them counts as noise then. Averages are exponential with factor
// 0.999^(scale steps), and corrected for their start. It is a plain value.
class NoiseEstimator {
 public:
  // All that the estimator knows, to be saved and restored.
  struct State {
    double sqr = 0, var = 0;  // weighted sums
    double weight = 0;        // of them
    bool operator==(const State&) const = default;
  };

  NoiseEstimator() = default;
  explicit NoiseEstimator(const State& state) : state_(state) {}
  const State& state() const { return state_; }

  // The sample must have at least two parts; with fewer, throws invalid_argument.
  void add(const NoiseSample& sample);

  // There is none before the first sample. sqr is at least 0, var at least 1e-6 of sqr.
  std::optional<GradientNoise> noise() const;
  // The noise scale in samples: M0 var / sqr; infinite if sqr is 0.
  std::optional<double> noise_scale(double init_batch) const;

 private:
  void update(double batches, double sqr, double var);  // of size M0

  State state_;
};

// Noise scale in samples of such an estimate: M0 var / sqr; infinite where sqr is 0.
double noise_scale(const GradientNoise& noise, double init_batch);

}  // namespace ductile::noise
