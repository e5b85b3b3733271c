#include "ductile/nn/precision.h"

#include "ductile/base/error.h"
#include "ductile/base/isa.h"

namespace ductile::nn {

at::ScalarType scalar_type_of(std::string_view precision) {
  if (precision == "fp32") return at::kFloat;
  if (precision == "bf16") return at::kBFloat16;
  if (precision == "fp16") return at::kHalf;
  if (precision == "fp64") return at::kDouble;
  fail(ErrorCode::invalid_argument, "precision \"{}\" is not known; use fp32, bf16 or fp16",
       precision);
}

bool widen(const at::Tensor& x) {
  if (!x.device().is_cpu()) return false;
  if (x.scalar_type() == at::kHalf) return true;
  return x.scalar_type() == at::kBFloat16 && !may_use(IsaLevel::bf16);
}

at::Tensor widened(const at::Tensor& x) { return widen(x) ? x.to(at::kFloat) : x; }

}  // namespace ductile::nn
