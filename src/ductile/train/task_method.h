#pragma once

#include <memory>
#include <string_view>

#include "ductile/train/state.h"
#include "ductile/train/step_method.h"
#include "ductile/train/task.h"

namespace ductile::train {

// The figures of a task's ratios are summed under these names.
inline constexpr std::string_view kRatioSum = "ratio/", kRatioOf = "of/";

// The step of a job that brings its own loss: what `inner` does, with the samples and the losses of
// the task in the place of the loader's and the model's. `task` outlives it.
std::unique_ptr<StepMethod> make_task_method(std::unique_ptr<StepMethod> inner, Task& task);

// Gives the task what it carries, as it is in this state; and the other way.
void carry_in(Task& task, const JobState& state);
void carry_out(Task& task, JobState& state);

}  // namespace ductile::train
