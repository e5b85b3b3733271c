#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ductile/ckpt/layout_impl.h"
#include "ductile/ckpt/tensor.h"

namespace ductile::ckpt {

// The copy of the tensors that a save works from: page-aligned memory that is kept from save to
// save until release(), in which every chunk of the layout begins at a multiple of 4096 bytes (so
// that it can be written past the page cache).
class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  // Gets the memory for fill() calls of that layout, every page of it, so that they only copy.
  // Throws unavailable when there is not enough.
  void prepare(const Layout& layout);

  // Throws unavailable when there is not enough memory.
  void fill(std::span<const TensorView> tensors, const Layout& layout);

  // Gives the memory back; the chunks are gone.
  void release();

  // The chunks of the last fill, in stream order.
  const std::vector<std::span<const std::byte>>& chunks() const { return chunks_; }

 private:
  // Where each chunk begins, and the end of the last one.
  std::vector<size_t> reserve(const Layout& layout);

  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  std::vector<std::span<const std::byte>> chunks_;
};

}  // namespace ductile::ckpt
