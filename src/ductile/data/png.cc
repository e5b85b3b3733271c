#include "ductile/data/png.h"

#include <memory>

#include <spng.h>

#include "ductile/base/error.h"
#include "ductile/data/limits.h"

namespace ductile::data {
namespace {

constexpr int64_t kLargestSide = 1 << 20;
constexpr size_t kMaxChunk = size_t{1} << 24;  // of a profile or a text, unpacked
constexpr int64_t kMaxUnpackedAByte = 1032;    // deflate packs no better

// What the image data unpacks to: each row has a byte of its own, and a pixel may be one bit.
int64_t unpacked_bytes(const spng_ihdr& h) {
  const int64_t samples = h.color_type == SPNG_COLOR_TYPE_TRUECOLOR         ? 3
                          : h.color_type == SPNG_COLOR_TYPE_TRUECOLOR_ALPHA ? 4
                          : h.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA ? 2
                                                                            : 1;
  return int64_t{h.height} * (1 + (int64_t{h.width} * samples * h.bit_depth + 7) / 8);
}

using Context = std::unique_ptr<spng_ctx, decltype(&spng_ctx_free)>;

void check(int rc) {
  if (rc == SPNG_EMEM) fail(ErrorCode::unavailable, "libspng: no memory");
  if (rc != 0) fail(ErrorCode::data_loss, "PNG: {}", spng_strerror(rc));
}

Context open(std::span<const std::byte> file, spng_ihdr& header) {
  Context context(spng_ctx_new(0), &spng_ctx_free);
  if (!context) fail(ErrorCode::unavailable, "libspng: no memory");
  check(spng_set_image_limits(context.get(), kLargestSide, kLargestSide));
  check(spng_set_chunk_limits(context.get(), kMaxChunk, 2 * kMaxChunk));
  check(spng_set_crc_action(context.get(), SPNG_CRC_ERROR, SPNG_CRC_ERROR));
  check(spng_set_png_buffer(context.get(), file.data(), file.size()));
  check(spng_get_ihdr(context.get(), &header));
  const int64_t pixels = int64_t{header.width} * header.height;
  if (pixels > kMaxPixels) {
    fail(ErrorCode::data_loss, "PNG: {} x {} pixels; at most {} are read, so scale it down first",
         header.width, header.height, kMaxPixels);
  }
  if (unpacked_bytes(header) > kMaxUnpackedAByte * static_cast<int64_t>(file.size())) {
    fail(ErrorCode::data_loss, "PNG: the header claims {} x {} pixels, the file has {} bytes",
         header.width, header.height, file.size());
  }
  return context;
}

}  // namespace

PngSize png_size(std::span<const std::byte> file) {
  spng_ihdr header{};
  open(file, header);
  return {header.height, header.width};
}

ImageView decode_png(std::span<const std::byte> file, std::vector<uint8_t>& pixels) {
  spng_ihdr header{};
  const Context context = open(file, header);
  size_t size = 0;
  check(spng_decoded_image_size(context.get(), SPNG_FMT_RGB8, &size));
  pixels.resize(size);
  check(spng_decode_image(context.get(), pixels.data(), size, SPNG_FMT_RGB8, 0));
  return {pixels.data(), header.height, header.width, 3, 3, size_t{3} * header.width};
}

}  // namespace ductile::data
