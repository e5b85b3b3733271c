#pragma once

#include <vector>

#include "ductile/control/protocol.h"
#include "ductile/parallel/shards.h"

// The parts of the controller (control/protocol.h) are the blocks of the optimiser.
namespace ductile::train {

control::Parts parts_of(const std::vector<parallel::BlockRange>& blocks);
std::vector<parallel::BlockRange> blocks_of(const control::Parts& parts);

// Whether a member begins with all of the state, and not from another worker.
bool from_outside(const control::Member& member);
// Whether a generation begins with the state of a checkpoint.
bool begins_from_checkpoint(const control::GenerationPlan& plan);
// Whether each member reads its parts of it by itself.
bool all_read_checkpoint(const control::GenerationPlan& plan);

}  // namespace ductile::train
