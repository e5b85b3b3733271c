#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ductile/data/pixels.h"

namespace ductile::data {

struct PngSize {
  int64_t height = 0, width = 0;
};

// PNG through libspng: any colour type and depth to packed 8-bit RGB; transparency is dropped.
// Throws Error(data_loss) for broken files, and for sizes that the file is too short to hold.
PngSize png_size(std::span<const std::byte> file);
ImageView decode_png(std::span<const std::byte> file, std::vector<uint8_t>& pixels);

}  // namespace ductile::data
