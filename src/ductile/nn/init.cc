#include "ductile/nn/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "ductile/base/rng.h"
#include "ductile/nn/first_values.h"

namespace ductile::nn {
namespace {

// FNV-1a: the stream of a parameter. It must never change, or seeds would mean other weights.
uint64_t stream_of(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3;
  return h;
}

// Each run of kChunk elements has its own substream, so threads may share the work. fill(rng, out,
// n) draws the n elements of one run.
template <class Fill>
at::Tensor draw(const std::vector<int64_t>& shape, uint64_t seed, std::string_view name,
                Fill&& fill) {
  constexpr int64_t kChunk = 4096;
  at::Tensor result = at::empty(shape, at::kFloat);
  if (const FirstValues* first = FirstValues::present(); first != nullptr && !first->wants(name))
    return result;  // that nobody reads
  float* values = result.data_ptr<float>();
  const int64_t n = result.numel();
  const uint64_t stream = stream_of(name);
  at::parallel_for(0, (n + kChunk - 1) / kChunk, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      Rng rng(seed, stream, static_cast<uint64_t>(chunk));
      const int64_t first = chunk * kChunk;
      fill(rng, values + first, std::min(kChunk, n - first));
    }
  });
  return result;
}

}  // namespace

at::Tensor init_uniform(const std::vector<int64_t>& shape, double bound, uint64_t seed,
                        std::string_view name) {
  return draw(shape, seed, name, [bound](Rng& rng, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(rng.uniform(-bound, bound));
  });
}

at::Tensor init_normal(const std::vector<int64_t>& shape, double stddev, uint64_t seed,
                       std::string_view name) {
  // Box-Muller, both of its values; in double, so that the rounded result hardly depends on the
  // mathematics library.
  return draw(shape, seed, name, [stddev](Rng& rng, float* out, int64_t n) {
    for (int64_t i = 0; i < n; i += 2) {
      const double u = (rng.next() + 1.0) * 0x1p-32;
      const double angle = 2 * std::numbers::pi * (rng.next() * 0x1p-32);
      const double radius = stddev * std::sqrt(-2 * std::log(u));
      out[i] = static_cast<float>(radius * std::cos(angle));
      if (i + 1 < n) out[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
  });
}

at::Tensor init_constant(const std::vector<int64_t>& shape, double value) {
  return at::full(shape, value, at::kFloat);
}

}  // namespace ductile::nn
