#include "ductile/base/isa.h"

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#if defined(__x86_64__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include <gtest/gtest.h>

#include "ductile/base/error.h"

namespace ductile {
namespace {

// The variable is read once in a process, hence the children.
TEST(IsaDeathTest, MayUseEndsWhereTheVariableSays) {
  const auto allowed = [](const char* value) {
    setenv("DUCTILE_ISA", value, 1);
    int count = 0;
    for (const IsaLevel level :
         {IsaLevel::baseline, IsaLevel::avx2, IsaLevel::avx512, IsaLevel::bf16, IsaLevel::amx})
      count += may_use(level);
    std::exit(count);
  };
  EXPECT_EXIT(allowed("baseline"), testing::ExitedWithCode(1), "");
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    EXPECT_EXIT(allowed("avx2"), testing::ExitedWithCode(2), "");
  }
  if (__builtin_cpu_supports("avx512bf16")) {
    EXPECT_EXIT(allowed("bf16"), testing::ExitedWithCode(4), "");
  }
#endif
}

TEST(IsaDeathTest, TheProductsOfBf16AreNamedWithTheReason) {
  const auto said = [](const char* isa) {
    setenv("DUCTILE_ISA", isa, 1);
    std::fprintf(stderr, "products: %s.", bf16_products());
    std::exit(0);
  };
  EXPECT_EXIT(said("avx2"), testing::ExitedWithCode(0), "products: none\\.");
#if defined(__x86_64__)
  const bool tiles = __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-tile");
  if (!__builtin_cpu_supports("avx512bf16")) return;
  EXPECT_EXIT(said("bf16"), testing::ExitedWithCode(0),
              tiles ? "amx_bf16 is left out: DUCTILE_ISA" : "products: avx512_bf16\\.");
  EXPECT_EXIT(said("amx"), testing::ExitedWithCode(0),
              tiles ? "products: (amx_bf16|.*does not grant)" : "products: avx512_bf16\\.");
#endif
}

#if defined(__x86_64__)
// As an older Linux or a sandbox does.
void refuse_arch_prctl() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    std::exit(9);
}

TEST(IsaDeathTest, TilesThatAreNotGrantedAreNotUsed) {
  const auto refused = [] {
    refuse_arch_prctl();
    unsetenv("DUCTILE_ISA");
    std::fprintf(stderr, "products: %s.", bf16_products());
    std::exit(may_use(IsaLevel::amx) ? 7 : 8);
  };
  const bool tiles = __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-tile");
  EXPECT_EXIT(refused(), testing::ExitedWithCode(8), tiles ? "does not grant" : "products: ");
}
#endif

TEST(IsaDeathTest, AnUnknownNameIsRefusedWithThoseKnown) {
  const auto refused = [] {
    setenv("DUCTILE_ISA", "mmx", 1);
    try {
      may_use(IsaLevel::avx2);
    } catch (const Error& e) {
      const std::string_view text = e.what();
      std::exit(text.find("baseline, avx2, avx512, bf16 or amx") != text.npos ? 7 : 8);
    }
    std::exit(9);
  };
  EXPECT_EXIT(refused(), testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace ductile
