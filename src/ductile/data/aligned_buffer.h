#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace ductile::data {

// A block of uninitialised memory on a 64-byte boundary (a cache line, an AVX-512 vector).
class AlignedBuffer {
 public:
  static constexpr size_t kAlignment = 64;

  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size)
      : data_(static_cast<std::byte*>(
            std::aligned_alloc(kAlignment, (size + kAlignment) / kAlignment * kAlignment))),
        size_(size) {
    if (data_ == nullptr) throw std::bad_alloc();
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

}  // namespace ductile::data
