#include <algorithm>
#include <numeric>
#include <string_view>
#include <tuple>

#include "ductile/ckpt/layout_impl.h"

namespace ductile::ckpt {
namespace {

std::string_view section(std::string_view name) {
  const size_t slash = name.find('/');
  return slash == std::string_view::npos ? std::string_view() : name.substr(0, slash);
}

}  // namespace

int64_t default_chunk_bytes(std::span<const TensorView> tensors) {
  constexpr int64_t kSmallest = int64_t{256} << 10;
  constexpr int64_t kLargest = int64_t{4} << 20;
  int64_t total = 0;
  for (const TensorView& t : tensors) total += static_cast<int64_t>(t.bytes.size());
  int64_t bytes = kSmallest;
  while (bytes < kLargest && bytes * 64 < total) bytes *= 2;
  return bytes;
}

Layout plan_layout(std::span<const TensorView> tensors, int64_t chunk_bytes) {
  constexpr int64_t kAlign = 4096;
  const auto size = [&](size_t i) { return static_cast<int64_t>(tensors[i].bytes.size()); };
  const auto small = [&](size_t i) { return !tensors[i].apart && size(i) < chunk_bytes / 2; };

  Layout layout;
  layout.tensor_offsets.resize(tensors.size());
  layout.order.resize(tensors.size());
  std::iota(layout.order.begin(), layout.order.end(), size_t{0});
  std::sort(layout.order.begin(), layout.order.end(), [&](size_t a, size_t b) {
    return std::tuple(section(tensors[a].name), small(a), std::string_view(tensors[a].name)) <
           std::tuple(section(tensors[b].name), small(b), std::string_view(tensors[b].name));
  });

  int64_t group = 0;  // bytes in the group being packed
  const auto close_group = [&] {
    if (group > 0) layout.chunk_sizes.push_back(group);
    group = 0;
  };
  std::string_view last_section;
  for (size_t i : layout.order) {
    const std::string_view here = section(tensors[i].name);
    layout.tensor_offsets[i] = layout.total_bytes;
    layout.total_bytes += size(i);
    if (!small(i)) {
      close_group();
      const int64_t parts = (size(i) + chunk_bytes - 1) / chunk_bytes;
      int64_t part = (size(i) + parts - 1) / parts;
      part = std::min(chunk_bytes, (part + kAlign - 1) / kAlign * kAlign);
      for (int64_t left = size(i); left > 0; left -= part) {
        layout.chunk_sizes.push_back(std::min(part, left));
      }
    } else {
      if (here != last_section || group + size(i) > chunk_bytes) close_group();
      group += size(i);
    }
    last_section = here;
  }
  close_group();
  return layout;
}

}  // namespace ductile::ckpt
