#pragma once

#include "ductile/run/folder.h"
#include "ductile/train/replica.h"

namespace ductile::train {

// The weights with which a run begins in place of drawn ones, if its folder has some
// (run/checkpoints.h): of each parameter and floating-point buffer of the model, under its name, in
// fp32. Whole numbers in the file are left out. A task takes what its model has, as it says itself
// (Task::take_weights). The moving averages begin with them, too.
//
// Call it for a state in which nothing was trained, and which holds what the worker is to hold: of
// parameters no more is read, or, where the folder has no weights, drawn (Replica::make_blanks).
// Throws data_loss for a damaged file, and
// invalid_argument for weights of another model, naming the tensor, for a name in the optimizer's
// options that no parameter has, and for a task whose evaluated weights would have the running
// statistics of others. A run that goes on is not refused for the last two: it did without, and its
// options may not change.
void begin_with_initial_weights(Replica& replica, const spec::JobOptions& job,
                                const run::RunFolder& folder);

}  // namespace ductile::train
