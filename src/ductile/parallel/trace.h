#pragma once

#include <cstdint>
#include <map>
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

struct Trace {
  std::vector<TraceInterval> intervals;
  // By stage: the most bytes that libtorch's allocator has given out for it and not got back, at
  // one time between its first task and its last, with the samples that it has read and without the
  // sums of the gradients of its weights.
  std::map<int, int64_t> memory;

  void clear() { *this = {}; }
};

}  // namespace ductile::parallel
