#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ductile/comm/schedule.h"

namespace ductile::comm {

// A step list with its order made explicit: which steps wait for which others, and which message
// belongs to each send and receive. Immutable once made; engine, checker and cost model share it.
struct StepOrder {
  Schedule list;
  bool aliased = false;                   // block 0 of `in` is block 0 of `out`
  std::vector<int32_t> num_predecessors;  // of each step
  std::vector<uint32_t> message;          // of each send or receive: its number on (peer, rail)

  // The steps that wait for `step`.
  std::span<const int32_t> successors(int32_t step) const {
    return std::span(successor_).subspan(first_[step], first_[step + 1] - first_[step]);
  }

  std::vector<int32_t> successor_;
  std::vector<int32_t> first_;
};

StepOrder make_step_order(Schedule list, bool aliased = false);

// The elements in a run of chunks, where blocks have `block_elements` of `element_size` bytes.
int64_t run_elements(const Schedule& list, const Chunks& run, int64_t block_elements,
                     size_t element_size);

// The chunk of one block that has the same length as chunk `i` of `buffer`.
int shape_of(const Schedule& list, BufferName buffer, int i);

}  // namespace ductile::comm
