#include "ductile/train/same_job.h"

#include <algorithm>
#include <array>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"

namespace ductile::train {
namespace {

// Keys (or sections) that may differ between a run and its continuation.
constexpr std::array kFree = std::to_array<std::string_view>(
    {"/name", "/runs", "/loader/threads", "/loader/prefetch", "/loader/cache_mb", "/checkpoint",
     "/target", "/python/interpreter", "/python/source", "/python/versions", "/train/log_every",
     "/train/shard_optimizer", "/train/shard_copies"});

bool is_free(std::string_view path) {
  return std::any_of(kFree.begin(), kFree.end(), [&](std::string_view free) {
    return path == free || (path.starts_with(free) && path[free.size()] == '/');
  });
}

}  // namespace

void check_same_job(const nlohmann::json& saved, const nlohmann::json& now, bool thread_invariant) {
  std::string differences;
  // Runs of versions that left the number open hold 0: any number goes on with them.
  const bool free_threads = thread_invariant || saved.at("train").at("threads") == 0;
  for (const nlohmann::json& change : nlohmann::json::diff(saved, now)) {
    const std::string path = change.at("path");
    if (is_free(path) || (path == "/train/threads" && free_threads)) continue;
    std::string key = path.substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    differences += (differences.empty() ? "" : ", ") + key;
  }
  if (!differences.empty()) {
    fail(ErrorCode::conflict,
         "job.toml was changed since the run began in what shapes the result: {}; put the old "
         "values back, or start a new run",
         differences);
  }
}

}  // namespace ductile::train
