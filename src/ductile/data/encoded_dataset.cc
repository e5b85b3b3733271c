#include "ductile/data/encoded_dataset.h"

#include <algorithm>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/data/image_probe.h"

namespace ductile::data {
namespace {

constexpr int64_t kProbed = 64;
constexpr int64_t kMissingNamed = 16;

}  // namespace

EncodedDataset::EncodedDataset(const spec::DataOptions& options, std::string format) {
  skip_bad_ = options.on_bad_sample == "skip";
  info_.format = std::move(format);
  info_.channels = 3;
}

// A class without training samples is a slip; a held-out set may have fewer.
void EncodedDataset::require_every_class(const std::string& source) {
  std::vector<int64_t> count(static_cast<size_t>(info_.num_classes));
  for (const int32_t label : labels_) ++count[static_cast<size_t>(label)];
  int64_t missing = 0;
  for (size_t c = 0; c < count.size(); ++c) {
    if (count[c] == 0 && ++missing <= kMissingNamed) {
      reject(fmt::format("{}, class {}", source, info_.class_names[c]), "no images of this class");
    }
  }
  if (missing > kMissingNamed) {
    reject(source, fmt::format("no images of {} more classes", missing - kMissingNamed));
  }
}

void EncodedDataset::finish(const spec::DataOptions& options, Split split,
                            const std::string& source) {
  if (labels_.empty()) {
    fail(ErrorCode::invalid_argument, "{}: no JPEG or PNG images", source);
  }
  if (split == Split::train) require_every_class(source);
  info_.size = limited(options, split, static_cast<int64_t>(labels_.size()));
  const SizeProbe sizes = probe_sizes(*this, kProbed);
  if (sizes.one_size) {
    info_.height = sizes.height;
    info_.width = sizes.width;
  }
  ColourProbe colours = probe_colours(*this, kProbed);
  info_.mean = std::move(colours.mean);
  info_.std = std::move(colours.std);
}

}  // namespace ductile::data
