#pragma once

#include <vector>

#include "ductile/plan/devices.h"

namespace ductile::plan {

// Some of the devices: so many nodes of each group, the first ones, and of each so many devices.
struct MachinePart {
  std::vector<int> nodes;
  int per_node = kMaxDevices;
  double capacity = 0;  // devices x speed
};

// All of the devices first; then parts, the largest capacity first: of each group none of its nodes
// or some (every number up to eight, then half as many again and twice), in all combinations; of a
// single node also 1, 2, 4 ... devices. With a machine the parts of its parts are in the list, too,
// so what is best over it is no worse than what is best over a part's. At most kMostParts.
std::vector<MachinePart> machine_parts(const Devices& devices);
inline constexpr size_t kMostParts = 512;

// A part as devices of their own: a plan for them is a plan for all, once its numbers are put
// right. Leaving some idle may be faster than using slow ones, or slow links to them.
struct Machine {
  Devices devices;
  std::vector<int> numbers;  // of each, among all
};
Machine machine_of(const Devices& devices, const MachinePart& part);

}  // namespace ductile::plan
