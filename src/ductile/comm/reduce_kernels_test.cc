#include "ductile/comm/reduce_kernels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

std::vector<const ReduceKernels*> tables() {
  std::vector<const ReduceKernels*> all{&scalar_reduce_kernels()};
  if (avx2_reduce_kernels()) all.push_back(avx2_reduce_kernels());
  if (avx512_reduce_kernels()) all.push_back(avx512_reduce_kernels());
  return all;
}

// Bytes that start `offset` bytes past a cache line, with guards on both sides.
class Buffer {
 public:
  Buffer(size_t bytes, size_t offset) : raw_(bytes + 3 * 64 + offset, std::byte{0xa5}) {
    const auto base = reinterpret_cast<uintptr_t>(raw_.data());
    start_ = 64 + (64 - base % 64) % 64 + offset;
    bytes_ = bytes;
  }
  std::byte* data() { return raw_.data() + start_; }
  bool guards_intact() const {
    for (size_t i = 0; i < raw_.size(); ++i) {
      if ((i < start_ || i >= start_ + bytes_) && raw_[i] != std::byte{0xa5}) return false;
    }
    return true;
  }

 private:
  std::vector<std::byte> raw_;
  size_t start_, bytes_;
};

// Half of the elements are plain numbers, the others any bit pattern but NaN and infinity (sums of
// those are tested apart, since two NaNs may meet).
uint64_t random_bits(DType type) {
  if (type == DType::i64) return *rc::gen::arbitrary<uint64_t>();
  const double plain = *rc::gen::inRange(-1000, 1001) * 0.037;
  const bool wild = *rc::gen::arbitrary<bool>();
  const uint64_t bits = *rc::gen::arbitrary<uint64_t>();
  if (type == DType::f64) {
    const double value = std::bit_cast<double>(bits);
    return wild && std::isfinite(value) ? bits : std::bit_cast<uint64_t>(plain);
  }
  if (type == DType::f32) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const float use = wild && std::isfinite(value) ? value : static_cast<float>(plain);
    return std::bit_cast<uint32_t>(use);
  }
  const uint16_t exponent = type == DType::bf16 ? 0x7f80 : 0x7c00;
  uint16_t h = static_cast<uint16_t>(bits);
  if ((h & exponent) == exponent) h &= static_cast<uint16_t>(~0x4000);
  return h;
}

RC_GTEST_PROP(ReduceKernels, SumsHaveTheSameBitsOnEveryInstructionSet, ()) {
  const DType type = *rc::gen::element(DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64);
  const size_t n = *rc::gen::inRange<size_t>(0, 150);
  const size_t num_ins = *rc::gen::inRange<size_t>(1, 10);
  const size_t num_outs = *rc::gen::inRange<size_t>(1, 4);
  const bool in_place = *rc::gen::arbitrary<bool>();
  const auto stores = *rc::gen::element(Stores::cached, Stores::streaming);
  const size_t size = size_of(type);
  std::vector<size_t> offsets;
  const bool aligned = *rc::gen::arbitrary<bool>();
  for (size_t k = 0; k < num_ins + num_outs; ++k) {
    offsets.push_back(aligned ? 2 * size : *rc::gen::inRange<size_t>(0, 64));
  }
  std::vector<std::vector<uint64_t>> values(num_ins, std::vector<uint64_t>(n));
  for (auto& v : values) {
    for (uint64_t& bits : v) bits = random_bits(type);
  }
  std::vector<std::byte> expected(n * size);
  for (const ReduceKernels* k : tables()) {
    std::vector<Buffer> buffers;
    for (size_t b = 0; b < num_ins + num_outs; ++b) buffers.emplace_back(n * size, offsets[b]);
    std::vector<const std::byte*> ins;
    std::vector<std::byte*> outs;
    for (size_t b = 0; b < num_ins; ++b) {
      for (size_t i = 0; i < n; ++i) std::memcpy(buffers[b].data() + i * size, &values[b][i], size);
      ins.push_back(buffers[b].data());
    }
    for (size_t b = 0; b < num_outs; ++b) {
      Buffer& buffer = in_place && b < num_ins ? buffers[b] : buffers[num_ins + b];
      outs.push_back(buffer.data());
    }
    k->sum(type)(outs.data(), num_outs, ins.data(), num_ins, n, stores);
    if (k == &scalar_reduce_kernels() && n > 0) std::memcpy(expected.data(), outs[0], n * size);
    for (const std::byte* out : outs) {
      // In one pair of brackets: else both sides are evaluated.
      RC_ASSERT((n == 0 || std::memcmp(expected.data(), out, n * size) == 0));
    }
    for (const Buffer& buffer : buffers) RC_ASSERT(buffer.guards_intact());
  }
}

TEST(ReduceKernels, SumInTheGivenOrder) {
  // 1e8 + 4 is exact in single precision only in steps of 8: the order shows.
  const float a = 1e8f, b = 4, c = 4;
  const auto bytes = [](const float& f) { return reinterpret_cast<const std::byte*>(&f); };
  float out = 0;
  const std::byte* forward[] = {bytes(a), bytes(b), bytes(c)};
  const std::byte* backward[] = {bytes(c), bytes(b), bytes(a)};
  sum(DType::f32, reinterpret_cast<std::byte*>(&out), forward, 1);
  EXPECT_EQ(out, (a + b) + c);
  sum(DType::f32, reinterpret_cast<std::byte*>(&out), backward, 1);
  EXPECT_EQ(out, (c + b) + a);
  EXPECT_NE((a + b) + c, (c + b) + a);
}

TEST(ReduceKernels, RoundHalfPrecisionOnceAtTheEnd) {
  // 256 + 1 + 1 in bf16 (8 significant bits): rounding each step gives 256, rounding once 258.
  const std::vector<float> values{256, 1, 1};
  std::vector<std::vector<uint16_t>> stored;
  std::vector<const std::byte*> sources;
  for (const float v : values) {
    stored.emplace_back(40);
    const std::vector<float> full(40, v);
    narrow(DType::bf16, reinterpret_cast<std::byte*>(stored.back().data()), full.data(), 40);
  }
  for (const auto& s : stored) sources.push_back(reinterpret_cast<const std::byte*>(s.data()));
  std::vector<uint16_t> out(40);
  sum(DType::bf16, reinterpret_cast<std::byte*>(out.data()), sources, 40);
  std::vector<float> wide(40);
  widen(DType::bf16, wide.data(), reinterpret_cast<const std::byte*>(out.data()), 40);
  EXPECT_EQ(wide, std::vector<float>(40, 258));
}

TEST(ReduceKernels, EveryHalfSurvivesWideningAndNarrowing) {
  std::vector<uint16_t> all(65536), back(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType wire : {DType::bf16, DType::f16}) {
    const uint16_t infinity = wire == DType::bf16 ? 0x7f80 : 0x7c00;
    const uint16_t quiet = wire == DType::bf16 ? 0x40 : 0x200;
    std::vector<float> reference(65536);
    for (const ReduceKernels* k : tables()) {
      std::vector<float> wide(65536);
      const auto& w = k->wire_format(wire);
      w.widen(wide.data(), reinterpret_cast<const std::byte*>(all.data()), all.size());
      if (k == &scalar_reduce_kernels()) reference = wide;
      EXPECT_EQ(std::memcmp(reference.data(), wide.data(), 4 * wide.size()), 0) << k->name;
      w.narrow(reinterpret_cast<std::byte*>(back.data()), wide.data(), wide.size());
      for (size_t i = 0; i < all.size(); ++i) {
        const bool nan = (all[i] & 0x7fff) > infinity;
        ASSERT_EQ(back[i], nan ? all[i] | quiet : all[i]) << k->name << " " << i;
      }
    }
  }
}

// The nearest half by search over all of them: ties to the even one.
uint16_t nearest(DType wire, float value, const std::vector<float>& halves) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const uint16_t infinity = wire == DType::bf16 ? 0x7f80 : 0x7c00;
  uint16_t low = 0, high = infinity;  // halves[low] <= magnitude < "halves[high]"
  const auto real = [&](uint16_t h) {
    if (h < infinity) return static_cast<double>(halves[h]);
    return wire == DType::bf16 ? 0x1p128 : 65536.0;  // where the next number would be
  };
  if (magnitude >= real(infinity)) return sign | infinity;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (real(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - real(low), above = real(high) - magnitude;
  const bool up = above < below || (above == below && (low & 1));
  return sign | (up ? high : low);
}

RC_GTEST_PROP(ReduceKernels, NarrowingTakesTheNearestAndTheEvenOfTwo, ()) {
  const DType wire = *rc::gen::element(DType::bf16, DType::f16);
  static const auto halves = [] {
    std::vector<std::vector<float>> both;
    std::vector<uint16_t> all(32768);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    for (const DType t : {DType::bf16, DType::f16}) {
      both.emplace_back(all.size());
      scalar_reduce_kernels().wire_format(t).widen(
          both.back().data(), reinterpret_cast<const std::byte*>(all.data()), all.size());
    }
    return both;
  }();
  const auto& table = halves[wire == DType::bf16 ? 0 : 1];
  std::vector<float> in(37);
  for (float& v : in) {
    const uint32_t bits = *rc::gen::arbitrary<uint32_t>();
    const int kind = *rc::gen::inRange(0, 3);
    v = std::bit_cast<float>(bits);
    if (kind == 1) v = std::ldexp(static_cast<float>(bits % 4099), *rc::gen::inRange(-30, 18));
    if (kind == 2) {  // half-way between two neighbours, or one unit beside it
      const uint16_t h = bits % (wire == DType::bf16 ? 0x7f7f : 0x7bff);
      const double middle = (static_cast<double>(table[h]) + static_cast<double>(table[h + 1])) / 2;
      v = std::nextafter(static_cast<float>(middle), *rc::gen::element(-1e38f, 1e38f));
      if (bits & 0x80000000) v = static_cast<float>(middle);
    }
    if (std::isnan(v)) v = 1;
  }
  for (const ReduceKernels* k : tables()) {
    std::vector<uint16_t> out(in.size());
    k->wire_format(wire).narrow(reinterpret_cast<std::byte*>(out.data()), in.data(), in.size());
    for (size_t i = 0; i < in.size(); ++i) RC_ASSERT(out[i] == nearest(wire, in[i], table));
  }
}

RC_GTEST_PROP(ReduceKernels, WidenAddEqualsWideningThenAdding, ()) {
  const DType wire = *rc::gen::element(DType::bf16, DType::f16);
  const size_t n = *rc::gen::inRange<size_t>(0, 70);
  Buffer in(2 * n, *rc::gen::inRange<size_t>(0, 64));
  std::vector<float> base(n);
  for (size_t i = 0; i < n; ++i) {
    const auto h = static_cast<uint16_t>(random_bits(wire));
    std::memcpy(in.data() + 2 * i, &h, 2);
    base[i] = static_cast<float>(*rc::gen::inRange(-1000, 1000)) * 0.01f;
  }
  std::vector<float> expected(n);
  scalar_reduce_kernels().wire_format(wire).widen(expected.data(), in.data(), n);
  for (size_t i = 0; i < n; ++i) expected[i] = base[i] + expected[i];
  for (const ReduceKernels* k : tables()) {
    std::vector<float> out = base;
    k->wire_format(wire).widen_add(out.data(), in.data(), n);
    RC_ASSERT(out == expected);
  }
}

TEST(ReduceKernels, KeepNaNAndInfinity) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const size_t size = size_of(type), n = 67;
    for (const ReduceKernels* k : tables()) {
      const std::vector<float> special{NAN, INFINITY, -INFINITY, 1};
      std::vector<std::byte> a(n * size), b(n * size), out(n * size);
      std::vector<float> fa(n), fb(n), result(n);
      for (size_t i = 0; i < n; ++i) {
        fa[i] = special[i % 4];
        fb[i] = special[i / 4 % 4];
      }
      const auto encode = [&](std::vector<std::byte>& to, const std::vector<float>& from) {
        if (type == DType::f32) {
          std::memcpy(to.data(), from.data(), 4 * n);
        } else {
          k->wire_format(type).narrow(to.data(), from.data(), n);
        }
      };
      encode(a, fa);
      encode(b, fb);
      std::byte* const outs[] = {out.data()};
      const std::byte* const ins[] = {a.data(), b.data()};
      k->sum(type)(outs, 1, ins, 2, n, Stores::cached);
      if (type == DType::f32) {
        std::memcpy(result.data(), out.data(), 4 * n);
      } else {
        k->wire_format(type).widen(result.data(), out.data(), n);
      }
      for (size_t i = 0; i < n; ++i) {
        const float expected = fa[i] + fb[i];
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(result[i])) << k->name << " " << i;
        } else {
          EXPECT_EQ(result[i], expected) << k->name << " " << i;
        }
      }
    }
  }
}

TEST(ReduceKernels, RefuseTypesThatHaveNoSum) {
  EXPECT_FALSE(can_sum(DType::u8));
  EXPECT_THROW(add_to(DType::i8, nullptr, nullptr, 0), Error);
  EXPECT_THROW(narrow(DType::f32, nullptr, nullptr, 0), Error);
}

}  // namespace
}  // namespace ductile::comm
