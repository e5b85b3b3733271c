#pragma once

#include <cstdint>
#include <optional>

#include "ductile/sched/goodput.h"

// Estimates the gradient noise scale while training, from norms of gradients that are computed
// anyway (Pollux, section 3.2; McCandlish et al. 2018, appendix A).
namespace ductile::sched {

// What one optimiser step shows. Norms are of gradients after the optimiser's preconditioner P
// (Adam: 1/(sqrt(v)+eps); else the identity), each micro-batch's divided by its sample count.
struct NoiseSample {
  int32_t parts = 1;            // micro-batches of the step: replicas x accumulation
  double scale = 1;             // the step's whole batch / M0
  double mean_square_norm = 0;  // mean over parts of |P g_k|^2
  double square_norm_mean = 0;  // |P mean_k g_k|^2
};

// One step of several micro-batches says |g|^2 and tr(Sigma) without bias. Of a step of one part
// two gradients in a row stand in for two parts; add_pair() takes those, and what it learned is
// forgotten once add() has unbiased data. Averages are exponential with factor 0.999^scale,
// corrected for their start. A plain value.
class NoiseEstimator {
 public:
  // At least two parts; fewer throws invalid_argument.
  void add(const NoiseSample& sample);
  // Two steps of one micro-batch each, in a row: |P g_1|^2, |P g_2|^2 and |P (g_1+g_2)/2|^2.
  void add_pair(double scale, double square_1, double square_2, double square_of_mean);

  // None before the first sample. sqr is at least 0, var at least 1e-6.
  std::optional<GradientNoise> noise() const;
  // Noise scale in samples: M0 var / sqr; infinite where sqr is 0.
  std::optional<double> noise_scale(double init_batch) const;
  bool unbiased() const { return unbiased_; }

 private:
  void update(double scale, double sqr, double var);

  double sqr_ = 0, var_ = 0;  // weighted sums
  double weight_ = 0;         // of them
  bool unbiased_ = false;
};

}  // namespace ductile::sched
