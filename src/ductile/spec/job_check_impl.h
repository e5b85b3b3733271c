#pragma once

#include <functional>
#include <string>

#include "ductile/spec/job.h"

namespace ductile::spec {

// Refuses the job with the sentence that it is given.
using Bad = std::function<void(const std::string&)>;

// The options of train.method = "pipelined", and others where they do not fit these.
void check_pipelines(const JobOptions& job, const Bad& bad);

}  // namespace ductile::spec
