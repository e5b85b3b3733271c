#include "ductile/nn/kernels/isa.h"

#include "ductile/base/isa.h"

namespace ductile::nn::kernels {

#if defined(__x86_64__)
extern const Isa kAvx2Isa;
extern const Isa kAvx512Isa;
extern const Bf16Isa kBf16Isa8;
extern const Bf16Isa kBf16Isa16;
void gemm_on_tiles(const Gemm& g);
void keep_tiles(bool keep);

const Isa* const* all_isas() {
  static const Isa* const both[] = {&kAvx512Isa, &kAvx2Isa, nullptr};
  if (may_use(IsaLevel::avx512)) return both;
  return may_use(IsaLevel::avx2) ? both + 1 : both + 2;
}

namespace {

// The table with its products on tiles.
Bf16Isa on_tiles(Bf16Isa table, const char* name) {
  table.name = name;
  table.gemm = gemm_on_tiles;
  table.keep_tiles = keep_tiles;
  return table;
}

}  // namespace

const Bf16Isa* bf16_isa_for(int64_t channels) {
  static const Bf16Isa tiles8 = on_tiles(kBf16Isa8, "amx, 8 lanes");
  static const Bf16Isa tiles16 = on_tiles(kBf16Isa16, "amx, 16 lanes");
  if (!may_use(IsaLevel::bf16) || channels % kBf16Isa8.lanes != 0) return nullptr;
  const bool wide = channels % kBf16Isa16.lanes == 0;
  if (may_use(IsaLevel::amx)) return wide ? &tiles16 : &tiles8;
  return wide ? &kBf16Isa16 : &kBf16Isa8;
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
