#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <torch/version.h>

// Where the code that runs differs between versions of torch. Debian's libtorch is 1.13; a torch
// of pip is 2.x, with which Ductile compiles but does not train yet (docs/guides/python.md).
namespace ductile::nn {

// An absent value in the calls of torch, which has its own optional before 2.1.
#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 1)
template <class T>
using Maybe = c10::optional<T>;
inline constexpr c10::nullopt_t kNone = c10::nullopt;
#else
template <class T>
using Maybe = std::optional<T>;
inline constexpr std::nullopt_t kNone = std::nullopt;
#endif

// With deterministic algorithms torch 2 fills fresh memory with NaN, a pass over each tensor
// that 1.13 does not make. `context` is at::globalContext().
template <class Context>
void leave_memory_unfilled(Context& context) {
  if constexpr (requires { context.setDeterministicFillUninitializedMemory(false); })
    context.setDeterministicFillUninitializedMemory(false);
}

// The type of the totals that c10::MemoryReportingInfoBase is told of: signed in 1.13, size_t
// later.
template <class Total>
Total memory_total_of(void (c10::MemoryReportingInfoBase::*)(void*, int64_t, Total, Total,
                                                             c10::Device));
using MemoryTotal = decltype(memory_total_of(&c10::MemoryReportingInfoBase::reportMemoryUsage));

// An allocator of memory of the host. allocate() is const in 1.13 only, so both forms are here and
// one of them overrides torch's, as does copy_data(), which 1.13 does not know.
class HostAllocator : public c10::Allocator {
 public:
  virtual c10::DataPtr give(size_t bytes) const = 0;

  c10::DataPtr allocate(size_t bytes) const { return give(bytes); }
  c10::DataPtr allocate(size_t bytes) { return give(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace ductile::nn
