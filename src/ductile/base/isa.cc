#include "ductile/base/isa.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "ductile/base/error.h"

namespace ductile {
namespace {

IsaLevel highest_allowed() {
  const char* text = std::getenv("DUCTILE_ISA");
  if (text == nullptr || *text == '\0') return IsaLevel::bf16;
  for (const auto& [name, level] :
       {std::pair<std::string_view, IsaLevel>("baseline", IsaLevel::baseline),
        {"avx2", IsaLevel::avx2},
        {"avx512", IsaLevel::avx512},
        {"bf16", IsaLevel::bf16}}) {
    if (name == text) return level;
  }
  fail(ErrorCode::invalid_argument,
       "DUCTILE_ISA = {} is not known; use baseline, avx2, avx512 or bf16", text);
}

bool present(IsaLevel level) {
#if defined(__x86_64__)
  switch (level) {
    case IsaLevel::baseline:
      return true;
    case IsaLevel::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case IsaLevel::avx512:
      return present(IsaLevel::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case IsaLevel::bf16:
      return present(IsaLevel::avx512) && __builtin_cpu_supports("avx512bf16");
  }
#endif
  return level == IsaLevel::baseline;
}

}  // namespace

bool may_use(IsaLevel level) {
  static const IsaLevel highest = highest_allowed();
  return level <= highest && present(level);
}

}  // namespace ductile
