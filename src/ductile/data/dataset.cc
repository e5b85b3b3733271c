#include "ductile/data/dataset.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/data/formats.h"

namespace ductile::data {
namespace {

struct Format {
  std::string_view name;
  DatasetMaker open;
  bool needs_path;
};

constexpr Format kFormats[] = {
    {"digits", open_digits, false},  {"idx", open_idx, true},
    {"cifar10", open_cifar10, true}, {"cifar100", open_cifar100, true},
    {"folder", open_folder, true},   {"tar", open_tar, true},
    {"records", open_records, true}, {"tokens", open_tokens, true},
};

}  // namespace

void Dataset::reject(std::string where, std::string what) {
  if (!skip_bad_) fail(ErrorCode::data_loss, "{}: {}", where, what);
  bad_items_.push_back({std::move(where), std::move(what)});
}

std::shared_ptr<const Dataset> open_dataset(const spec::DataOptions& options, Split split) {
  for (const Format& format : kFormats) {
    if (format.name != options.format) continue;
    if (format.needs_path && options.path.empty()) {
      fail(ErrorCode::invalid_argument, "data.format = \"{}\" needs data.path", options.format);
    }
    auto dataset = format.open(options, split);
    if (dataset->info().size == 0) {
      fail(ErrorCode::invalid_argument, "{}: no samples",
           split == Split::test && !options.test_path.empty() ? options.test_path : options.path);
    }
    return dataset;
  }
  fail(ErrorCode::invalid_argument, "data.format = \"{}\" is not known", options.format);
}

int64_t limited(const spec::DataOptions& options, Split split, int64_t size) {
  const int64_t limit = split == Split::train ? options.train_limit : options.test_limit;
  return limit > 0 ? std::min(limit, size) : size;
}

}  // namespace ductile::data
