#pragma once

#include <vector>

#include "ductile/plan/devices.h"

namespace ductile::plan {

// Some of the devices: so many nodes of each group, the first ones, and so many devices of one
// more.
struct MachinePart {
  std::vector<int> nodes;
  int group = -1;  // of the node that is cut; -1: none is
  int devices = 0;
  double capacity = 0;   // devices x speed
  bool further = false;  // one of many, for which there is less time
};

// All of the devices first; then parts, the largest capacity first: of each group none of its nodes
// or some (every number up to eight, then half as many again and twice), in all combinations; and
// 1, 2, 4 ... devices of a single node. Behind these, in the same order, the further ones: other
// numbers of devices of a single node, as of nodes; of a machine of kSmallMachine devices at most,
// each number of one node's beside whole nodes; and of one group up to eight nodes less than all,
// beside all of the others, so that a machine with one node more has the smaller one as a part.
// With a machine the parts of its parts are in the list, too, but for those that cut two nodes, so
// what is best over it is no worse than what is best over a part's. At most kMostParts.
std::vector<MachinePart> machine_parts(const Devices& devices);
inline constexpr size_t kMostParts = 512;
inline constexpr int kSmallMachine = 16;

// A part as devices of their own: a plan for them is a plan for all, once its numbers are put
// right. Leaving some idle may be faster than using slow ones, or slow links to them.
struct Machine {
  Devices devices;
  std::vector<int> numbers;  // of each, among all
};
Machine machine_of(const Devices& devices, const MachinePart& part);

}  // namespace ductile::plan
