// Compiled with -mavx512f.
#include "ductile/nn/kernels/isa_impl.h"
#include "ductile/nn/kernels/simd_avx512_impl.h"

namespace ductile::nn::kernels {

extern const Isa kAvx512Isa;
const Isa kAvx512Isa = make_isa<Avx512>("avx512");

}  // namespace ductile::nn::kernels
