#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/paths.h"
#include "ductile/data/formats.h"
#include "ductile/data/memory_dataset.h"
#include "ductile/data/read_lines.h"

// CIFAR's binary version: records of label byte(s), then 1024 red, green and blue bytes.
namespace ductile::data {
namespace {

constexpr int64_t kSide = 32, kPlane = kSide * kSide;

struct Variant {
  std::string_view format, folder, names;  // folder: as the published archive unpacks
  int64_t label_bytes, classes;            // the last label byte is the class
  std::vector<std::string> train, test;
};

const Variant& cifar10() {
  static const Variant v{"cifar10",
                         "cifar-10-batches-bin",
                         "batches.meta.txt",
                         1,
                         10,
                         {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                          "data_batch_4.bin", "data_batch_5.bin"},
                         {"test_batch.bin"}};
  return v;
}

const Variant& cifar100() {
  static const Variant v{"cifar100",    "cifar-100-binary", "fine_label_names.txt", 2, 100,
                         {"train.bin"}, {"test.bin"}};
  return v;
}

std::vector<std::string> read_names(const fs::path& file, int64_t classes) {
  std::vector<std::string> names;
  if (is_file(file)) names = read_lines(file);
  if (static_cast<int64_t>(names.size()) != classes) {
    names.clear();
    for (int64_t c = 0; c < classes; ++c) names.push_back(std::to_string(c));
  }
  return names;
}

class CifarDataset final : public MemoryDataset {
 public:
  CifarDataset(const Variant& variant, const spec::DataOptions& options, Split split) {
    skip_bad_ = options.on_bad_sample == "skip";
    fs::path root = options.path;
    if (split == Split::test && !options.test_path.empty()) root = options.test_path;
    if (!is_folder(root)) fail(ErrorCode::not_found, "{}: no such folder", root.string());
    if (is_folder(root / variant.folder)) root /= variant.folder;

    info_.format = variant.format;
    info_.num_classes = variant.classes;
    info_.channels = 3;
    info_.height = info_.width = kSide;
    info_.class_names = read_names(root / variant.names, variant.classes);

    const int64_t record = variant.label_bytes + 3 * kPlane;
    for (const std::string& name : split == Split::train ? variant.train : variant.test) {
      const int64_t limit = limited(options, split, std::int64_t{1} << 40);
      if (static_cast<int64_t>(labels_.size()) >= limit) break;
      const fs::path file = root / name;
      if (!is_file(file)) {
        fail(ErrorCode::not_found,
             "{}: no such file; {} needs the binary version of the data set, with {}",
             file.string(), variant.format, fmt::join(variant.train, ", "));
      }
      read_file(variant, file, record, limit);
    }
    finish();
  }

 private:
  void read_file(const Variant& variant, const fs::path& path, int64_t record, int64_t limit) {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    const int64_t count = static_cast<int64_t>(bytes.size()) / record;
    sources_.push_back({seen_, path.string(), 0, record});
    if (const int64_t rest = static_cast<int64_t>(bytes.size()) % record; rest != 0) {
      reject(fmt::format("{}, offset {}", path.string(), count * record),
             fmt::format("the last record has {} of {} bytes", rest, record));
    }
    pixels_.reserve(pixels_.size() + static_cast<size_t>(count * 3 * kPlane));
    for (int64_t i = 0; i < count; ++i, ++seen_) {
      if (static_cast<int64_t>(labels_.size()) >= limit) return;
      const auto* at = reinterpret_cast<const uint8_t*>(bytes.data()) + i * record;
      const int64_t label = at[variant.label_bytes - 1];
      if (label >= variant.classes) {
        reject(fmt::format("{}, offset {}", path.string(), i * record + variant.label_bytes - 1),
               fmt::format("label {} is not below {}", label, variant.classes));
        continue;
      }
      labels_.push_back(static_cast<int32_t>(label));
      origin_.push_back(seen_);
      const uint8_t* planes = at + variant.label_bytes;
      pixels_.resize(pixels_.size() + 3 * kPlane);
      auto* out = reinterpret_cast<uint8_t*>(pixels_.data() + pixels_.size() - 3 * kPlane);
      for (int64_t p = 0; p < kPlane; ++p) {
        out[3 * p] = planes[p];
        out[3 * p + 1] = planes[kPlane + p];
        out[3 * p + 2] = planes[2 * kPlane + p];
      }
    }
  }

  int64_t seen_ = 0;  // records, bad ones included
};

}  // namespace

std::shared_ptr<const Dataset> open_cifar10(const spec::DataOptions& options, Split split) {
  return std::make_shared<CifarDataset>(cifar10(), options, split);
}

std::shared_ptr<const Dataset> open_cifar100(const spec::DataOptions& options, Split split) {
  return std::make_shared<CifarDataset>(cifar100(), options, split);
}

}  // namespace ductile::data
