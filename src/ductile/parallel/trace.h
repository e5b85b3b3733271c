#pragma once

#include <cstdint>
#include <vector>

namespace ductile::parallel {

// What a stage of a pipeline did, and when. Intervals of one stage do not overlap.
struct TraceInterval {
  enum class Kind : uint8_t {
    forward,
    backward,  // the whole one, or to the inputs where weights have tasks of their own
    weights,
    transfer,  // its thread hands tensors over to other workers, or takes theirs; what travels
               // while it computes is not seen
    wait,      // nothing that this worker hosts can go on
  };
  Kind kind = Kind::forward;
  int stage = 0;
  int64_t micro_batch = 0;     // of a wait: that of the task which cannot begin yet
  int64_t begin = 0, end = 0;  // nanoseconds since 1970, by this machine's clock
};
using Trace = std::vector<TraceInterval>;

}  // namespace ductile::parallel
