#include "ductile/nn/memory.h"

#include <limits>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace ductile::nn {

void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace ductile::nn
