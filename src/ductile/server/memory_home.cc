#include <array>
#include <climits>
#include <cstddef>

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ductile/server/memory_home_impl.h"

namespace ductile::server {

// A process that is bound to cores of one node gets its memory there anyhow, where it uses it
// first. What this adds: the kernel then does not unmap its pages now and then to see who uses them
// (kernel.numa_balancing), and pages that the cores of others touch first, as those of files, come
// from there, too. "Preferred", and not "bind": a full node must not kill a process.
MemoryHome::MemoryHome(int node) {
  constexpr size_t kBits = sizeof(unsigned long) * CHAR_BIT, kNodes = 1024;
  if (node < 0 || static_cast<size_t>(node) >= kNodes) return;
  int before = MPOL_DEFAULT;  // what somebody chose, as by numactl, stays
  if (::syscall(SYS_get_mempolicy, &before, nullptr, 0, nullptr, 0) != 0 || before != MPOL_DEFAULT)
    return;
  std::array<unsigned long, kNodes / kBits> mask{};
  mask[static_cast<size_t>(node) / kBits] |= 1UL << (static_cast<size_t>(node) % kBits);
  set_ = ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask.data(), kNodes + 1) == 0;
}

MemoryHome::~MemoryHome() {
  if (set_) ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
}

}  // namespace ductile::server
