#include "ductile/cli/saved_job.h"

#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/base/options.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/spec/changed_options.h"

namespace ductile::cli {
namespace {

// That of the newest checkpoint.
std::optional<nlohmann::json> saved_job(const run::RunFolder& folder) {
  try {
    const auto saved = ckpt::list(folder.checkpoints());
    if (saved.empty()) return std::nullopt;
    const auto newest = ckpt::Checkpoint::open(folder.checkpoints(), saved.front().step);
    return spec::upgraded_job(newest.state().at("job"), "the checkpoint's job");
  } catch (const Error&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

void check_saved_job(const run::RunFolder& folder, const spec::JobOptions& job) {
  const std::optional<nlohmann::json> then = saved_job(folder);
  if (!then) return;
  spec::JobOptions now = job;
  // The worker alone knows of which models the number of threads changes the result.
  const std::vector<std::string> changed =
      spec::changed_options(*then, OptionSet(now).to_json(), /*thread_invariant=*/true);
  if (changed.empty()) return;
  fail(ErrorCode::conflict,
       "{} was changed since the run began in what shapes the result: {}; put the old values back, "
       "or start a new run",
       folder.job_file().string(), fmt::join(changed, ", "));
}

}  // namespace ductile::cli
