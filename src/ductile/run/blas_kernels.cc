#include "ductile/run/blas_kernels.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace ductile::run {
namespace {

constexpr std::array<std::string_view, 3> kAvx512Cores = {"SkylakeX", "Cooperlake",
                                                          "SapphireRapids"};
constexpr std::array<std::string_view, 3> kAvx2Cores = {"Haswell", "Zen", "Excavator"};

IsaLevel level_of(std::string_view core) {
  const auto in = [&](const auto& cores) { return std::ranges::find(cores, core) != cores.end(); };
  if (in(kAvx512Cores)) return IsaLevel::avx512;
  return in(kAvx2Cores) ? IsaLevel::avx2 : IsaLevel::baseline;
}

}  // namespace

std::optional<std::string> blas_advice(std::string_view core, IsaLevel widest) {
  const IsaLevel wanted = std::min(widest, IsaLevel::avx512), got = level_of(core);
  if (got >= wanted) return std::nullopt;
  const char* const better = wanted == IsaLevel::avx512 ? "SkylakeX" : "Haswell";
  return fmt::format(
      "OpenBLAS does not know this processor and runs its kernels for {}, which are {}. Models of "
      "your own that use it run faster with OPENBLAS_CORETYPE={} in the environment, or with a "
      "newer OpenBLAS. Ductile's own layers do not use it.",
      core, got == IsaLevel::baseline ? "several times slower" : "up to half as fast", better);
}

}  // namespace ductile::run
