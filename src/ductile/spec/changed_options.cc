#include "ductile/spec/changed_options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string_view>

#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/spec/job.h"

namespace ductile::spec {
namespace {

// Keys (or sections) that may differ between a run and its continuation.
constexpr std::array kFree = std::to_array<std::string_view>(
    {"/name", "/runs", "/loader/threads", "/loader/prefetch", "/checkpoint", "/target",
     "/python/interpreter", "/python/source", "/python/versions", "/python/verify_every",
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

// "/model/hidden/0" as "model.hidden".
std::string option_at(std::string path) {
  path.erase(0, 1);
  for (size_t slash = path.rfind('/'); slash != std::string::npos; slash = path.rfind('/')) {
    const std::string_view last = std::string_view(path).substr(slash + 1);
    const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    if (last != "-" && !std::ranges::all_of(last, is_digit)) break;
    path.resize(slash);
  }
  std::ranges::replace(path, '/', '.');
  return path;
}

}  // namespace

std::vector<std::string> changed_options(const nlohmann::json& saved, const nlohmann::json& now,
                                         bool thread_invariant) {
  // Runs of versions that left the number open hold 0: any number goes on with them.
  const bool free_threads = thread_invariant || saved.at("train").at("threads") == 0;
  const auto runs_stages = [](const nlohmann::json& job) {
    return job.at("train").at("method") == "pipelined";
  };
  std::span<const std::string_view> free_of_stages;
  if (runs_stages(saved) && runs_stages(now)) {
    JobOptions then, job;
    OptionSet(then).read_json(saved, "the job as it was saved");
    OptionSet(job).read_json(now, "the job");
    free_of_stages = kFreeOfStages;
    if (replans_of(now) > replans_of(saved) || same_result(then, job))
      free_of_stages = kFreeOfPlans;
  }
  std::vector<std::string> out;
  for (const nlohmann::json& change : nlohmann::json::diff(saved, now)) {
    const std::string path = change.at("path");
    if (is_free(path, kFree) || is_free(path, free_of_stages)) continue;
    if (path == "/train/threads" && free_threads) continue;
    const std::string option = option_at(path);
    if (std::ranges::find(out, option) == out.end()) out.push_back(option);
  }
  return out;
}

nlohmann::json upgraded_job(const nlohmann::json& saved, const std::string& where) {
  JobOptions then;
  OptionSet options(then);
  options.read_json(saved, where, Moved::follow);
  return options.to_json();
}

}  // namespace ductile::spec
