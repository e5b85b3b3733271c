#include "ductile/comm/fusion.h"

#include <algorithm>

#include "ductile/base/error.h"

namespace ductile::comm {

std::vector<Bucket> make_buckets(std::span<const int64_t> offsets, int64_t bucket_elements) {
  if (bucket_elements < 1) {
    fail(ErrorCode::invalid_argument, "buckets of {} elements: at least 1", bucket_elements);
  }
  if (!std::is_sorted(offsets.begin(), offsets.end())) {
    fail(ErrorCode::invalid_argument, "the bounds of the tensors are not ascending");
  }
  std::vector<Bucket> buckets;
  if (offsets.size() < 2) return buckets;
  int64_t end = offsets.back();
  for (size_t i = offsets.size() - 1; i-- > 0;) {
    const int64_t target =
        buckets.empty() ? std::max<int64_t>(1, bucket_elements / 4) : bucket_elements;
    if (end - offsets[i] >= target || (i == 0 && end > offsets[0])) {
      buckets.push_back({offsets[i], end});
      end = offsets[i];
    }
  }
  return buckets;
}

}  // namespace ductile::comm
