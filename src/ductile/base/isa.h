#pragma once

namespace ductile {

// The instruction sets that kernels are written for; each one includes those before it.
enum class IsaLevel {
  baseline,
  avx2,    // with FMA and F16C
  avx512,  // F, BW, DQ and VL
  bf16,    // avx512_bf16: products of 16-bit numbers
  amx,     // amx_bf16: the same on tiles, registers of 16 rows
};

// Whether kernels may use `level`: the processor and the operating system support it, and
// $DUCTILE_ISA (baseline, avx2, avx512, bf16 or amx; unset: all) allows it. The variable is read
// once. With it, tests and jobs on unlike hosts run the kernels of a lesser processor. Throws
// invalid_argument if its value is not one of these names. The first question for amx asks Linux
// for the tiles, which it grants to all threads of this process and to its children.
bool may_use(IsaLevel level);

// What multiplies bf16 numbers here, and why not on tiles where the processor has them: a text for
// people. Throws as may_use() does, and asks as it does.
const char* bf16_products();

}  // namespace ductile
