#pragma once

#include "ductile/nn/operators.h"
#include "ductile/spec/job.h"
#include "ductile/spec/model_identity.h"
#include "ductile/train/data_form.h"

namespace ductile::train {

// What the model of a job is known by: `operators` are its own, with the loss (nn/operators.h), and
// `form` is that of its data. Weights are not looked at, so blank ones will do.
spec::ModelIdentity identity_of(const spec::JobOptions& job, const nn::OperatorGraph& operators,
                                const DataForm& form);

// Throws invalid_argument, which says what differs, where the job's plan (train.pipelined.model) is
// for another model. A plan that does not say for which it is passes.
void check_planned_model(const spec::JobOptions& job, const nn::OperatorGraph& operators,
                         const DataForm& form);

}  // namespace ductile::train
