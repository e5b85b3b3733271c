#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ductile/data/dataset.h"

namespace ductile::data {

// What folder, tar and records share: labelled image files of any size.
class EncodedDataset : public Dataset {
 public:
  int64_t label(int64_t index) const override { return labels_[static_cast<size_t>(index)]; }

 protected:
  EncodedDataset(const spec::DataOptions& options, std::string format);

  // Checks that every class has training samples ("missing class"), then sets size and what a look
  // at some of the images tells: whether they have one size, mean and std.
  void finish(const spec::DataOptions& options, Split split, const std::string& source);

  std::vector<int32_t> labels_;

 private:
  void require_every_class(const std::string& source);
};

}  // namespace ductile::data
