#pragma once

#include <array>
#include <cstdint>

#include "ductile/noise/noise_scale.h"

// Goodput as Pollux defines it (Qiao et al., OSDI'21, sections 2.2 and 3.1): training progress per
// second = throughput x statistical efficiency. Pure functions of plain values; thread-safe.
namespace ductile::sched {

using noise::GradientNoise;

// Seconds of one optimiser step on K devices of N nodes, m samples per device, s extra
// micro-batches:
//   grad = alpha_c + beta_c m
//   sync = 0 (K = 1);  alpha_r + beta_r (K-2) (N = 1);  alpha_n + beta_n (K-2) (N > 1)
//   step = s grad + (grad^gamma + sync^gamma)^(1/gamma),  1 <= gamma <= 10
struct PerfParams {
  double alpha_c = 0, beta_c = 0, alpha_n = 0, beta_n = 0, alpha_r = 0, beta_r = 0, gamma = 1;
  bool operator==(const PerfParams&) const = default;
};

// What the application allows, in samples; 1 <= min_local <= max_local, init_batch <= max_batch.
struct BatchLimits {
  int32_t init_batch = 1;  // M0, whose step is the unit of progress
  int32_t max_batch = 1;   // whole batch, over all devices and micro-batches
  int32_t min_local = 1;   // per device and micro-batch, as max_local
  int32_t max_local = 1;
  bool operator==(const BatchLimits&) const = default;
};

double gradient_seconds(const PerfParams& perf, double local_batch);
double sync_seconds(const PerfParams& perf, int32_t nodes, int32_t replicas);
double step_seconds(const PerfParams& perf, int32_t nodes, int32_t replicas, int32_t local_batch,
                    int32_t accumulation);

// How a job splits its batch on an allocation, and the resulting goodput; goodput 0: nothing fits.
struct BatchChoice {
  double goodput = 0;        // progress per second, in samples of batch M0
  int32_t local_batch = 0;   // per device and micro-batch
  int32_t accumulation = 0;  // micro-batches after the first
};

// The best of 50 whole batch sizes in geometric steps from max(M0, min_local K) to max_batch. If K
// = 1 and the batch exceeds M0, there is at least one accumulation step, so that noise can be
// measured.
BatchChoice best_batch(const PerfParams& perf, const GradientNoise& noise,
                       const BatchLimits& limits, int32_t nodes, int32_t replicas);

// The split of a given batch. The accumulation is what max_local requires, with the rule for one
// device as above; the whole batch does not exceed max_batch.
BatchChoice split_batch(const BatchLimits& limits, int32_t replicas, int32_t batch);

// The goodput of a given batch.
double goodput(const PerfParams& perf, const GradientNoise& noise, const BatchLimits& limits,
               int32_t nodes, int32_t replicas, int32_t local_batch, int32_t accumulation);

}  // namespace ductile::sched
