// Compiled with -mavx2 -mfma -mf16c.
#include "ductile/nn/kernels/isa_impl.h"
#include "ductile/nn/kernels/simd_avx2_impl.h"

namespace ductile::nn::kernels {

extern const Isa kAvx2Isa;
const Isa kAvx2Isa = make_isa<Avx2>("avx2");

}  // namespace ductile::nn::kernels
