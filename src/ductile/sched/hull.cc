#include "ductile/sched/hull.h"

#include <algorithm>
#include <cmath>

namespace ductile::sched {

void append_hull(std::span<const Option> choices, int type, int64_t most,
                 std::vector<HullPoint>& hull) {
  const size_t begin = hull.size();
  for (size_t i = 0; i < choices.size(); ++i) {
    const Option& c = choices[i];
    if (c.type == type && c.gpus > 0 && c.gpus <= most && c.value > 0 && std::isfinite(c.value))
      hull.push_back({c.value, 0, c.gpus, static_cast<int32_t>(i)});
  }
  const auto by_gpus = [](const HullPoint& a, const HullPoint& b) {
    return a.gpus != b.gpus ? a.gpus < b.gpus : a.value > b.value;
  };
  if (!std::is_sorted(hull.begin() + static_cast<ptrdiff_t>(begin), hull.end(), by_gpus))
    std::sort(hull.begin() + static_cast<ptrdiff_t>(begin), hull.end(), by_gpus);

  // Andrew's monotone chain: drop the last corner while the new point sees it from above.
  size_t end = begin;
  for (size_t i = begin; i < hull.size(); ++i) {
    HullPoint p = hull[i];
    for (;;) {
      const double value = end > begin ? hull[end - 1].value : 0;
      const int32_t gpus = end > begin ? hull[end - 1].gpus : 0;
      if (p.gpus == gpus || p.value <= value) {
        p.slope = 0;
        break;
      }
      p.slope = (p.value - value) / (p.gpus - gpus);
      if (end == begin || p.slope < hull[end - 1].slope) break;
      --end;
    }
    if (p.slope > 0) hull[end++] = p;
  }
  hull.resize(end);
}

}  // namespace ductile::sched
