#include "ductile/train/same_job.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/spec/job.h"

namespace ductile::train {
namespace {

// Keys (or sections) that may differ between a run and its continuation.
constexpr std::array kFree = std::to_array<std::string_view>(
    {"/name", "/runs", "/loader/threads", "/loader/prefetch", "/loader/cache_mb", "/checkpoint",
     "/target", "/python/interpreter", "/python/source", "/python/versions", "/python/verify_every",
     "/train/log_every", "/train/shard_optimizer", "/train/shard_copies"});

// The same where both run pipelines, whose schedule changes no bit, nor does what a plan says of
// its model, which is looked at by itself.
constexpr std::array kFreeOfStages = std::to_array<std::string_view>(
    {"/train/pipelined/orders", "/train/pipelined/recompute", "/train/pipelined/trace_steps",
     "/train/pipelined/model", "/train/pipelined/replan_after"});

// The same where the two plans come to the same result, or where the run has got another plan since
// and says by that that its result is another one.
constexpr std::array kFreeOfPlans =
    std::to_array<std::string_view>({"/train/pipelined", "/train/virtual_ranks"});

int64_t replans_of(const nlohmann::json& job) {
  return job.at("train").at("pipelined").value("replans", int64_t{0});
}

bool is_free(std::string_view path, std::span<const std::string_view> among) {
  return std::any_of(among.begin(), among.end(), [&](std::string_view free) {
    return path == free || (path.starts_with(free) && path[free.size()] == '/');
  });
}

// The option of a change; the place in a list is no part of its name.
std::string key_of(std::string_view path) {
  std::string key(path.substr(1));
  std::replace(key.begin(), key.end(), '/', '.');
  const size_t place = key.find_last_not_of("-0123456789");
  if (place + 1 < key.size() && key[place] == '.') key.resize(place);
  return key;
}

}  // namespace

void check_same_job(const nlohmann::json& saved, const nlohmann::json& now, bool thread_invariant) {
  std::vector<std::string> differences;
  // Runs of versions that left the number open hold 0: any number goes on with them.
  const bool free_threads = thread_invariant || saved.at("train").at("threads") == 0;
  const auto runs_stages = [](const nlohmann::json& job) {
    return job.at("train").at("method") == "pipelined";
  };
  std::span<const std::string_view> free_of_stages;
  if (runs_stages(saved) && runs_stages(now)) {
    spec::JobOptions then, job;
    OptionSet(then).read_json(saved, "the checkpoint's job");
    OptionSet(job).read_json(now, "the job");
    free_of_stages = kFreeOfStages;
    if (replans_of(now) > replans_of(saved) || spec::same_result(then, job))
      free_of_stages = kFreeOfPlans;
  }
  for (const nlohmann::json& change : nlohmann::json::diff(saved, now)) {
    const std::string path = change.at("path");
    if (is_free(path, kFree) || is_free(path, free_of_stages)) continue;
    if (path == "/train/threads" && free_threads) continue;
    const std::string key = key_of(path);
    if (std::ranges::find(differences, key) == differences.end()) differences.push_back(key);
  }
  if (!differences.empty()) {
    fail(ErrorCode::conflict,
         "job.toml was changed since the run began in what shapes the result: {}; put the old "
         "values back, or start a new run",
         fmt::join(differences, ", "));
  }
}

}  // namespace ductile::train
