#pragma once

#include <cstdint>
#include <vector>

namespace ductile::comm {

// For tests: V leaves over n ranks, the first V % n of which have one more; rank r has the leaves
// cut[r] .. cut[r + 1] - 1. (Jobs are cut by control::spread_ranks.)
inline std::vector<int64_t> even_cut(int64_t num_leaves, int num_ranks) {
  std::vector<int64_t> cut{0};
  for (int r = 0; r < num_ranks; ++r) {
    cut.push_back(cut.back() + num_leaves / num_ranks + (r < num_leaves % num_ranks ? 1 : 0));
  }
  return cut;
}

}  // namespace ductile::comm
