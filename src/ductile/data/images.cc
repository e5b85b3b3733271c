#include "ductile/data/images.h"

#include <algorithm>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/base/text.h"
#include "ductile/data/image_probe.h"
#include "ductile/data/jpeg.h"
#include "ductile/data/limits.h"
#include "ductile/data/png.h"

namespace ductile::data {
namespace {

constexpr int64_t kProbe = 64;

// What is no image although a folder has it under the name of one, such as "a FIFO"; nothing of a
// file, whatever it holds.
std::optional<std::string> damage_of(const fs::path& path) try {
  if (kind_of(path) == FileKind::file) return std::nullopt;
  return kind_text(path) + ", not a file";
} catch (const Error& e) {
  // Links that lead to each other are bad data; other reasons may pass.
  if (e.code() != ErrorCode::invalid_argument) throw;
  return "a loop of links";
}

// What a folder has under names of images, in the order of these. Folders are none, whatever they
// are called.
std::vector<fs::path> image_names_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code unknown;
  for (const fs::path& path : list_folder(folder)) {
    if (has_image_name(path.filename().string()) && !fs::is_directory(path, unknown))
      found.push_back(path);
  }
  std::ranges::sort(found);
  return found;
}

// Of a pixel (ITU-R BT.601).
std::byte brightness(const uint8_t* rgb) {
  return std::byte((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] + 500) / 1000);
}

// The brightness of an encoded image's pixels, which `scratch` then holds.
Sample grey(const Sample& file, std::vector<std::byte>& scratch) {
  std::vector<uint8_t> pixels;
  JpegDecoder decoder;
  ImageView image;
  if (file.encoding == Encoding::jpeg) {
    decoder.open(file.bytes);
    image = decoder.decode_rgb(pixels);
  } else {
    image = decode_png(file.bytes, pixels);
  }
  scratch.clear();
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* rgb = image.row(y);
    for (int64_t x = 0; x < image.width; ++x, rgb += image.step) scratch.push_back(brightness(rgb));
  }
  return {Encoding::pixels, scratch, image.height, image.width, 1};
}

class Images final : public Dataset {
 public:
  Images(const fs::path& path, bool skip_bad, int64_t channels) {
    skip_bad_ = skip_bad;
    list(path);
    if (files_.empty())
      fail(ErrorCode::invalid_argument, "{}: no JPEG or PNG images", path.string());
    info_.format = "images";
    info_.channels = channels;
    info_.size = static_cast<int64_t>(files_.size());
    const SizeProbe sizes = probe_sizes(*this, kProbe);
    if (sizes.one_size) {
      info_.height = sizes.height;
      info_.width = sizes.width;
    }
  }

  int64_t label(int64_t) const override { return 0; }
  Sample read(int64_t index, std::vector<std::byte>& scratch) const override {
    read_regular_file(where(index), kMaxImageBytes, scratch);
    const Sample file{detect_image(scratch), scratch};
    return info_.channels == 1 ? grey(file, scratch) : file;
  }
  std::string where(int64_t index) const override {
    return files_[static_cast<size_t>(index)].string();
  }

 private:
  void list(const fs::path& path) {
    if (kind_of(path) == FileKind::none)
      fail(ErrorCode::not_found, "{}: no such file or folder", path.string());
    if (!is_folder(path)) {
      files_ = {path};
      return;
    }
    for (const fs::path& file : image_names_in(path)) {
      if (const auto damage = damage_of(file)) {
        reject(file.string(), *damage);
      } else {
        files_.push_back(file);
      }
    }
  }

  std::vector<fs::path> files_;
};

class Renumbered final : public Dataset {
 public:
  Renumbered(std::shared_ptr<const Dataset> inner, const std::vector<std::string>& class_names)
      : inner_(std::move(inner)) {
    for (const std::string& bytes : inner_->info().class_names) {
      const std::string name = to_utf8(bytes);
      const auto at = std::ranges::find(class_names, name);
      if (at == class_names.end())
        fail(ErrorCode::invalid_argument, "the model was trained on no class {}; it knows {}", name,
             fmt::join(class_names, ", "));
      numbers_.push_back(at - class_names.begin());
    }
    info_ = inner_->info();
    info_.class_names = class_names;
    info_.num_classes = static_cast<int64_t>(class_names.size());
    skip_bad_ = inner_->skip_bad();
    bad_items_ = inner_->bad_items();
  }

  int64_t label(int64_t index) const override {
    return numbers_[static_cast<size_t>(inner_->label(index))];
  }
  Sample read(int64_t index, std::vector<std::byte>& scratch) const override {
    return inner_->read(index, scratch);
  }
  std::string where(int64_t index) const override { return inner_->where(index); }
  bool in_memory() const override { return inner_->in_memory(); }

 private:
  std::shared_ptr<const Dataset> inner_;
  std::vector<int64_t> numbers_;  // by the inner set's own
};

}  // namespace

Sample with_channels(const Sample& sample, int64_t channels, std::vector<std::byte>& scratch) {
  if (sample.encoding != Encoding::pixels) return channels == 1 ? grey(sample, scratch) : sample;
  if (sample.channels == channels) return sample;
  scratch.clear();
  const auto count = static_cast<size_t>(sample.height * sample.width);
  const auto* from = reinterpret_cast<const uint8_t*>(sample.bytes.data());
  for (size_t i = 0; i < count; ++i) {
    if (channels == 1) {
      scratch.push_back(brightness(from + 3 * i));
    } else {
      scratch.insert(scratch.end(), static_cast<size_t>(channels), std::byte{from[i]});
    }
  }
  return {Encoding::pixels, scratch, sample.height, sample.width, channels};
}

bool holds_images(const fs::path& path) {
  const FileKind kind = kind_of(path);
  if (kind == FileKind::file) return has_image_name(path.filename().string());
  return kind == FileKind::folder && !image_names_in(path).empty();
}

std::shared_ptr<const Dataset> open_images(const fs::path& path, bool skip_bad, int64_t channels) {
  return std::make_shared<Images>(path, skip_bad, channels);
}

std::shared_ptr<const Dataset> with_classes(std::shared_ptr<const Dataset> dataset,
                                            const std::vector<std::string>& class_names) {
  if (dataset->info().class_names == class_names) return dataset;
  return std::make_shared<Renumbered>(std::move(dataset), class_names);
}

}  // namespace ductile::data
