#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/data/dataset.h"

namespace ductile::data {

// The contents of one split of a data set, determined by reading and decoding all of it.
struct InspectResult {
  DatasetInfo info;  // mean and std over every readable sample
  Split split = Split::train;
  std::vector<int64_t> class_counts;  // [num_classes]; empty for tokens
  int64_t good = 0;
  int64_t min_height = 0, max_height = 0, min_width = 0, max_width = 0;
  int64_t stored_bytes = 0;
  std::vector<std::pair<std::string, int64_t>> encodings;  // "jpeg": 1234
  std::vector<BadItem> bad;  // every unusable sample, those refused at opening first
};

// Skips and reports bad samples, whatever on_bad_sample says. Uses every core. Throws as
// open_dataset does if nothing can be read at all.
InspectResult inspect(const spec::DataOptions& options, Split split);

// {"format", "split", "samples", "classes": [{"name", "count"}], "shape": {...}, "mean", "std",
//  "bytes", "encodings", "bad": [{"where", "what"}], "bad_count"}; of several inputs "inputs" in
//  place of shape, mean and std.
nlohmann::json to_json(const InspectResult& result);

}  // namespace ductile::data
