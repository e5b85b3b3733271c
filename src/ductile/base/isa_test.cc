#include "ductile/base/isa.h"

#include <cstdlib>

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
         {IsaLevel::baseline, IsaLevel::avx2, IsaLevel::avx512, IsaLevel::bf16})
      count += may_use(level);
    std::exit(count);
  };
  EXPECT_EXIT(allowed("baseline"), testing::ExitedWithCode(1), "");
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    EXPECT_EXIT(allowed("avx2"), testing::ExitedWithCode(2), "");
  }
#endif
}

TEST(IsaDeathTest, AnUnknownNameIsRefusedWithThoseKnown) {
  const auto refused = [] {
    setenv("DUCTILE_ISA", "mmx", 1);
    try {
      may_use(IsaLevel::avx2);
    } catch (const Error& e) {
      const std::string_view text = e.what();
      std::exit(text.find("baseline, avx2, avx512 or bf16") != text.npos ? 7 : 8);
    }
    std::exit(9);
  };
  EXPECT_EXIT(refused(), testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace ductile
