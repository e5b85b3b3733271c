#include "ductile/base/pages.h"

#include <sys/mman.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace ductile {

std::span<std::byte> give_back(std::span<std::byte> bytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t before = reinterpret_cast<uintptr_t>(bytes.data()) % page;
  const size_t first = std::min(bytes.size(), before == 0 ? 0 : page - before);
  const std::span<std::byte> pages = bytes.subspan(first, (bytes.size() - first) / page * page);
  if (pages.empty() || ::madvise(pages.data(), pages.size(), MADV_DONTNEED) != 0) return {};
  return pages;
}

void give_back_freed() {
#if defined(__GLIBC__)
  (void)::malloc_trim(0);
#endif
}

}  // namespace ductile
