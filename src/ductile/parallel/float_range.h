#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ductile::parallel {

// Elements begin .. end - 1 of a vector.
struct FloatRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const FloatRange&) const = default;
};

// The same elements as ranges that ascend, are not empty and do not touch each other.
inline std::vector<FloatRange> united(std::vector<FloatRange> ranges) {
  std::erase_if(ranges, [](const FloatRange& r) { return r.begin >= r.end; });
  std::ranges::sort(ranges, {}, &FloatRange::begin);
  std::vector<FloatRange> out;
  for (const FloatRange& r : ranges) {
    if (out.empty() || out.back().end < r.begin) {
      out.push_back(r);
    } else {
      out.back().end = std::max(out.back().end, r.end);
    }
  }
  return out;
}

}  // namespace ductile::parallel
