#pragma once

#include "ductile/nn/kernels/act_impl.h"
#include "ductile/nn/kernels/storage_impl.h"

// Batch normalisation's passes over NHWC activations, on a vector type V.
namespace ductile::nn::kernels {

// Joins `count` values of given mean and squared deviations to channels [c, c + lanes).
// moments->count is the number of values before; the caller advances it.
template <class V>
void merge_moments(typename V::Reg mean, typename V::Reg m2, int64_t count, Moments* moments,
                   int64_t c) {
  const float before = static_cast<float>(moments->count), added = static_cast<float>(count);
  const float share = added / (before + added);
  const auto old_mean = V::load(moments->mean + c);
  const auto delta = V::sub(mean, old_mean);
  const auto m2_sum = V::add(V::load(moments->m2 + c), m2);
  V::store(moments->mean + c, V::fma(delta, V::all(share), old_mean));
  V::store(moments->m2 + c, V::fma(V::mul(delta, delta), V::all(before * share), m2_sum));
}

// Joins kBlocks blocks of `count` pixels, which follow each other from p on, to channels
// [c, c + lanes). The additions of one block wait for each other; those of several go side by side.
template <class V, int kBlocks>
void join_blocks(const float* p, int64_t count, int64_t channels, const Moments& before,
                 int64_t c) {
  typename V::Reg sum[kBlocks], mean[kBlocks], m2[kBlocks];
  const int64_t apart = count * channels;
#pragma GCC unroll 4
  for (int b = 0; b < kBlocks; ++b) sum[b] = m2[b] = V::zero();
  for (int64_t i = 0; i < count; ++i)
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b)
      sum[b] = V::add(sum[b], V::load(p + b * apart + i * channels));
#pragma GCC unroll 4
  for (int b = 0; b < kBlocks; ++b)
    mean[b] = V::mul(sum[b], V::all(1.0F / static_cast<float>(count)));
  for (int64_t i = 0; i < count; ++i)
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      const auto d = V::sub(V::load(p + b * apart + i * channels), mean[b]);
      m2[b] = V::fma(d, d, m2[b]);
    }
#pragma GCC unroll 4
  for (int b = 0; b < kBlocks; ++b) {
    Moments so_far = before;
    so_far.count += b * count;
    merge_moments<V>(mean[b], m2[b], count, &so_far, c);
  }
}

template <class V>
void moments(const float* pixels, int64_t n, int64_t channels, Moments* moments) {
  constexpr int64_t kBlock = 32;
  constexpr int kTogether = 2;
  int64_t first = 0;
  for (; first + kTogether * kBlock <= n; first += kTogether * kBlock) {
    for (int64_t c = 0; c < channels; c += V::lanes)
      join_blocks<V, kTogether>(pixels + first * channels + c, kBlock, channels, *moments, c);
    moments->count += kTogether * kBlock;
  }
  for (; first < n; first += kBlock) {
    const int64_t count = n - first < kBlock ? n - first : kBlock;
    for (int64_t c = 0; c < channels; c += V::lanes)
      join_blocks<V, 1>(pixels + first * channels + c, count, channels, *moments, c);
    moments->count += count;
  }
}

// Calls f(first, end, c) for blocks of few pixels, which stay in the first cache, and for every
// vector of channels from c on, whose constants f then loads once a block. f has copies of all that
// it reads: what is written through vectors may lie anywhere, for all that a compiler knows, so
// what is only pointed at would be loaded again behind each of them.
template <class V, class F>
void for_pixel_blocks(int64_t pixels, int64_t channels, const F& f) {
  constexpr int64_t kBlock = 32;
  for (int64_t first = 0; first < pixels; first += kBlock) {
    const int64_t end = first + kBlock < pixels ? first + kBlock : pixels;
    for (int64_t c = 0; c < channels; c += V::lanes) f(first, end, c);
  }
}

template <class V>
struct NormApplyRun {
  const NormApply& p;

  template <Storage S, bool kResidual, Act kAct>
  void loop() const {
    const NormApply q = p;
    for_pixel_blocks<V>(q.pixels, q.channels, [q](int64_t first, int64_t end, int64_t c) {
      const auto scale = V::load(q.scale + c), shift = V::load(q.shift + c);
      for (int64_t i = first; i < end; ++i) {
        const int64_t at = i * q.channels + c;
        auto x = V::fma(scale, load_as<V, S>(q.y, at), shift);
        if constexpr (kResidual) x = V::add(x, load_as<V, S>(q.residual, at));
        if constexpr (kAct == Act::relu) x = V::relu(x);
        if constexpr (kAct == Act::gelu) x = Gelu<V>(x).value();
        if constexpr (kAct == Act::silu) x = Silu<V>(x).value();
        store_as<V, S>(q.out, at, x);
      }
    });
  }

  template <Storage S, Act kAct>
  void with() const {
    p.residual != nullptr ? loop<S, true, kAct>() : loop<S, false, kAct>();
  }

  template <Storage S>
  void run() const {
    if (p.act == Act::none) with<S, Act::none>();
    if (p.act == Act::relu) with<S, Act::relu>();
    if (p.act == Act::gelu) with<S, Act::gelu>();
    if (p.act == Act::silu) with<S, Act::silu>();
  }
};

template <class V>
void norm_apply(const NormApply& p) {
  with_storage(p.storage, NormApplyRun<V>{p});
}

template <class V>
struct NormReduceRun {
  const NormReduce& p;

  enum class Mask { none, from_y, from_out, gelu, silu };

  template <Storage S, Mask kMask, bool kWriteG>
  void loop() const {
    const NormReduce q = p;
    for (int64_t c = 0; c < q.channels; c += V::lanes) {
      V::store(q.sum_g + c, V::zero());
      V::store(q.sum_gy + c, V::zero());
    }
    constexpr int64_t kBlock = 32;  // sums of blocks, then of their sums: less rounding
    for (int64_t first = 0; first < q.pixels; first += kBlock) {
      const int64_t end = first + kBlock < q.pixels ? first + kBlock : q.pixels;
      for (int64_t c = 0; c < q.channels; c += V::lanes) {
        const auto scale = V::load(q.scale + c), shift = V::load(q.shift + c);
        const auto mean = V::load(q.mean + c);
        typename V::Reg sum_g[2] = {V::zero(), V::zero()}, sum_gy[2] = {V::zero(), V::zero()};
        const auto take = [&](int64_t i, int chain) {
          const int64_t at = i * q.channels + c;
          auto g = load_as<V, S>(q.grad, at);
          const auto y = load_as<V, S>(q.y, at);
          if constexpr (kMask == Mask::from_y) g = V::where_positive(V::fma(scale, y, shift), g);
          if constexpr (kMask == Mask::from_out) g = V::where_positive(load_as<V, S>(q.out, at), g);
          if constexpr (kMask == Mask::gelu)
            g = V::mul(g, Gelu<V>(V::fma(scale, y, shift)).slope());
          if constexpr (kMask == Mask::silu)
            g = V::mul(g, Silu<V>(V::fma(scale, y, shift)).slope());
          if constexpr (kWriteG) store_as<V, S>(q.g, at, g);
          sum_g[chain] = V::add(sum_g[chain], g);
          sum_gy[chain] = V::fma(g, V::sub(y, mean), sum_gy[chain]);
        };
        int64_t i = first;
        for (; i + 2 <= end; i += 2) {
          take(i, 0);
          take(i + 1, 1);
        }
        if (i < end) take(i, 0);
        V::store(q.sum_g + c, V::add(V::load(q.sum_g + c), V::add(sum_g[0], sum_g[1])));
        V::store(q.sum_gy + c, V::add(V::load(q.sum_gy + c), V::add(sum_gy[0], sum_gy[1])));
      }
    }
  }

  template <Storage S>
  void run() const {
    if (p.act == Act::gelu) return loop<S, Mask::gelu, true>();
    if (p.act == Act::silu) return loop<S, Mask::silu, true>();
    if (p.g != nullptr) {
      if (p.act == Act::none) return loop<S, Mask::none, true>();
      return p.out != nullptr ? loop<S, Mask::from_out, true>() : loop<S, Mask::from_y, true>();
    }
    if (p.act == Act::none) return loop<S, Mask::none, false>();
    return p.out != nullptr ? loop<S, Mask::from_out, false>() : loop<S, Mask::from_y, false>();
  }
};

template <class V>
void norm_reduce(const NormReduce& p) {
  with_storage(p.storage, NormReduceRun<V>{p});
}

template <class V>
struct LoadGrad {
  const GradSource& p;
  int64_t first, n, channels;
  float* dst;

  template <Storage S, bool kRelu>
  void loop() const {
    const LoadGrad own = *this;
    const GradSource q = p;
    for_pixel_blocks<V>(n, channels, [own, q](int64_t begin, int64_t end, int64_t c) {
      const auto a = V::load(q.a + c), b = V::load(q.b + c), d = V::load(q.d + c);
      const auto mean = V::load(q.mean + c);
      [[maybe_unused]] auto scale = V::zero(), shift = V::zero();
      if constexpr (kRelu) {
        scale = V::load(q.scale + c);
        shift = V::load(q.shift + c);
      }
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = (own.first + i) * own.channels + c;
        auto g = load_as<V, S>(q.grad, at);
        const auto y = load_as<V, S>(q.y, at);
        if constexpr (kRelu) g = V::where_positive(V::fma(scale, y, shift), g);
        const auto rest = V::fma(b, V::sub(y, mean), d);
        V::store(own.dst + i * own.channels + c, V::fma(a, g, rest));
      }
    });
  }

  template <Storage S>
  void run() const {
    if (p.y == nullptr)
      return to_float<V>(static_cast<const char*>(p.grad) + first * channels * bytes_of(S), S, dst,
                         n * channels);
    return p.relu ? loop<S, true>() : loop<S, false>();
  }
};

template <class V>
void load_grad(const GradSource& p, int64_t first, int64_t n, int64_t channels, float* dst) {
  with_storage(p.storage, LoadGrad<V>{p, first, n, channels, dst});
}

}  // namespace ductile::nn::kernels
