#include "ductile/train/same_job.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/spec/changed_options.h"

namespace ductile::train {

void check_same_job(const nlohmann::json& saved, const nlohmann::json& now, bool thread_invariant) {
  const std::vector<std::string> changed = spec::changed_options(saved, now, thread_invariant);
  if (changed.empty()) return;
  fail(ErrorCode::conflict,
       "job.toml was changed since the run began in what shapes the result: {}; put the old "
       "values back, or start a new run",
       fmt::join(changed, ", "));
}

}  // namespace ductile::train
