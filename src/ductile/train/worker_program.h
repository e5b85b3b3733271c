#pragma once

#include <functional>

#include "ductile/spec/job.h"
#include "ductile/train/ingredients.h"

namespace ductile::train {

// Makes the recipe of a job whose parts a program brings itself.
using RecipeOf = std::function<Recipe(const spec::JobOptions& job)>;

// What `ductile-worker` does with its command line: it hosts virtual ranks of the job in a run
// folder, or answers a question about it. `own` is for programs that are workers of another kind,
// such as those of Python jobs; empty: all parts come from the job file. Every error ends on the
// progress pipe and in the log. Returns the exit code.
int worker_program(int argc, char** argv, const RecipeOf& own = {});

}  // namespace ductile::train
