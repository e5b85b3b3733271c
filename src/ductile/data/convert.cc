#include "ductile/data/convert.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/data/image_probe.h"
#include "ductile/data/jpeg.h"
#include "ductile/data/png.h"
#include "ductile/data/records.h"
#include "ductile/data/resize.h"
#include "ductile/data/tar_index.h"

namespace ductile::data {
namespace {

constexpr size_t kTarBlock = 512;

// Decodes whole images and reduces their short side.
class RawMaker {
 public:
  explicit RawMaker(int64_t short_side)
      : short_side_(short_side), normalizer_(bytes_as_they_are()), resizer_(normalizer_) {}

  // The sample as 3-channel pixels; valid until the next call.
  Sample make(const Sample& sample) {
    ImageView image{reinterpret_cast<const uint8_t*>(sample.bytes.data()),
                    sample.height,
                    sample.width,
                    sample.channels,
                    sample.channels,
                    static_cast<size_t>(sample.width * sample.channels)};
    if (sample.encoding == Encoding::jpeg) {
      jpeg_.open(sample.bytes);
      image = jpeg_.decode_rgb(rgb_);
    } else if (sample.encoding == Encoding::png) {
      image = decode_png(sample.bytes, rgb_);
    }
    int64_t height = image.height, width = image.width;
    const int64_t side = std::min(height, width);
    if (short_side_ > 0 && short_side_ < side) {
      height = std::max<int64_t>(1, (image.height * short_side_ + side / 2) / side);
      width = std::max<int64_t>(1, (image.width * short_side_ + side / 2) / side);
    }
    const ResizeAxis columns(0, static_cast<double>(image.width), image.width, width);
    const ResizeAxis rows(0, static_cast<double>(image.height), image.height, height);
    row_.assign(static_cast<size_t>(4 * image.width) + kRowSlack, 0);
    floats_.resize(static_cast<size_t>(height * width * 3));
    int64_t y = 0;
    resizer_.write(columns, rows, 0, false,
                   [&] {
                     const uint8_t* from = image.row(y++);
                     for (int64_t x = 0; x < image.width; ++x) {
                       for (int64_t c = 0; c < 3; ++c) {
                         row_[static_cast<size_t>(4 * x + c)] =
                             from[x * image.step + std::min(c, image.channels - 1)];
                       }
                     }
                     return row_.data();
                   },
                   {floats_.data(), 3, height, width, true});
    out_.resize(floats_.size());
    std::transform(floats_.begin(), floats_.end(), out_.begin(), [](float v) {
      return static_cast<std::byte>(std::clamp(std::floor(v + 0.5f), 0.0f, 255.0f));
    });
    return {Encoding::pixels, out_, height, width, 3};
  }

 private:
  static Normalizer bytes_as_they_are() {
    spec::AugmentOptions o;
    o.mean = {0, 0, 0};
    o.std = {1.0 / 255, 1.0 / 255, 1.0 / 255};
    return Normalizer(o);
  }

  int64_t short_side_;
  Normalizer normalizer_;
  Resizer resizer_;
  JpegDecoder jpeg_;
  std::vector<uint8_t> rgb_, row_;
  std::vector<float> floats_;
  std::vector<std::byte> out_;
};

void refuse_existing(const fs::path& file) {
  if (fs::exists(file)) {
    fail(ErrorCode::conflict, "{}: exists already; remove it or choose another folder",
         file.string());
  }
}

// Calls write(sample, index) for each readable sample.
void for_each_sample(const Dataset& dataset, ConvertResult& result,
                     const std::function<void(const Sample&, int64_t)>& write) {
  std::vector<std::byte> scratch;
  result.bad = dataset.bad_items();
  for (int64_t i = 0; i < dataset.info().size; ++i) {
    try {
      const Sample sample = dataset.read(i, scratch);
      image_size(sample);  // at least the header must be sound
      write(sample, i);
      ++result.samples;
    } catch (Error& e) {
      if (e.code() != ErrorCode::data_loss) throw;
      if (!dataset.skip_bad()) {
        e.with_context(dataset.where(i));
        throw;
      }
      result.bad.push_back({dataset.where(i), e.what()});
    }
  }
}

void write_shards(const Dataset& dataset, const fs::path& folder, const std::string& name,
                  const ConvertOptions& options, ConvertResult& result) {
  std::string shard;
  const auto flush = [&] {
    if (shard.empty()) return;
    shard.append(2 * kTarBlock, '\0');
    const fs::path file = folder / fmt::format("{}-{:06}.tar", name, result.files.size());
    refuse_existing(file);
    write_file_atomic(file, shard);
    result.files.push_back(file.string());
    result.bytes += static_cast<int64_t>(shard.size());
    shard.clear();
  };
  const auto member = [&](const std::string& member_name, std::string_view bytes) {
    shard += tar_header(member_name, bytes.size());
    shard += bytes;
    shard.append((kTarBlock - bytes.size() % kTarBlock) % kTarBlock, '\0');
  };
  for_each_sample(dataset, result, [&](const Sample& sample, int64_t i) {
    if (sample.encoding != Encoding::jpeg && sample.encoding != Encoding::png) {
      fail(ErrorCode::invalid_argument,
           "format \"{}\" holds raw pixels; tar shards hold JPEG or PNG files (use records)",
           dataset.info().format);
    }
    const std::string key = fmt::format("{:09}", i);
    const std::string_view bytes(reinterpret_cast<const char*>(sample.bytes.data()),
                                 sample.bytes.size());
    member(key + (sample.encoding == Encoding::jpeg ? ".jpg" : ".png"), bytes);
    member(key + ".cls", std::to_string(dataset.label(i)));
    if (static_cast<int64_t>(shard.size()) >= options.shard_bytes) flush();
  });
  flush();
  std::string classes;
  for (const std::string& c : dataset.info().class_names) classes += c + "\n";
  write_file_atomic(folder / "classes.txt", classes);
}

void write_records(const Dataset& dataset, const fs::path& file, const ConvertOptions& options,
                   ConvertResult& result) {
  refuse_existing(file);
  RecordsWriter writer(file, dataset.info().class_names);
  RawMaker raw(options.short_side);
  for_each_sample(dataset, result, [&](const Sample& sample, int64_t i) {
    const bool decode = options.raw || sample.encoding == Encoding::pixels;
    writer.add(decode ? raw.make(sample) : sample, dataset.label(i));
  });
  writer.finish();
  result.files.push_back(file.string());
  result.bytes = static_cast<int64_t>(fs::file_size(file));
}

}  // namespace

ConvertResult convert(const spec::DataOptions& data, Split split, const ConvertOptions& options) {
  if (options.out.empty()) fail(ErrorCode::invalid_argument, "no folder to convert into");
  if (options.short_side < 0 || (options.short_side > 0 && !options.raw)) {
    fail(ErrorCode::invalid_argument, "short_side = {} goes with raw records only",
         options.short_side);
  }
  const auto dataset = open_dataset(data, split);
  if (dataset->info().tokens) {
    fail(ErrorCode::invalid_argument, "{}: tokens need no conversion", data.path);
  }
  if (!dataset->info().images()) {
    fail(
        ErrorCode::invalid_argument,
        "data.format = \"{}\": samples of several inputs are drawn and not stored; only images are "
        "converted",
        data.format);
  }
  const fs::path folder = options.out;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_errno(folder.string(), error.value());
  const std::string name = split == Split::train ? "train" : "val";
  ConvertResult result;
  if (options.to == "tar") {
    if (options.raw) fail(ErrorCode::invalid_argument, "tar shards hold files, not raw pixels");
    write_shards(*dataset, folder, name, options, result);
  } else if (options.to == "records") {
    write_records(*dataset, folder / (name + ".records"), options, result);
  } else {
    fail(ErrorCode::invalid_argument, "cannot convert to \"{}\"; known: tar, records", options.to);
  }
  return result;
}

nlohmann::json to_json(const ConvertResult& result) {
  nlohmann::json out = {{"samples", result.samples},
                        {"bytes", result.bytes},
                        {"files", result.files},
                        {"bad_count", result.bad.size()}};
  out["bad"] = nlohmann::json::array();
  for (const BadItem& b : result.bad) {
    out["bad"].push_back({{"where", b.where}, {"what", b.what}});
  }
  return out;
}

}  // namespace ductile::data
