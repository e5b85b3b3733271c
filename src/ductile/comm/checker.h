#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ductile/comm/schedule.h"

namespace ductile::comm {

struct CheckOptions {
  bool aliased = false;      // block 0 of `in` is block 0 of `out`
  bool wire = false;         // as in ScheduleOptions: values are rounded where they travel
  int root = 0;              // of a broadcast
  std::vector<int64_t> cut;  // canonical: as in ScheduleOptions; else empty
};

// Executes the step lists of all ranks (at most 64) on symbols and proves that together they are
// the collective, or throws invalid_argument naming rank and step:
//  - each rank ends with each contribution exactly once in each chunk of `out`; canonical
//    contributions are summed in the order of the tree;
//  - all ranks end with the same bits, including rounding on the wire, if the collective gives all
//    of them the same result;
//  - no chunk is read before it was written, and no chunk outside its buffer is touched;
//  - messages match in number, length and format;
//  - there is no deadlock, even on a transport where each send waits for its receive, and with an
//    engine that keeps only one send per rail and one receive open at a time.
void check_schedules(Collective collective, std::span<const Schedule> lists,
                     const CheckOptions& options = {});

}  // namespace ductile::comm
