#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ductile/data/dataset.h"

namespace ductile::data {

// jpeg or png by the first bytes; throws data_loss for anything else.
Encoding detect_image(std::span<const std::byte> file);
// .jpg, .jpeg, .png in any case.
bool has_image_name(std::string_view name);

// Sizes of up to `count` samples spread evenly over the set; unreadable ones are left out.
struct SizeProbe {
  bool one_size = false;
  int64_t height = 0, width = 0;  // of the first
  double mean_bytes = 0;          // height * width * channels
};
SizeProbe probe_sizes(const Dataset& dataset, int64_t count);

// Mean and standard deviation a channel over up to `count` samples spread evenly.
struct ColourProbe {
  std::vector<double> mean, std;
};
ColourProbe probe_colours(const Dataset& dataset, int64_t count);

// Height and width of a sample from its header. Throws data_loss.
std::pair<int64_t, int64_t> image_size(const Sample& sample);

}  // namespace ductile::data
