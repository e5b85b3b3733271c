#include "ductile/nn/kernels/isa.h"

#include "ductile/base/isa.h"

namespace ductile::nn::kernels {

#if defined(__x86_64__)
extern const Isa kAvx2Isa;
extern const Isa kAvx512Isa;
extern const Bf16Isa kBf16Isa8;
extern const Bf16Isa kBf16Isa16;

const Isa* const* all_isas() {
  static const Isa* const both[] = {&kAvx512Isa, &kAvx2Isa, nullptr};
  if (may_use(IsaLevel::avx512)) return both;
  return may_use(IsaLevel::avx2) ? both + 1 : both + 2;
}

const Bf16Isa* bf16_isa_for(int64_t channels) {
  if (!may_use(IsaLevel::bf16) || channels % kBf16Isa8.lanes != 0) return nullptr;
  return channels % kBf16Isa16.lanes == 0 ? &kBf16Isa16 : &kBf16Isa8;
}
#else
const Bf16Isa* bf16_isa_for(int64_t) { return nullptr; }

const Isa* const* all_isas() {
  static const Isa* const none[] = {nullptr};
  return none;
}
#endif

const Isa* isa_for(int64_t channels) {
  for (const Isa* const* isa = all_isas(); *isa != nullptr; ++isa)
    if (channels % (*isa)->lanes == 0) return *isa;
  return nullptr;
}

}  // namespace ductile::nn::kernels
