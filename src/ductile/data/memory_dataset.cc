#include "ductile/data/memory_dataset.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "ductile/base/error.h"

namespace ductile::data {

Sample MemoryDataset::read(int64_t index, std::vector<std::byte>&) const {
  const size_t bytes = static_cast<size_t>(info_.height * info_.width * info_.channels);
  return {Encoding::pixels,
          {pixels_.data() + static_cast<size_t>(index) * bytes, bytes},
          info_.height,
          info_.width,
          info_.channels};
}

std::string MemoryDataset::where(int64_t index) const {
  const int64_t number = origin_.empty() ? index : origin_[static_cast<size_t>(index)];
  const auto after = std::upper_bound(sources_.begin(), sources_.end(), number,
                                      [](int64_t n, const Source& s) { return n < s.first; });
  if (after == sources_.begin()) return fmt::format("sample {}", index);
  const Source& s = *std::prev(after);
  return fmt::format("{}, offset {}", s.file, s.offset + (number - s.first) * s.stride);
}

void MemoryDataset::finish() {
  info_.size = static_cast<int64_t>(labels_.size());
  const size_t channels = static_cast<size_t>(info_.channels);
  const size_t bytes = static_cast<size_t>(info_.height * info_.width) * channels;
  DUCTILE_CHECK(pixels_.size() == labels_.size() * bytes, "{} bytes for {} images", pixels_.size(),
                labels_.size());
  // Sums in integers: exact, whatever the order.
  std::array<uint64_t, 4> sum{}, squares{};
  const auto* p = reinterpret_cast<const uint8_t*>(pixels_.data());
  constexpr size_t kBlock = 4096;  // 255^2 * 4096 fits 32 bits
  const size_t pixels = pixels_.size() / channels;
  for (size_t begin = 0; begin < pixels; begin += kBlock) {
    const size_t end = std::min(begin + kBlock, pixels);
    for (size_t c = 0; c < channels; ++c) {
      uint32_t s = 0, q = 0;
      for (size_t i = begin; i < end; ++i) {
        const uint32_t v = p[i * channels + c];
        s += v;
        q += v * v;
      }
      sum[c] += s;
      squares[c] += q;
    }
  }
  info_.mean.resize(channels);
  info_.std.resize(channels);
  for (size_t c = 0; c < channels; ++c) {
    const double n = static_cast<double>(std::max<size_t>(1, pixels));
    const double mean = static_cast<double>(sum[c]) / n;
    const double variance = static_cast<double>(squares[c]) / n - mean * mean;
    info_.mean[c] = mean / 255;
    // A constant channel would divide by zero.
    info_.std[c] = variance > 0 ? std::sqrt(variance) / 255 : 1;
  }
}

}  // namespace ductile::data
