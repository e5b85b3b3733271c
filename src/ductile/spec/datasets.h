#pragma once

#include "ductile/base/table.h"

// The formats of data: name, opener, help, whether data.path is needed. A row here registers a
// format. Job files, `ductile config`, the schema and the reference page take the name and the help
// from it; data/dataset.cc takes the opener.
#define DUCTILE_DATASETS(ROW)                                                                    \
  ROW("digits", open_digits, "images of ten digits, drawn in memory; needs no path", false)      \
  ROW("idx", open_idx,                                                                           \
      "MNIST's files, also gzipped: a folder with the usual names, or an images "                \
      "file",                                                                                    \
      true)                                                                                      \
  ROW("cifar10", open_cifar10, "the binary version: data_batch_1..5.bin, test_batch.bin", true)  \
  ROW("cifar100", open_cifar100, "the binary version: train.bin, test.bin", true)                \
  ROW("folder", open_folder,                                                                     \
      "CLASS/name.jpg or .png; train/ and val/ or test/ below the path, or "                     \
      "two paths",                                                                               \
      true)                                                                                      \
  ROW("tar", open_tar,                                                                           \
      "the layout of folder inside tar files, or WebDataset shards with .cls members", true)     \
  ROW("records", open_records, "the packed file of `ductile data convert`", true)                \
  ROW("tokens", open_tokens, "a flat file of token numbers, for language models", true)          \
  ROW("synthetic", open_synthetic,                                                               \
      "several inputs for each sample, drawn in memory, labelled by a teacher (data.synthetic)", \
      false)

namespace ductile::spec {

struct DatasetHelp {
  std::string_view name;
  std::string_view help;
  bool needs_path;
};
Table<DatasetHelp> datasets();

}  // namespace ductile::spec
