#include "ductile/base/isa.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "ductile/base/error.h"

namespace ductile {
namespace {

IsaLevel highest_allowed() {
  const char* text = std::getenv("DUCTILE_ISA");
  if (text == nullptr || *text == '\0') return IsaLevel::amx;
  for (const auto& [name, level] :
       {std::pair<std::string_view, IsaLevel>("baseline", IsaLevel::baseline),
        {"avx2", IsaLevel::avx2},
        {"avx512", IsaLevel::avx512},
        {"bf16", IsaLevel::bf16},
        {"amx", IsaLevel::amx}}) {
    if (name == text) return level;
  }
  fail(ErrorCode::invalid_argument,
       "DUCTILE_ISA = {} is not known; use baseline, avx2, avx512, bf16 or amx", text);
}

// The level that the variable allows at most; it is read once.
IsaLevel highest() {
  static const IsaLevel level = highest_allowed();
  return level;
}

bool has_tiles() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16");
#else
  return false;
#endif
}

// Linux gives a process the registers of tiles only when it asks for them; without that the first
// instruction on them ends it.
bool tiles_granted() {
#if defined(__x86_64__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
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
    case IsaLevel::amx:
      return present(IsaLevel::bf16) && has_tiles() && tiles_granted();
  }
#endif
  return level == IsaLevel::baseline;
}

}  // namespace

bool may_use(IsaLevel level) { return level <= highest() && present(level); }

const char* bf16_products() {
  if (!may_use(IsaLevel::bf16)) return "none";
  if (may_use(IsaLevel::amx)) return "amx_bf16";
  if (!has_tiles()) return "avx512_bf16";
  return highest() < IsaLevel::amx
             ? "avx512_bf16 (amx_bf16 is left out: DUCTILE_ISA)"
             : "avx512_bf16 (the system does not grant the tiles of amx_bf16)";
}

}  // namespace ductile
