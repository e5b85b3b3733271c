#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ductile::comm {

// A collective, or a message, that has not ended for a while.
struct Stall {
  std::string operation;   // "all_reduce (ring) of 6553600 f32"
  uint64_t sequence = 0;   // of the operation on this communicator, or arena
  std::vector<int> ranks;  // who this rank waits for; ascending; empty: nobody in particular
  double seconds = 0;      // since it began
};

// "all_reduce (ring) of 6553600 f32, #17, has waited 30.1 s for ranks 2 and 5".
std::string to_string(const Stall& stall);

// Called once for each operation that is older than a soft deadline; the operation goes on. It is
// called on the thread that waits for the operation, must be quick, and must not call back.
using OnStall = std::function<void(const Stall&)>;

}  // namespace ductile::comm
