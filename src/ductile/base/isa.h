#pragma once

namespace ductile {

// The instruction sets that kernels are written for; each one includes those before it.
enum class IsaLevel {
  baseline,
  avx2,    // with FMA and F16C
  avx512,  // F, BW, DQ and VL
  bf16,    // avx512_bf16: products of 16-bit numbers
};

// Whether kernels may use `level`: the processor and the operating system support it, and
// $DUCTILE_ISA (baseline, avx2, avx512 or bf16; unset: all) allows it. The variable is read once.
// With it, tests and jobs on unlike hosts run the kernels of a lesser processor. Throws
// invalid_argument if its value is not one of these names.
bool may_use(IsaLevel level);

}  // namespace ductile
