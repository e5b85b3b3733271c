#include "ductile/nn/memory.h"

#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace ductile::nn {
namespace {

long page_faults() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(KeepFreedMemory, MakesARepeatedLargeAllocationFreeOfPageFaults) {
#if !defined(__GLIBC__)
  GTEST_SKIP() << "only glibc's allocator can be told";
#endif
  constexpr size_t kBytes = 100 << 20;
  keep_freed_memory();
  const auto use = [] {
    void* p = std::malloc(kBytes);
    std::memset(p, 1, kBytes);
    asm volatile("" : : "r"(p) : "memory");
    std::free(p);
  };
  use();
  const long before = page_faults();
  for (int i = 0; i < 3; ++i) use();
  EXPECT_LT(page_faults() - before, 1000);  // 25,600 pages each time otherwise
}

}  // namespace
}  // namespace ductile::nn
