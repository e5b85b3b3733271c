#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/data/dataset.h"

namespace ductile::data {

struct ConvertOptions {
  std::string to = "tar";                  // "tar" (WebDataset shards) or "records"
  std::string out;                         // folder; made if absent
  int64_t shard_bytes = int64_t{1} << 28;  // tar: about this many a shard
  bool raw = false;                        // records: decode now, store pixels
  int64_t short_side = 0;  // records with raw: reduce the short side to this; 0 = keep
};

struct ConvertResult {
  int64_t samples = 0;
  int64_t bytes = 0;  // written
  std::vector<std::string> files;
  std::vector<BadItem> bad;  // left out (on_bad_sample = "skip")
};

// Rewrites one split of an image set: OUT/train-000000.tar ... and OUT/classes.txt, or
// OUT/train.records (val for Split::test). Formats "tar" and "records" read the result. Files
// appear complete or not at all. Throws invalid_argument for a set of tokens or wrong options,
// conflict where a file exists already, data_loss at a bad sample unless they are skipped.
ConvertResult convert(const spec::DataOptions& data, Split split, const ConvertOptions& options);

// {"samples", "bytes", "files", "bad": [{"where", "what"}], "bad_count"}
nlohmann::json to_json(const ConvertResult& result);

}  // namespace ductile::data
