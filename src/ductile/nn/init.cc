#include "ductile/nn/init.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "ductile/base/rng.h"

namespace ductile::nn {
namespace {

// FNV-1a: the stream of a parameter. It must never change, or seeds would mean other weights.
uint64_t stream_of(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3;
  return h;
}

// Each run of kChunk elements has its own substream, so threads may share the work.
template <class Draw>
at::Tensor draw(const std::vector<int64_t>& shape, uint64_t seed, std::string_view name,
                Draw&& one) {
  constexpr int64_t kChunk = 4096;
  at::Tensor result = at::empty(shape, at::kFloat);
  float* values = result.data_ptr<float>();
  const int64_t n = result.numel();
  const uint64_t stream = stream_of(name);
  at::parallel_for(0, (n + kChunk - 1) / kChunk, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      Rng rng(seed, stream, static_cast<uint64_t>(chunk));
      const int64_t stop = std::min(n, (chunk + 1) * kChunk);
      for (int64_t i = chunk * kChunk; i < stop; ++i) values[i] = one(rng);
    }
  });
  return result;
}

}  // namespace

at::Tensor init_uniform(const std::vector<int64_t>& shape, double bound, uint64_t seed,
                        std::string_view name) {
  return draw(shape, seed, name,
              [bound](Rng& rng) { return static_cast<float>(rng.uniform(-bound, bound)); });
}

at::Tensor init_normal(const std::vector<int64_t>& shape, double stddev, uint64_t seed,
                       std::string_view name) {
  const auto s = static_cast<float>(stddev);
  return draw(shape, seed, name, [s](Rng& rng) { return s * rng.normal(); });
}

at::Tensor init_constant(const std::vector<int64_t>& shape, double value) {
  return at::full(shape, value, at::kFloat);
}

}  // namespace ductile::nn
