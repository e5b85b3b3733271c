#include "ductile/data/jpeg.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <jerror.h>
#include <jpeglib.h>

#include "ductile/base/aligned_array.h"
#include "ductile/base/error.h"
#include "ductile/data/limits.h"
#include "ductile/data/resize.h"

namespace ductile::data {
namespace {

// A block of 8 x 8 samples has at least the code of its mean, of one bit or more.
constexpr int64_t kMaxBlocksAByte = 8;

struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX] = {};
};

ErrorManager& manager(j_common_ptr info) { return *reinterpret_cast<ErrorManager*>(info->err); }

// libjpeg is C: no exception may pass through it, so errors jump back to the caller's frame, which
// holds nothing that needs a destructor.
void on_error(j_common_ptr info) {
  (*info->err->format_message)(info, manager(info).text);
  std::longjmp(manager(info).jump, 1);
}

void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;  // traces
  switch (info->err->msg_code) {
    // Harmless and common in the wild: stray bytes between markers, odd but readable headers.
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA:
      return;
    default:
      on_error(info);
  }
}

void no_output(j_common_ptr) {}

// A scan over the whole image may take a few bytes, and each costs as much work as a decode.
void limit_scans(j_common_ptr info) {
  if (!info->is_decompressor ||
      reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxJpegScans) {
    return;
  }
  std::snprintf(manager(info).text, JMSG_LENGTH_MAX, "more than %d scans", kMaxJpegScans);
  std::longjmp(manager(info).jump, 1);
}

bool has_end_marker(std::span<const std::byte> file) {
  const auto* begin = reinterpret_cast<const uint8_t*>(file.data());
  for (size_t i = file.size(); i >= 2; --i) {
    if (begin[i - 1] == JPEG_EOI && begin[i - 2] == 0xff) return true;
  }
  return false;
}

}  // namespace

struct JpegDecoder::State {
  jpeg_decompress_struct info{};
  ErrorManager errors{};
  jpeg_progress_mgr progress{};
  std::span<const std::byte> file;
  AlignedArray<uint8_t> row;
  bool cmyk = false;

  [[noreturn]] void raise() {
    const size_t left = info.src != nullptr ? info.src->bytes_in_buffer : 0;
    const size_t at = left <= file.size() ? file.size() - left : 0;
    jpeg_abort_decompress(&info);
    // What the machine lacks is no damage of the file.
    const bool memory = errors.base.msg_code == JERR_OUT_OF_MEMORY;
    fail(memory ? ErrorCode::unavailable : ErrorCode::data_loss, "offset {}: {}", at, errors.text);
  }
};

// Runs a statement that calls libjpeg. Only trivial objects may live inside it.
#define DUCTILE_JPEG(state, statement)      \
  do {                                      \
    if (setjmp((state).errors.jump) == 0) { \
      statement;                            \
    } else {                                \
      (state).raise();                      \
    }                                       \
  } while (false)

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.info.err = jpeg_std_error(&s.errors.base);
  s.errors.base.error_exit = on_error;
  s.errors.base.emit_message = on_message;
  s.errors.base.output_message = no_output;
  if (setjmp(s.errors.jump) != 0) fail(ErrorCode::unavailable, "libjpeg: {}", s.errors.text);
  jpeg_create_decompress(&s.info);
  s.progress.progress_monitor = limit_scans;
  s.info.progress = &s.progress;
}

JpegDecoder::~JpegDecoder() { jpeg_destroy_decompress(&state_->info); }

JpegDecoder::Size JpegDecoder::open(std::span<const std::byte> file) {
  State& s = *state_;
  s.file = file;
  s.errors.text[0] = 0;
  s.errors.base.msg_code = 0;
  jpeg_abort_decompress(&s.info);  // an earlier decode may have been left half done
  if (file.empty()) fail(ErrorCode::data_loss, "offset 0: an empty file");
  DUCTILE_JPEG(s, {
    jpeg_mem_src(&s.info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&s.info, TRUE);
  });
  const int64_t height = s.info.image_height, width = s.info.image_width;
  if (height * width > kMaxPixels) {
    jpeg_abort_decompress(&s.info);
    fail(ErrorCode::data_loss,
         "offset 0: {} x {} pixels; at most {} are read, so scale it down first", width, height,
         kMaxPixels);
  }
  int64_t blocks = 0;
  for (int c = 0; c < s.info.num_components; ++c) {
    const jpeg_component_info& component = s.info.comp_info[c];
    blocks += int64_t{component.width_in_blocks} * component.height_in_blocks;
  }
  if (blocks > kMaxBlocksAByte * static_cast<int64_t>(file.size())) {
    jpeg_abort_decompress(&s.info);
    fail(ErrorCode::data_loss, "offset 0: the header claims {} x {} pixels, the file has {} bytes",
         width, height, file.size());
  }
  // A part that ends early would not notice that the file does.
  if (!has_end_marker(file)) {
    jpeg_abort_decompress(&s.info);
    fail(ErrorCode::data_loss, "offset {}: truncated, no end marker", file.size());
  }
  s.cmyk = s.info.jpeg_color_space == JCS_CMYK || s.info.jpeg_color_space == JCS_YCCK;
  return {height, width};
}

JpegDecoder::Size JpegDecoder::scaled(int eighths) const {
  const auto reduce = [&](int64_t n) { return (n * eighths + 7) / 8; };
  return {reduce(state_->info.image_height), reduce(state_->info.image_width)};
}

int64_t JpegDecoder::start(const Part& part) {
  State& s = *state_;
  s.info.out_color_space = s.cmyk ? JCS_CMYK : JCS_EXT_RGBX;
  s.info.scale_num = static_cast<unsigned>(part.eighths);
  s.info.scale_denom = 8;
  s.info.dct_method = JDCT_ISLOW;
  JDIMENSION left = static_cast<JDIMENSION>(part.left);
  JDIMENSION width = static_cast<JDIMENSION>(part.right - part.left);
  DUCTILE_JPEG(s, {
    jpeg_start_decompress(&s.info);
    if (width < s.info.output_width) jpeg_crop_scanline(&s.info, &left, &width);
    if (part.top > 0) jpeg_skip_scanlines(&s.info, static_cast<JDIMENSION>(part.top));
  });
  s.row.need(static_cast<int64_t>(kRowOffset + s.info.output_width * 4 + kRowSlack));
  return width < scaled(part.eighths).width ? static_cast<int64_t>(left) : 0;
}

const uint8_t* JpegDecoder::next_row() {
  State& s = *state_;
  JSAMPROW row = s.row.data() + kRowOffset;
  DUCTILE_JPEG(s, jpeg_read_scanlines(&s.info, &row, 1));
  if (s.cmyk) {
    // Adobe writes CMYK inverted: 255 is no ink.
    const bool inverted = s.info.saw_Adobe_marker;
    for (size_t x = 0; x < s.info.output_width; ++x) {
      uint8_t* const p = row + 4 * x;
      const int k = inverted ? p[3] : 255 - p[3];
      for (int c = 0; c < 3; ++c) {
        const int light = inverted ? p[c] : 255 - p[c];
        p[c] = static_cast<uint8_t>((light * k + 127) / 255);
      }
    }
  }
  return row;
}

void JpegDecoder::finish() { jpeg_abort_decompress(&state_->info); }

ImageView JpegDecoder::decode_rgb(std::vector<uint8_t>& pixels) {
  const Size size = scaled(8);
  pixels.resize(static_cast<size_t>(size.height * size.width * 3));
  start({8, 0, 0, size.width, size.height});
  uint8_t* out = pixels.data();
  for (int64_t y = 0; y < size.height; ++y) {
    const uint8_t* row = next_row();
    for (int64_t x = 0; x < size.width; ++x, out += 3, row += 4) std::memcpy(out, row, 3);
  }
  finish();
  return {pixels.data(), size.height, size.width, 3, 3, static_cast<size_t>(3 * size.width)};
}

}  // namespace ductile::data
