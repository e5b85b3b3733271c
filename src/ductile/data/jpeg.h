#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ductile/data/pixels.h"

namespace ductile::data {

// JPEG through libjpeg-turbo. Throws Error(data_loss) with the library's words and the offset
// within the file for anything that is broken, also where the library would carry on with a
// warning (truncated data, wrong codes). Grey, YCbCr, RGB, CMYK and YCCK files all give RGB.
// Not shared between threads.
class JpegDecoder {
 public:
  JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder();

  struct Size {
    int64_t height = 0, width = 0;
  };
  // Reads the header; `file` must stay valid until the decode ends. Refuses sizes that the file is
  // too short to hold before anything is allocated for them.
  Size open(std::span<const std::byte> file);

  // A part of the opened image: rows [top, bottom) and at least columns [left, right) of the image
  // reduced to ceil(size * eighths / 8), eighths in {1, 2, 4, 8}.
  struct Part {
    int eighths = 8;
    int64_t left = 0, top = 0, right = 0, bottom = 0;
  };
  // Size of the whole reduced image.
  Size scaled(int eighths) const;
  // Starts decoding a part; returns the first column that rows really hold (<= part.left). Entropy
  // decoding stops at part.bottom.
  int64_t start(const Part& part);
  // The next row of the part: 4-byte pixels, followed by slack for the resize.
  const uint8_t* next_row();
  // Ends a part, decoded to its end or not.
  void finish();

  // The whole opened image, packed as RGB.
  ImageView decode_rgb(std::vector<uint8_t>& pixels);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ductile::data
