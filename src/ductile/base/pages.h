#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ductile/base/aligned_array.h"

// Memory that a process has and does not use: what it gives back to the system before it frees it.
namespace ductile {

// Gives back the memory of these bytes of an allocation, but for the pages at both ends in which
// others lie, too. Returns those that were given back: they are zeros from now on, and take memory
// again where they are written. Where the system takes nothing, nothing is changed.
std::span<std::byte> give_back(std::span<std::byte> bytes);

// Gives back what was freed and the C allocator keeps: all of it in a program that has told it so
// (nn::keep_freed_memory). Takes time in proportion to that. Does nothing where the C library is
// not glibc.
void give_back_freed();

// Zeros that take memory only where they are written, on a 64-byte boundary.
template <class T>
AlignedArray<T> untouched_zeros(int64_t size) {
  auto values = AlignedArray<T>::uninitialized(size);
  const std::span<std::byte> all = std::as_writable_bytes(values.span());
  const std::span<std::byte> given = give_back(all);
  const auto first = given.empty() ? all.size() : static_cast<size_t>(given.data() - all.data());
  std::ranges::fill(all.first(first), std::byte{0});
  std::ranges::fill(all.subspan(first + given.size()), std::byte{0});
  return values;
}

}  // namespace ductile
