#pragma once

namespace ductile::server {

// While it lives, memory for this thread comes from this NUMA node as long as there is some; and
// for the processes that the thread starts, which keep to that. Best effort: where the kernel does
// not let us, memory comes from wherever it is first used, as ever.
class MemoryHome {
 public:
  explicit MemoryHome(int node);
  MemoryHome(const MemoryHome&) = delete;
  MemoryHome& operator=(const MemoryHome&) = delete;
  ~MemoryHome();

 private:
  bool set_ = false;
};

}  // namespace ductile::server
