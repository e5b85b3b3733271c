#include "ductile/data/image_probe.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ductile/base/error.h"
#include "ductile/data/jpeg.h"
#include "ductile/data/png.h"

namespace ductile::data {

Encoding detect_image(std::span<const std::byte> file) {
  const auto starts = [&](std::initializer_list<uint8_t> magic) {
    return file.size() >= magic.size() &&
           std::equal(magic.begin(), magic.end(), reinterpret_cast<const uint8_t*>(file.data()));
  };
  if (starts({0xff, 0xd8, 0xff})) return Encoding::jpeg;
  if (starts({0x89, 'P', 'N', 'G'})) return Encoding::png;
  fail(ErrorCode::data_loss, "offset 0: {}",
       file.empty() ? "an empty file" : "neither a JPEG nor a PNG image");
}

bool has_image_name(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  std::string ending(name.substr(dot + 1));
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending == "jpg" || ending == "jpeg" || ending == "png";
}

std::pair<int64_t, int64_t> image_size(const Sample& sample) {
  if (sample.encoding == Encoding::jpeg) {
    JpegDecoder decoder;
    const auto size = decoder.open(sample.bytes);
    return {size.height, size.width};
  }
  if (sample.encoding == Encoding::png) {
    const PngSize size = png_size(sample.bytes);
    return {size.height, size.width};
  }
  return {sample.height, sample.width};
}

namespace {

// Calls f(sample) for up to `count` readable samples spread evenly.
template <class F>
void for_spread(const Dataset& dataset, int64_t count, F f) {
  const int64_t size = dataset.info().size, n = std::min(count, size);
  std::vector<std::byte> scratch;
  for (int64_t i = 0; i < n; ++i) {
    try {
      f(dataset.read(i * size / n, scratch));
    } catch (const Error& e) {
      // Left to the loader, which knows what to do with a bad sample.
      if (e.code() != ErrorCode::data_loss) throw;
    }
  }
}

}  // namespace

SizeProbe probe_sizes(const Dataset& dataset, int64_t count) {
  SizeProbe probe;
  double bytes = 0;
  int64_t seen = 0;
  for_spread(dataset, count, [&](const Sample& sample) {
    const auto [height, width] = image_size(sample);
    if (seen == 0) {
      probe.one_size = true;
      probe.height = height;
      probe.width = width;
    }
    probe.one_size &= height == probe.height && width == probe.width;
    bytes += static_cast<double>(height * width * dataset.info().channels);
    ++seen;
  });
  probe.mean_bytes = seen > 0 ? bytes / static_cast<double>(seen) : 0;
  return probe;
}

ColourProbe probe_colours(const Dataset& dataset, int64_t count) {
  const size_t channels = static_cast<size_t>(dataset.info().channels);
  std::vector<uint64_t> sum(channels), squares(channels);
  uint64_t pixels = 0;
  std::vector<uint8_t> rgb;
  JpegDecoder decoder;
  for_spread(dataset, count, [&](const Sample& sample) {
    ImageView image{reinterpret_cast<const uint8_t*>(sample.bytes.data()),
                    sample.height,
                    sample.width,
                    sample.channels,
                    sample.channels,
                    0};
    if (sample.encoding == Encoding::jpeg) {
      decoder.open(sample.bytes);
      image = decoder.decode_rgb(rgb);
    } else if (sample.encoding == Encoding::png) {
      image = decode_png(sample.bytes, rgb);
    }
    const size_t n = static_cast<size_t>(image.height * image.width);
    for (size_t i = 0; i < n * channels; i += channels) {
      for (size_t c = 0; c < channels; ++c) {
        const uint64_t v = image.data[i + c];
        sum[c] += v;
        squares[c] += v * v;
      }
    }
    pixels += n;
  });
  ColourProbe probe;
  const double n = static_cast<double>(std::max<uint64_t>(1, pixels));
  for (size_t c = 0; c < channels; ++c) {
    const double mean = static_cast<double>(sum[c]) / n;
    const double variance = static_cast<double>(squares[c]) / n - mean * mean;
    probe.mean.push_back(mean / 255);
    probe.std.push_back(variance > 0 ? std::sqrt(variance) / 255 : 1);
  }
  return probe;
}

}  // namespace ductile::data
