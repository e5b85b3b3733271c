#include "ductile/data/kernels.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace ductile::data {
namespace {

std::vector<const Kernels*> fast_kernels() {
  std::vector<const Kernels*> tables;
  for (const Kernels* k : {avx2_kernels(), avx512_kernels()}) {
    if (k != nullptr) tables.push_back(k);
  }
  return tables;
}

std::vector<uint8_t> bytes(size_t n) {
  return *rc::gen::container<std::vector<uint8_t>>(n, rc::gen::arbitrary<uint8_t>());
}

RC_GTEST_PROP(Kernels, NormalizeGivesTheSameBits, ()) {
  const size_t n = *rc::gen::inRange<size_t>(0, 100);
  const auto in = bytes(n);
  std::vector<float> scale(n, 0.0171f), bias(n, -1.93f), a(n + 1, 7), b(n + 1, 7);
  scalar_kernels().normalize(in.data(), scale.data(), bias.data(), a.data(), n);
  for (const Kernels* k : fast_kernels()) {
    k->normalize(in.data(), scale.data(), bias.data(), b.data(), n);
    RC_ASSERT(std::memcmp(a.data(), b.data(), (n + 1) * sizeof(float)) == 0);
  }
}

RC_GTEST_PROP(Kernels, MirrorReversesPixels, ()) {
  const int64_t width = *rc::gen::inRange<int64_t>(1, 80);
  const int64_t channels = *rc::gen::element<int64_t>(1, 3, 4);
  const auto in = bytes(static_cast<size_t>(width * channels));
  for (const Kernels* k : {&scalar_kernels(), &kernels()}) {
    std::vector<uint8_t> out(in.size() + 1, 77);
    k->mirror(in.data(), out.data(), width, channels);
    for (int64_t i = 0; i < width * channels; ++i) {
      RC_ASSERT(out[static_cast<size_t>(i)] ==
                in[static_cast<size_t>((width - 1 - i / channels) * channels + i % channels)]);
    }
    RC_ASSERT(out.back() == 77);
  }
}

RC_GTEST_PROP(Kernels, HorizontalGivesTheSameBits, ()) {
  const int64_t width = *rc::gen::inRange<int64_t>(1, 40);
  const int quads = *rc::gen::inRange(1, 4);
  const auto in = bytes(1000);
  std::vector<int32_t> first;
  std::vector<int16_t> weights;
  for (int64_t x = 0; x < width; ++x) {
    first.push_back(*rc::gen::inRange(0, 200));
    for (int q = 0; q < quads; ++q) {
      int16_t tap[4];
      for (int16_t& t : tap) t = static_cast<int16_t>(*rc::gen::inRange(0, 16384 / (4 * quads)));
      for (int half = 0; half < 2; ++half) {
        for (int c = 0; c < 4; ++c) {
          weights.push_back(tap[2 * half]);
          weights.push_back(tap[2 * half + 1]);
        }
      }
    }
  }
  std::vector<int16_t> a(static_cast<size_t>(4 * width)), b(a.size());
  scalar_kernels().horizontal(in.data(), first.data(), weights.data(), quads, width, a.data());
  for (const Kernels* k : fast_kernels()) {
    k->horizontal(in.data(), first.data(), weights.data(), quads, width, b.data());
    RC_ASSERT(a == b);
  }
}

RC_GTEST_PROP(Kernels, VerticalGivesTheSameBitsAndStaysInside, ()) {
  const int64_t width = *rc::gen::inRange<int64_t>(1, 40);
  const int taps = *rc::gen::inRange(1, 9);
  const int64_t channels = *rc::gen::element<int64_t>(1, 3);
  const bool planar = *rc::gen::arbitrary<bool>();
  const size_t stride = static_cast<size_t>((width + 3) / 4 * 16);
  std::vector<int16_t> data(stride * static_cast<size_t>(taps));
  for (int16_t& v : data) v = static_cast<int16_t>(*rc::gen::inRange(0, 32641));
  std::vector<const int16_t*> rows;
  std::vector<int16_t> weights;
  for (int k = 0; k < taps; ++k) {
    rows.push_back(data.data() + static_cast<size_t>(k) * stride);
    weights.push_back(static_cast<int16_t>(*rc::gen::inRange(0, 16384 / taps + 1)));
  }
  const float scale[3] = {1e-7f, 2e-7f, 3e-7f}, bias[3] = {-1, 0.5f, 2};
  const auto run = [&](const Kernels& k) {
    std::vector<float> out(static_cast<size_t>(width * channels) + 8, 99);
    float* at[4] = {};
    for (int64_t c = 0; c < channels; ++c) at[c] = out.data() + (planar ? c * width : c);
    k.vertical(rows.data(), weights.data(), taps, width, scale, bias, channels, at,
               planar ? 1 : channels);
    return out;
  };
  const auto expected = run(scalar_kernels());
  for (size_t i = static_cast<size_t>(width * channels); i < expected.size(); ++i) {
    RC_ASSERT(expected[i] == 99);
  }
  for (const Kernels* k : fast_kernels()) RC_ASSERT(run(*k) == expected);
}

}  // namespace
}  // namespace ductile::data
