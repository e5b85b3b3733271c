#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "ductile/base/error.h"
#include "ductile/ckpt/staging_impl.h"

namespace ductile::ckpt {
namespace {

constexpr size_t kAlign = 4096;

}  // namespace

Staging::~Staging() { release(); }

void Staging::release() {
  chunks_.clear();
  if (data_ != nullptr) ::munmap(std::exchange(data_, nullptr), std::exchange(capacity_, 0));
}

std::vector<size_t> Staging::reserve(const Layout& layout) {
  std::vector<size_t> starts = {0};
  for (const int64_t size : layout.chunk_sizes) {
    starts.push_back(starts.back() + (static_cast<size_t>(size) + kAlign - 1) / kAlign * kAlign);
  }
  const size_t bytes = starts.back();
  if (bytes <= capacity_) return starts;
  release();
  void* room = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) {
    fail(ErrorCode::unavailable, "no memory for a copy of the state, {} bytes: {}", bytes,
         std::strerror(errno));
  }
  ::madvise(room, bytes, MADV_HUGEPAGE);  // only for speed: fewer page faults at the first save
  data_ = static_cast<std::byte*>(room);
  capacity_ = bytes;
  return starts;
}

void Staging::prepare(const Layout& layout) {
  reserve(layout);
  for (size_t at = 0; at < capacity_; at += kAlign) data_[at] = std::byte{0};
}

void Staging::fill(std::span<const TensorView> tensors, const Layout& layout) {
  chunks_.clear();
  const std::vector<size_t> starts = reserve(layout);
  for (size_t i = 0; i < layout.chunk_sizes.size(); ++i) {
    chunks_.emplace_back(data_ + starts[i], static_cast<size_t>(layout.chunk_sizes[i]));
  }

  size_t chunk = 0;
  size_t used = 0;  // of that chunk
  for (size_t i : layout.order) {
    std::span<const std::byte> left = tensors[i].bytes;
    while (!left.empty()) {
      if (used == chunks_[chunk].size()) {
        ++chunk;
        used = 0;
      }
      const size_t n = std::min(left.size(), chunks_[chunk].size() - used);
      std::memcpy(data_ + starts[chunk] + used, left.data(), n);
      left = left.subspan(n);
      used += n;
    }
  }
}

}  // namespace ductile::ckpt
