#pragma once

// Small images for tests, made with the libraries' own encoders.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <jpeglib.h>
#include <spng.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"

namespace ductile::data {

// A smooth picture with some texture; `seed` shifts it. Interleaved, `channels` bytes a pixel.
inline std::vector<uint8_t> test_pixels(int width, int height, int channels, int seed) {
  std::vector<uint8_t> p(static_cast<size_t>(width * height * channels));
  size_t i = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        p[i++] = static_cast<uint8_t>(128 + (x * (3 + c) + y * 2 + seed * 17) % 97 - 48);
      }
    }
  }
  return p;
}

inline std::string encode_jpeg(const std::vector<uint8_t>& pixels, int width, int height,
                               J_COLOR_SPACE space, int channels, bool progressive = false) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = channels;
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 92, TRUE);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < height; ++y) {
    JSAMPROW row = const_cast<uint8_t*>(pixels.data()) + y * width * channels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string bytes(reinterpret_cast<char*>(out), size);
  jpeg_destroy_compress(&info);
  std::free(out);
  return bytes;
}

// `pixels` are packed RGB.
inline std::string encode_png(const std::vector<uint8_t>& pixels, int width, int height) {
  const std::unique_ptr<spng_ctx, decltype(&spng_ctx_free)> context(spng_ctx_new(SPNG_CTX_ENCODER),
                                                                    &spng_ctx_free);
  spng_set_option(context.get(), SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr header{};
  header.width = static_cast<uint32_t>(width);
  header.height = static_cast<uint32_t>(height);
  header.bit_depth = 8;
  header.color_type = SPNG_COLOR_TYPE_TRUECOLOR;
  spng_set_ihdr(context.get(), &header);
  int error = spng_encode_image(context.get(), pixels.data(), pixels.size(), SPNG_FMT_PNG,
                                SPNG_ENCODE_FINALIZE);
  size_t size = 0;
  void* bytes = error == 0 ? spng_get_png_buffer(context.get(), &size, &error) : nullptr;
  if (error != 0) fail(ErrorCode::internal, "spng: {}", spng_strerror(error));
  std::string file(static_cast<const char*>(bytes), size);
  std::free(bytes);
  return file;
}

inline std::string test_jpeg(int width, int height, int seed) {
  return encode_jpeg(test_pixels(width, height, 3, seed), width, height, JCS_RGB, 3);
}

// ROOT/{train,val}/{cat,dog}/N.jpg of varied sizes: `per_class` and half of it.
inline void make_image_folder(const fs::path& root, int per_class) {
  for (const std::string split : {"train", "val"}) {
    for (const std::string name : {"cat", "dog"}) {
      const fs::path folder = root / split / name;
      fs::create_directories(folder);
      const int count = split == "train" ? per_class : per_class / 2;
      for (int i = 0; i < count; ++i) {
        const int seed = i + (name == "dog" ? 100 : 0) + (split == "val" ? 1000 : 0);
        write_file_atomic(folder / (std::to_string(100 + i) + ".jpg"),
                          test_jpeg(40 + 7 * (i % 5), 60 - 5 * (i % 4), seed));
      }
    }
  }
}

}  // namespace ductile::data
