// The measured half of bench/input_pipeline: decodes a folder of JPEG files in one of several ways
// and prints, as JSON, images and the processor seconds they took.
//
//   input_pipeline_bench FOLDER bare|bare-scalar|loader|loader-nchw IMAGES [THREADS]
//
// bare: one thread, files in memory; libjpeg-turbo's partial and scaled decode of a random-resized
// crop, then the resize of ductile::data into one fixed buffer. No flip, batches, queues or reading
// of files: what the library allows. bare-scalar: the same with a plain bilinear resize.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <jpeglib.h>

#include "ductile/base/aligned_array.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/data/augment.h"
#include "ductile/data/loader.h"
#include "ductile/data/pixels.h"
#include "ductile/data/resize.h"

namespace ductile::data {
namespace {

constexpr int64_t kSide = 224;

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

spec::AugmentOptions augment_options() {
  spec::AugmentOptions a;
  a.crop = kSide;
  a.random_resized_crop = true;
  a.flip = true;
  a.mean = {0.485, 0.456, 0.406};
  a.std = {0.229, 0.224, 0.225};
  return a;
}

// Plain bilinear: two by two pixels of the box for each output pixel.
void scalar_resize(const std::vector<uint8_t>& rgb, int64_t w, int64_t h, double x0, double y0,
                   double bw, double bh, const Normalizer& n, float* out) {
  for (int64_t y = 0; y < kSide; ++y) {
    const double sy = std::clamp(y0 + (double(y) + 0.5) * bh / kSide - 0.5, 0.0, double(h - 1));
    const int64_t iy = std::min<int64_t>(int64_t(sy), std::max<int64_t>(0, h - 2));
    const float fy = float(sy - double(iy));
    for (int64_t x = 0; x < kSide; ++x) {
      const double sx = std::clamp(x0 + (double(x) + 0.5) * bw / kSide - 0.5, 0.0, double(w - 1));
      const int64_t ix = std::min<int64_t>(int64_t(sx), std::max<int64_t>(0, w - 2));
      const float fx = float(sx - double(ix));
      const uint8_t* p = rgb.data() + 4 * (iy * w + ix);
      const uint8_t* q = h > 1 ? p + 4 * w : p;
      for (int c = 0; c < 3; ++c) {
        const float top = float(p[c]) + fx * float(p[4 + c] - p[c]);
        const float bottom = float(q[c]) + fx * float(q[4 + c] - q[c]);
        const size_t s = size_t(c);
        *out++ = (top + fy * (bottom - top)) * n.scale[s] + n.bias[s];
      }
    }
  }
}

double bare(const std::vector<std::string>& files, int64_t images, bool scalar) {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  DatasetInfo shape;
  shape.channels = 3;
  const Augmenter augmenter(augment_options(), shape, true, 1);
  const Normalizer normalizer(augmenter.options());
  Resizer resizer(normalizer);
  std::vector<float> out(kSide * kSide * 3);
  AlignedArray<uint8_t> row;
  std::vector<uint8_t> part;
  const double start = cpu_seconds();
  for (int64_t i = 0; i < images; ++i) {
    const std::string& file = files[size_t(i) % files.size()];
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&info, TRUE);
    const Geometry g = augmenter.draw(info.image_height, info.image_width, 0, uint64_t(i));
    int eighths = 8;
    for (const int e : {4, 2, 1}) {
      if (g.width * e / 8 >= kSide && g.height * e / 8 >= kSide) eighths = e;
    }
    info.out_color_space = JCS_EXT_RGBX;
    info.scale_num = unsigned(eighths);
    info.scale_denom = 8;
    jpeg_start_decompress(&info);
    const double s = eighths / 8.0;
    const ResizeAxis columns(g.x * s, g.width * s, info.output_width, kSide);
    const ResizeAxis rows(g.y * s, g.height * s, info.output_height, kSide);
    JDIMENSION left = JDIMENSION(columns.begin), width = JDIMENSION(columns.end - columns.begin);
    jpeg_crop_scanline(&info, &left, &width);
    jpeg_skip_scanlines(&info, JDIMENSION(rows.begin));
    if (scalar) {
      const int64_t h = rows.end - rows.begin;
      part.resize(4 * width * size_t(h) + 64);
      for (int64_t y = 0; y < h; ++y) {
        JSAMPROW at = part.data() + size_t(y) * 4 * width;
        jpeg_read_scanlines(&info, &at, 1);
      }
      scalar_resize(part, width, h, g.x * s - left, g.y * s - rows.begin, g.width * s, g.height * s,
                    normalizer, out.data());
    } else {
      row.need(int64_t(kRowOffset + 4 * size_t(info.output_width) + kRowSlack));
      JSAMPROW at = row.data() + kRowOffset;
      resizer.write(columns, rows, left, false,
                    [&]() -> const uint8_t* {
                      jpeg_read_scanlines(&info, &at, 1);
                      return row.data() + kRowOffset;
                    },
                    {out.data(), 3, kSide, kSide, true});
    }
    jpeg_abort_decompress(&info);
  }
  const double seconds = cpu_seconds() - start;
  jpeg_destroy_decompress(&info);
  return seconds;
}

double loader(const std::string& folder, int64_t images, int64_t threads, bool channels_last) {
  spec::DataOptions data;
  data.format = "folder";
  data.path = folder;
  spec::LoaderOptions options;
  options.threads = threads;
  options.cache_mb = 0;
  Loader l(open_dataset(data, Split::train), augment_options(), options,
           {.seed = 1, .batch_size = 64, .channels_last = channels_last});
  for (int i = 0; i < 4; ++i) l.next();  // warm: the pool's memory, the file cache
  const double start = cpu_seconds();
  for (int64_t i = 0; i < images; i += 64) l.next();
  return cpu_seconds() - start;
}

int run(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s FOLDER bare|bare-scalar|loader|loader-nchw IMAGES [THREADS]\n",
                 argv[0]);
    return 2;
  }
  const std::string folder = argv[1], mode = argv[2];
  const int64_t images = (std::atoll(argv[3]) + 63) / 64 * 64;
  const int64_t threads = argc > 4 ? std::atoll(argv[4]) : 1;
  const auto start = std::chrono::steady_clock::now();
  double cpu = 0;
  if (mode.starts_with("bare")) {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == ".jpg") files.push_back(read_file(entry.path()));
    }
    std::sort(files.begin(), files.end());
    cpu = bare(files, images, mode == "bare-scalar");
  } else {
    cpu = loader(folder, images, threads, mode == "loader");
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  fmt::print(
      "{{\"mode\": \"{}\", \"images\": {}, \"cpu_seconds\": {:.4f}, \"wall_seconds\": "
      "{:.4f}}}\n",
      mode, images, cpu, wall.count());
  return 0;
}

}  // namespace
}  // namespace ductile::data

int main(int argc, char** argv) {
  try {
    return ductile::data::run(argc, argv);
  } catch (const ductile::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
