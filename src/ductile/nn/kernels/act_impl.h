#pragma once

#include "ductile/nn/kernels/isa.h"

// Smooth activations and their slopes on a vector type V, in plain multiply-adds: the same bits for
// every vector width.
namespace ductile::nn::kernels {

// e^x to 2e-7 of itself; beyond [-87, 88] that of the ends. With x = n ln 2 + r, e^r is a
// polynomial (Cephes' coefficients).
template <class V>
typename V::Reg exp(typename V::Reg x) {
  x = V::min(V::all(88.0F), V::max(V::all(-87.0F), x));
  const auto n = V::round(V::mul(x, V::all(1.44269504F)));
  auto r = V::fnma(n, V::all(0.693359375F), x);
  r = V::fnma(n, V::all(-2.12194440e-4F), r);
  auto p = V::fma(V::all(1.9875691500e-4F), r, V::all(1.3981999507e-3F));
  p = V::fma(p, r, V::all(8.3334519073e-3F));
  p = V::fma(p, r, V::all(4.1665795894e-2F));
  p = V::fma(p, r, V::all(1.6666665459e-1F));
  p = V::fma(p, r, V::all(5.0000001201e-1F));
  p = V::fma(V::mul(p, r), r, V::add(r, V::all(1.0F)));
  return V::times_power_of_two(p, n);
}

// x * Phi(x), Phi the normal distribution, to 1e-6. Its tail is formula 7.1.26 of Abramowitz and
// Stegun, "Handbook of mathematical functions" (1964), and shares the exponential with the density.
template <class V>
struct Gelu {
  using Reg = typename V::Reg;
  Reg x, bell, phi;

  explicit Gelu(Reg value) : x(value) {
    const auto a = V::mul(V::max(value, V::sub(V::zero(), value)), V::all(0.70710678F));
    bell = exp<V>(V::fnma(a, a, V::zero()));
    const auto t = V::div(V::all(1.0F), V::fma(V::all(0.3275911F), a, V::all(1.0F)));
    auto p = V::fma(V::all(1.061405429F), t, V::all(-1.453152027F));
    p = V::fma(p, t, V::all(1.421413741F));
    p = V::fma(p, t, V::all(-0.284496736F));
    p = V::fma(p, t, V::all(0.254829592F));
    const auto tail = V::mul(V::mul(V::mul(p, t), V::all(0.5F)), bell);
    const auto mirrored = V::fnma(V::all(2.0F), tail, V::all(1.0F));
    phi = V::add(tail, V::where_positive(value, mirrored));
  }
  Reg value() const { return V::mul(x, phi); }
  Reg slope() const { return V::fma(V::mul(x, V::all(0.39894228F)), bell, phi); }
};

// x / (1 + e^-x).
template <class V>
struct Silu {
  using Reg = typename V::Reg;
  Reg x, gate;

  explicit Silu(Reg value)
      : x(value),
        gate(V::div(V::all(1.0F), V::add(V::all(1.0F), exp<V>(V::sub(V::zero(), value))))) {}
  Reg value() const { return V::mul(x, gate); }
  Reg slope() const { return V::mul(gate, V::fma(x, V::sub(V::all(1.0F), gate), V::all(1.0F))); }
};

}  // namespace ductile::nn::kernels
