#include "ductile/data/sample_writer.h"

#include <cstring>

#include "ductile/base/error.h"
#include "ductile/data/png.h"

namespace ductile::data {
namespace {

template <class T>
void widen(std::span<const std::byte> bytes, int64_t* input, int64_t* next, size_t count) {
  DUCTILE_CHECK(bytes.size() == (count + 1) * sizeof(T), "a token sample of {} bytes",
                bytes.size());
  for (size_t i = 0; i <= count; ++i) {
    T token;
    std::memcpy(&token, bytes.data() + i * sizeof(T), sizeof(T));
    if (i < count) input[i] = token;
    if (i > 0) next[i - 1] = token;
  }
}

// 4-byte pixels from 1 or 3; columns [begin, end) of the row.
void expand(const uint8_t* row, int64_t channels, int64_t begin, int64_t end, uint8_t* out) {
  if (channels == 3) {
    for (int64_t x = begin; x < end; ++x, out += 4) {
      out[0] = row[3 * x];
      out[1] = row[3 * x + 1];
      out[2] = row[3 * x + 2];
    }
  } else {
    for (int64_t x = begin; x < end; ++x, out += 4) out[0] = out[1] = out[2] = row[x];
  }
}

// The strongest reduction within the decoder that leaves the box no smaller than the target.
int choose_eighths(const Geometry& g, const ImageTarget& target) {
  for (const int eighths : {1, 2, 4}) {
    if (g.width * eighths / 8 >= static_cast<double>(target.width) &&
        g.height * eighths / 8 >= static_cast<double>(target.height)) {
      return eighths;
    }
  }
  return 8;
}

}  // namespace

SampleWriter::SampleWriter(const Dataset& dataset, const Augmenter& augmenter, DecodedCache* cache,
                           bool channels_last)
    : dataset_(dataset),
      augmenter_(augmenter),
      cache_(cache),
      channels_last_(channels_last),
      normalizer_(augmenter.options()),
      exact_(normalizer_, augmenter.options()),
      resizer_(normalizer_) {}

void SampleWriter::write_image(int64_t index, uint64_t epoch, float* out) {
  const Shape& shape = augmenter_.output_shape();
  const ImageTarget target{out, shape[0], shape[1], shape[2], channels_last_};
  if (cache_ != nullptr) {
    if (const ImageView image = cache_->find(index); image.data != nullptr) {
      write_pixels(image, index, epoch, target);
      return;
    }
  }
  try {
    const Sample sample = dataset_.read(index, scratch_);
    if (sample.encoding != Encoding::pixels) {
      write_encoded(sample, index, epoch, target);
      return;
    }
    write_pixels(
        {reinterpret_cast<const uint8_t*>(sample.bytes.data()), sample.height, sample.width,
         sample.channels, sample.channels, static_cast<size_t>(sample.width * sample.channels)},
        index, epoch, target);
  } catch (Error& e) {
    e.with_context(dataset_.where(index));
    throw;
  }
}

void SampleWriter::write_encoded(const Sample& sample, int64_t index, uint64_t epoch,
                                 const ImageTarget& target) {
  ImageView image;
  if (sample.encoding == Encoding::jpeg) {
    const JpegDecoder::Size size = jpeg_.open(sample.bytes);
    if (cache_ == nullptr) {
      const Geometry geometry =
          augmenter_.draw(size.height, size.width, epoch, static_cast<uint64_t>(index));
      if (!geometry.exact) {
        write_jpeg_part(geometry, target);
        return;
      }
    }
    image = jpeg_.decode_rgb(pixels_);
  } else {
    image = decode_png(sample.bytes, pixels_);
  }
  if (cache_ != nullptr) cache_->store(index, image);
  write_pixels(image, index, epoch, target);
}

void SampleWriter::write_jpeg_part(const Geometry& g, const ImageTarget& target) {
  const int eighths = choose_eighths(g, target);
  const double scale = eighths / 8.0;
  const JpegDecoder::Size scaled = jpeg_.scaled(eighths);
  const ResizeAxis columns(g.x * scale, g.width * scale, scaled.width, target.width);
  const ResizeAxis rows(g.y * scale, g.height * scale, scaled.height, target.height);
  const int64_t left = jpeg_.start({eighths, columns.begin, rows.begin, columns.end, rows.end});
  resizer_.write(
      columns, rows, left, g.flip, [this] { return jpeg_.next_row(); }, target);
  jpeg_.finish();
  apply_cutout(g, normalizer_, target);
}

void SampleWriter::write_pixels(const ImageView& image, int64_t index, uint64_t epoch,
                                const ImageTarget& target) {
  const Geometry g =
      augmenter_.draw(image.height, image.width, epoch, static_cast<uint64_t>(index));
  if (g.exact) {
    exact_.write(image, g, target);
    return;
  }
  const ResizeAxis columns(g.x, g.width, image.width, target.width);
  const ResizeAxis rows(g.y, g.height, image.height, target.height);
  row_.resize(static_cast<size_t>(4 * (columns.end - columns.begin)) + kRowSlack);
  int64_t y = rows.begin;
  resizer_.write(
      columns, rows, columns.begin, g.flip,
      [&] {
        expand(image.row(y++), image.channels, columns.begin, columns.end, row_.data());
        return row_.data();
      },
      target);
  apply_cutout(g, normalizer_, target);
}

std::span<const std::byte> SampleWriter::read_inputs(int64_t index) {
  const Sample sample = dataset_.read(index, scratch_);
  DUCTILE_CHECK(sample.encoding == Encoding::inputs, "sample {} is not of several inputs", index);
  return sample.bytes;
}

void SampleWriter::write_tokens(int64_t index, int64_t* input, int64_t* next) {
  const Sample sample = dataset_.read(index, scratch_);
  const size_t count = static_cast<size_t>(dataset_.info().sequence_length);
  if (sample.encoding == Encoding::tokens16) {
    widen<uint16_t>(sample.bytes, input, next, count);
  } else {
    widen<uint32_t>(sample.bytes, input, next, count);
  }
}

}  // namespace ductile::data
