#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ductile::comm {

// Elements begin .. end - 1 of a flat buffer.
struct Bucket {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

// Which gradients to reduce together. Gradients lie in one flat buffer in the order of the
// parameters, so fusing tensors needs no copy: a bucket is a view of a run of whole tensors with at
// least `bucket_elements` elements (fusion_bytes() in cost.h gives the size). Buckets begin at the
// end of the buffer, because the backward pass fills it from there. The first bucket has a quarter
// of that size, so that the links start early. `offsets` are the n + 1 ascending bounds of the n
// tensors; every element is in exactly one bucket, and a tensor is never divided.
std::vector<Bucket> make_buckets(std::span<const int64_t> offsets, int64_t bucket_elements);

}  // namespace ductile::comm
