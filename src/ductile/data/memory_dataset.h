#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ductile/data/dataset.h"

namespace ductile::data {

// Images of one size, all in memory; what digits, idx and cifar become.
class MemoryDataset : public Dataset {
 public:
  int64_t label(int64_t index) const override { return labels_[static_cast<size_t>(index)]; }
  Sample read(int64_t index, std::vector<std::byte>& scratch) const override;
  std::string where(int64_t index) const override;
  bool in_memory() const override { return true; }

 protected:
  // A file that samples came from: the first of its samples, and where they lie.
  struct Source {
    int64_t first = 0;
    std::string file;
    int64_t offset = 0;  // of the first sample
    int64_t stride = 0;  // bytes from sample to sample
  };

  // Sets size, mean and std from pixels_ and labels_; call once both are complete.
  void finish();

  std::vector<std::byte> pixels_;  // [size][height][width][channels]
  std::vector<int32_t> labels_;
  std::vector<Source> sources_;
  std::vector<int64_t> origin_;  // number of each sample in its sources; empty: the index itself
};

}  // namespace ductile::data
