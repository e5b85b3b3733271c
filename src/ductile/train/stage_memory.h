#pragma once

#include <cstdint>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "ductile/parallel/exchange.h"
#include "ductile/train/replica.h"

// What a worker of a job by stages has in memory.
namespace ductile::train {

// What the system says of this process, in bytes; zeros where it says nothing.
struct Resident {
  int64_t anonymous = 0;  // its own memory: heap, stacks, what a program changed of its libraries
  int64_t shared = 0;     // of arenas, with that of others which this process has looked at
  int64_t peak = 0;       // the most that was resident of all kinds
};
Resident resident_now();

// In bytes: what this worker's parts of the state and of the sum of a step take by their sizes, and
// what is resident. `before`: what the process had before it made the job.
nlohmann::json memory_here(Replica& replica, const parallel::Exchange& exchange,
                           const Resident& before);
// To be called by all workers of the exchange. The worker of rank 0 gets the list of what each has
// said, the others get nothing.
std::optional<nlohmann::json> gather_memory(parallel::Exchange& exchange,
                                            const nlohmann::json& own);

}  // namespace ductile::train
