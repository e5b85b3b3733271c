#pragma once

#include "ductile/nn/kernels/gemm_impl.h"
#include "ductile/nn/kernels/norm_impl.h"
#include "ductile/nn/kernels/pool_impl.h"
#include "ductile/nn/kernels/winograd_filter_impl.h"
#include "ductile/nn/kernels/winograd_impl.h"

namespace ductile::nn::kernels {

// The table of all kernels on the vector type V.
template <class V>
constexpr Isa make_isa(const char* name) {
  return Isa{name,
             V::lanes,
             to_float<V>,
             from_float<V>,
             gemm<V>,
             winograd_input<V>,
             winograd_grad<V>,
             winograd_output<V>,
             winograd_filter<V>,
             winograd_filter_rotated<V>,
             winograd_filter_grad<V>,
             moments<V>,
             norm_apply<V>,
             norm_reduce<V>,
             load_grad<V>,
             max_pool<V>,
             max_pool_grad<V>};
}

}  // namespace ductile::nn::kernels
