#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace ductile {

// A fixed number of plain values on a 64-byte boundary (a cache line, an AVX-512 vector).
template <class T>
class AlignedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static constexpr std::align_val_t kAlignment{64};

  AlignedArray() = default;
  AlignedArray(AlignedArray&& other) noexcept
      : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  AlignedArray& operator=(AlignedArray&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  // Zeroed.
  explicit AlignedArray(int64_t size) : AlignedArray(allocate(size), size) {
    std::uninitialized_value_construct_n(data_.get(), size);
  }
  // The contents are undefined; a page is first touched by the thread that first writes to it.
  static AlignedArray uninitialized(int64_t size) { return {allocate(size), size}; }

  // Makes room for `size` values, if there is less. The contents are then undefined.
  void need(int64_t size) {
    if (size <= size_) return;
    *this = {};  // the old memory goes before the new comes
    *this = uninitialized(size);
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  std::span<T> span() { return {data_.get(), static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data_.get(), static_cast<size_t>(size_)}; }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete[](p, kAlignment); }
  };

  AlignedArray(T* data, int64_t size) : data_(data), size_(size) {}
  static T* allocate(int64_t size) {
    return static_cast<T*>(::operator new[](static_cast<size_t>(size) * sizeof(T), kAlignment));
  }

  std::unique_ptr<T[], Free> data_;
  int64_t size_ = 0;
};

}  // namespace ductile
