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
  std::string_view help;
  bool needs_path;
};

constexpr Format kFormats[] = {DUCTILE_DATASETS(DUCTILE_TABLE_ROW)};
constexpr Table<Format> kTable("data.format =", kFormats);

}  // namespace

void Dataset::reject(std::string where, std::string what) {
  if (!skip_bad_) fail(ErrorCode::data_loss, "{}: {}", where, what);
  bad_items_.push_back({std::move(where), std::move(what)});
}

std::shared_ptr<const Dataset> open_dataset(const spec::DataOptions& options, Split split) {
  const Format& format = kTable.at(options.format);
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

int64_t limited(const spec::DataOptions& options, Split split, int64_t size) {
  const int64_t limit = split == Split::train ? options.train_limit : options.test_limit;
  return limit > 0 ? std::min(limit, size) : size;
}

}  // namespace ductile::data
