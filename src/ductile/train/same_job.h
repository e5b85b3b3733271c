#pragma once

#include <nlohmann/json_fwd.hpp>

namespace ductile::train {

// Refuses to resume under options that change the result: those of `saved` and `now` (job.toml as
// JSON) that differ, but for the ones that only shape speed and output; the number of threads is
// one of these where the model is `thread_invariant` (nn/threads.h). Throws conflict.
void check_same_job(const nlohmann::json& saved, const nlohmann::json& now, bool thread_invariant);

}  // namespace ductile::train
