#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ductile/comm/fabric.h"
#include "ductile/comm/step_order.h"

namespace ductile::comm {

struct VirtualRun {
  double seconds = 0;                // until the last rank is done
  std::vector<double> rank_seconds;  // of each rank
  std::vector<double> rail_bytes;    // sent on each rail by host 0
};

// The data of an operation, for its price.
struct Load {
  int64_t elements = 0;  // of a block
  size_t element_size = 4;
  size_t wire_size = 0;  // bytes of an element where it travels; 0: element_size
};

// Runs the step lists of all ranks in virtual time: the same lists, order and preferences as the
// engine, with links between hosts that carry one message after the other, each way. A message
// occupies the sender's link and, `latency` later, the receiver's, at the same time otherwise (it
// is not stored in between). Within a host there are no links: the bytes of a message keep the
// processors of both ranks busy, half of the time each, as do adding and the messages themselves.
// The result is exact in the model and the same on every machine: there is no clock and there are
// no threads.
VirtualRun run_in_virtual_time(std::span<const StepOrder> orders, const Fabric& fabric,
                               const Load& load);

// As above for one algorithm of one collective.
VirtualRun run_in_virtual_time(Collective collective, Algorithm algorithm, const Fabric& fabric,
                               const Load& load, const ScheduleOptions& options = {});

}  // namespace ductile::comm
