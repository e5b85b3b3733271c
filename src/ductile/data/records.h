#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "ductile/data/dataset.h"

// Format "records": many samples in one file that is mapped and used in place. Numbers are
// little-endian.
//
//   0   8 bytes   "DUCTREC1"
//   8   u64       number of samples N
//   16  u64       offset of the index
//   24  u64       offset of the class names
//   64  the samples' bytes, one after the other
//   index         N entries of 32 bytes: u64 offset, u64 size, u32 label, u32 encoding (0 raw
//                 pixels, 1 JPEG, 2 PNG), u32 height, u32 width (raw only, 3 channels interleaved)
//   class names   text, one per line, to the end of the file
//
// DataOptions::path is a folder with train.records and val.records or test.records, or the training
// file, with test_path for the other.
namespace ductile::data {

inline constexpr size_t kRecordsHeader = 64, kRecordsEntry = 32;
inline constexpr char kRecordsMagic[] = "DUCTREC1";

// Writes a records file: samples as they come, the index at the end, then the header; the file has
// its name only once complete. Throws unavailable naming the path (disk full ...).
class RecordsWriter {
 public:
  RecordsWriter(std::filesystem::path path, std::vector<std::string> class_names);
  RecordsWriter(const RecordsWriter&) = delete;
  RecordsWriter& operator=(const RecordsWriter&) = delete;
  ~RecordsWriter();  // without finish(): removes what was written

  void add(const Sample& sample, int64_t label);
  void finish();

 private:
  void write(const void* data, size_t size);

  std::filesystem::path path_, temporary_;
  std::vector<std::string> class_names_;
  std::FILE* file_ = nullptr;
  std::string index_;
  uint64_t offset_ = kRecordsHeader;
};

}  // namespace ductile::data
