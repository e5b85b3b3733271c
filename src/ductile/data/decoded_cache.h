#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ductile/data/dataset.h"
#include "ductile/data/pixels.h"

namespace ductile::data {

// Whole decoded images of a small set, kept from the first reading on. Any number of threads; two
// that decode the same image at the same time store one of two equal results.
class DecodedCache {
 public:
  // nullptr where the set is in memory anyway or, by a look at some of its images, too large. The
  // answer depends on the set and the limit only: what is decoded whole must not vary between runs,
  // since a partial decode differs from it in the last bits.
  static std::unique_ptr<DecodedCache> make(const Dataset& dataset, int64_t limit_bytes);

  DecodedCache(int64_t size, int64_t limit_bytes);
  ~DecodedCache();

  // data == nullptr: not here.
  ImageView find(int64_t index) const;
  // Keeps a packed RGB image, if there is room.
  void store(int64_t index, const ImageView& image);

 private:
  struct Entry {
    int64_t height, width;
    std::vector<uint8_t> pixels;
  };
  std::vector<std::atomic<const Entry*>> entries_;
  std::atomic<int64_t> left_;
};

}  // namespace ductile::data
