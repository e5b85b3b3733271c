#pragma once

#include "ductile/nn/kernels/isa.h"

// What gemm_on_tiles() is compared with, without tiles.
namespace ductile::nn::kernels {

// Element by element, as the processor's manual defines tdpbf16ps (Intel's "Architecture
// Instruction Set Extensions Programming Reference", 2020): blocks of 16 pairs, the first and the
// second halves of each summed apart with values below 2^-126 taken for zero. Needs AVX2.
void tiles_twin(const Gemm& g);

// The driver of gemm_on_tiles() with its tiles in memory. Needs AVX-512.
void gemm_on_played_tiles(const Gemm& g);

}  // namespace ductile::nn::kernels
