#pragma once

#include <string>
#include <vector>

#include "ductile/base/options.h"
#include "ductile/spec/job.h"

namespace ductile::spec {

// What makes a job train badly from its first step on, a sentence for each: a learning rate that
// was left at the default although the rule needs a much smaller one, a rule without the warm-up
// that it needs, and a momentum with which a rule trains nothing. It is no error. `options` are
// those of `job`.
std::vector<std::string> start_warnings(const JobOptions& job, const OptionSet& options);

}  // namespace ductile::spec
