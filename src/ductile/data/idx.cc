#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/paths.h"
#include "ductile/data/formats.h"
#include "ductile/data/gzip.h"
#include "ductile/data/limits.h"
#include "ductile/data/memory_dataset.h"

// MNIST's idx files: two zero bytes, the element type (8: unsigned byte), the number of
// dimensions, the dimensions as big-endian 32-bit numbers, the elements.
namespace ductile::data {
namespace {

constexpr int64_t kMaxIdxSide = 4096;

struct Idx {
  std::vector<int64_t> dims;
  size_t header = 0;
  std::vector<std::byte> bytes;  // header included
};

// The dimensions that the first bytes of a file state; their product is below kMaxIdxBytes.
std::vector<int64_t> read_header(std::span<const std::byte> head, const fs::path& path,
                                 size_t rank) {
  const auto at = [&](size_t i) { return std::to_integer<uint32_t>(head[i]); };
  const size_t header = 4 + 4 * rank;
  if (head.size() < header) {
    fail(ErrorCode::data_loss, "{}, offset {}: ends within the idx header of {} bytes",
         path.string(), head.size(), header);
  }
  if (at(0) != 0 || at(1) != 0 || at(2) != 8 || at(3) != rank) {
    fail(ErrorCode::data_loss,
         "{}, offset 0: starts with {:02x} {:02x} {:02x} {:02x}, not with 00 00 08 {:02x} as an "
         "idx file of bytes with {} dimensions does",
         path.string(), at(0), at(1), at(2), at(3), rank, rank);
  }
  // Dimensions are below 2^32 and products are checked before they are used.
  std::vector<int64_t> dims;
  uint64_t elements = 1;
  for (size_t d = 0; d < rank; ++d) {
    const size_t o = 4 + 4 * d;
    const uint64_t n = at(o) << 24 | at(o + 1) << 16 | at(o + 2) << 8 | at(o + 3);
    dims.push_back(static_cast<int64_t>(n));
    if (n != 0 && elements > kMaxIdxBytes / n) {
      fail(ErrorCode::data_loss, "{}, offset {}: dimension {} of {} makes the data too large",
           path.string(), o, d, n);
    }
    elements *= n;
  }
  return dims;
}

Idx read_idx(const fs::path& path, size_t rank) {
  Idx idx;
  idx.header = 4 + 4 * rank;
  size_t elements = 1;
  idx.bytes = read_maybe_gzip(path, idx.header, [&](std::span<const std::byte> head) {
    idx.dims = read_header(head, path, rank);
    for (const int64_t n : idx.dims) elements *= static_cast<size_t>(n);
    return idx.header + elements;
  });
  const size_t data = idx.bytes.size() - idx.header;
  if (data != elements) {
    fail(ErrorCode::data_loss, "{}, offset {}: {} bytes of data, the header promises {} ({})",
         path.string(), idx.bytes.size(), data > elements ? "more" : std::to_string(data), elements,
         fmt::join(idx.dims, " x "));
  }
  return idx;
}

std::optional<fs::path> existing(const fs::path& path) {
  for (const char* suffix : {"", ".gz"}) {
    fs::path candidate = path;
    candidate += suffix;
    if (is_file(candidate)) return candidate;
  }
  return std::nullopt;
}

bool replace(std::string& text, std::string_view from, std::string_view to) {
  const size_t at = text.rfind(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

fs::path labels_of(const fs::path& images) {
  std::string name = images.filename().string();
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  const bool named = replace(name, "images", "labels");
  replace(name, "idx3", "idx1");
  if (const auto found = named ? existing(images.parent_path() / name) : std::nullopt) {
    return *found;
  }
  fail(ErrorCode::not_found,
       "{}: its labels are not beside it; expected {}[.gz] (\"images\" becomes \"labels\", "
       "\"idx3\" becomes \"idx1\")",
       images.string(), (images.parent_path() / name).string());
}

fs::path images_in(const fs::path& folder, std::string_view stem) {
  for (const char* ending : {"-images-idx3-ubyte", "-images.idx3-ubyte"}) {
    if (const auto found = existing(folder / (std::string(stem) + ending))) return *found;
  }
  fail(ErrorCode::not_found, "{}: no {}-images-idx3-ubyte[.gz] in this folder", folder.string(),
       stem);
}

fs::path train_images(const spec::DataOptions& options) {
  const fs::path path = options.path;
  if (is_folder(path)) return images_in(path, "train");
  if (kind_of(path) == FileKind::none)
    fail(ErrorCode::not_found, "{}: no such file or folder", path.string());
  return path;
}

fs::path test_images(const spec::DataOptions& options) {
  if (!options.test_path.empty()) {
    if (is_folder(options.test_path)) return images_in(options.test_path, "t10k");
    return options.test_path;
  }
  if (is_folder(options.path)) return images_in(options.path, "t10k");
  std::string name = fs::path(options.path).filename().string();
  const fs::path folder = fs::path(options.path).parent_path();
  if (replace(name, "train", "t10k") && is_file(folder / name)) return folder / name;
  fail(ErrorCode::not_found, "{}: no t10k file beside it; set data.test_path", options.path);
}

// The classes are what the training labels hold; a gap in them is an error, which also catches a
// label that is out of range.
int64_t count_classes(const Idx& labels, const fs::path& file) {
  std::vector<int64_t> count(256, 0), first(256, 0);
  int64_t classes = 0;
  for (size_t i = labels.header; i < labels.bytes.size(); ++i) {
    const size_t label = std::to_integer<size_t>(labels.bytes[i]);
    if (count[label]++ == 0) first[label] = static_cast<int64_t>(i);
    classes = std::max(classes, static_cast<int64_t>(label) + 1);
  }
  for (size_t c = 0; c < static_cast<size_t>(classes); ++c) {
    if (count[c] == 0) {
      fail(ErrorCode::data_loss,
           "{}, offset {}: label {} though no sample has label {}; a class is missing or the label "
           "is wrong",
           file.string(), first[static_cast<size_t>(classes - 1)], classes - 1, c);
    }
  }
  return classes;
}

class IdxDataset final : public MemoryDataset {
 public:
  IdxDataset(const spec::DataOptions& options, Split split) {
    skip_bad_ = options.on_bad_sample == "skip";
    const fs::path train_labels = labels_of(train_images(options));
    const fs::path images = split == Split::train ? train_images(options) : test_images(options);
    const fs::path label_file = labels_of(images);
    Idx pixels = read_idx(images, 3);
    const Idx labels = read_idx(label_file, 1);

    info_.format = "idx";
    info_.num_classes = split == Split::train
                            ? count_classes(labels, label_file)
                            : count_classes(read_idx(train_labels, 1), train_labels);
    for (int64_t c = 0; c < info_.num_classes; ++c) info_.class_names.push_back(std::to_string(c));
    info_.channels = 1;
    info_.height = pixels.dims[1];
    info_.width = pixels.dims[2];
    if (info_.height < 1 || info_.width < 1 || info_.height > kMaxIdxSide ||
        info_.width > kMaxIdxSide) {
      fail(ErrorCode::data_loss, "{}, offset 8: images of {} x {}", images.string(), info_.height,
           info_.width);
    }
    if (labels.dims[0] != pixels.dims[0]) {
      fail(ErrorCode::data_loss, "{}: {} labels for the {} images of {}", label_file.string(),
           labels.dims[0], pixels.dims[0], images.string());
    }
    const int64_t bytes = info_.height * info_.width;
    sources_.push_back({0, images.string(), static_cast<int64_t>(pixels.header), bytes});
    pixels_ = std::move(pixels.bytes);
    pixels_.erase(pixels_.begin(), pixels_.begin() + static_cast<ptrdiff_t>(pixels.header));

    const int64_t limit = limited(options, split, pixels.dims[0]);
    for (int64_t i = 0; i < pixels.dims[0]; ++i) {
      const int64_t kept = static_cast<int64_t>(labels_.size());
      if (kept >= limit) break;
      const size_t at = labels.header + static_cast<size_t>(i);
      const int64_t label = std::to_integer<int64_t>(labels.bytes[at]);
      if (label >= info_.num_classes) {
        reject(fmt::format("{}, offset {}", label_file.string(), at),
               fmt::format("label {} is not below {}", label, info_.num_classes));
        continue;
      }
      if (kept != i) {
        std::copy_n(pixels_.begin() + i * bytes, bytes, pixels_.begin() + kept * bytes);
      }
      labels_.push_back(static_cast<int32_t>(label));
      origin_.push_back(i);
    }
    pixels_.resize(labels_.size() * static_cast<size_t>(bytes));
    finish();
  }
};

}  // namespace

std::shared_ptr<const Dataset> open_idx(const spec::DataOptions& options, Split split) {
  return std::make_shared<IdxDataset>(options, split);
}

}  // namespace ductile::data
