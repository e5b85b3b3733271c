#pragma once

#include <nlohmann/json_fwd.hpp>

namespace ductile::train {

// Refuses to resume under options that change the result. Throws conflict if `saved` and `now`
// (job.toml as JSON) differ in an option, unless the option affects only speed and output. The
// number of threads is such an option if the model is `thread_invariant` (nn/threads.h).
void check_same_job(const nlohmann::json& saved, const nlohmann::json& now, bool thread_invariant);

}  // namespace ductile::train
