#include "ductile/data/sample_writer.h"

#include <cstring>

#include "ductile/base/error.h"

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

}  // namespace

SampleWriter::SampleWriter(const Dataset& dataset, const Augmenter& augmenter, bool channels_last)
    : dataset_(dataset),
      augmenter_(augmenter),
      channels_last_(channels_last),
      normalizer_(augmenter.options()),
      exact_(normalizer_) {}

void SampleWriter::write_image(int64_t index, uint64_t epoch, float* out) {
  const Sample sample = dataset_.read(index, scratch_);
  const Shape& shape = augmenter_.output_shape();
  const ImageTarget target{out, shape[0], shape[1], shape[2], channels_last_};
  const Geometry geometry =
      augmenter_.draw(sample.height, sample.width, epoch, static_cast<uint64_t>(index));
  const ImageView image{reinterpret_cast<const uint8_t*>(sample.bytes.data()),
                        sample.height,
                        sample.width,
                        sample.channels,
                        sample.channels,
                        static_cast<size_t>(sample.width * sample.channels)};
  exact_.write(image, geometry, target);
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
