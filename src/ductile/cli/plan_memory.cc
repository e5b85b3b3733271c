#include "ductile/cli/plan_memory.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/machine.h"
#include "ductile/cli/pipeline_plan.h"
#include "ductile/control/ranges.h"
#include "ductile/page/numbers.h"

namespace ductile::cli {
namespace {

// More parts than any machine of one user has devices: nobody counts on taking turns at them, and
// all their spreads would take seconds to find.
constexpr int64_t kMostLookedAt = 512;

double figure(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

}  // namespace

std::optional<PlanMemory> PlanMemory::of(const spec::JobOptions& job, const std::string& plan) {
  const nlohmann::json report = parse_json(plan);
  if (!spec::is_pipelined(job) || !report.is_object() || !report.contains("evaluation"))
    return std::nullopt;
  const nlohmann::json& evaluation = report.at("evaluation");
  if (!evaluation.is_object() || !evaluation.contains("stages")) return std::nullopt;
  const nlohmann::json& stages = evaluation.at("stages");
  if (!stages.is_array() || std::ssize(stages) != spec::num_stages(job)) return std::nullopt;
  PlanMemory out;
  out.virtual_ranks_ = job.train.virtual_ranks;
  out.sharded_ = job.train.shard_optimizer;
  out.replicated_ = !job.train.pipelined.stage_replicas.empty();
  const double scale = state_scale(job, evaluation, "the run's plan: evaluation").factor;
  out.whole_state_ = scale * figure(evaluation, "state_memory");
  const spec::PipelinedOptions& options = job.train.pipelined;
  for (const nlohmann::json& stage : stages) {
    if (!stage.is_object() || figure(stage, "memory_limit") <= 0) return std::nullopt;
    const size_t s = out.stages_.size();
    const double state = figure(stage, "state_memory");
    out.stages_.push_back({figure(stage, "peak_memory") + (scale - 1) * state,
                           figure(stage, "memory_limit"), scale * state});
    const int64_t parts = s < options.stage_replicas.size() ? options.stage_replicas[s]
                          : s < options.tensor.size()       ? options.tensor[s]
                                                            : 1;
    out.stage_of_.insert(out.stage_of_.end(), static_cast<size_t>(parts), s);
  }
  if (out.virtual_ranks_ % std::ssize(out.stage_of_) != 0) return std::nullopt;
  return out;
}

std::vector<std::pair<double, double>> PlanMemory::needs(int64_t workers) const {
  std::vector<std::pair<double, double>> out;
  for (const control::RankRange& ranks : control::spread_ranks(virtual_ranks_, workers)) {
    double bytes = sharded_ ? 0 : whole_state_, limit = std::numeric_limits<double>::infinity();
    std::set<size_t> seen;          // of replicas the state is there once; parts have other columns
    std::map<size_t, double> held;  // by pipeline: they run one after the other
    for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
      const size_t s = stage_of_[static_cast<size_t>(rank) % stage_of_.size()];
      const Stage& stage = stages_[s];
      held[static_cast<size_t>(rank) / stage_of_.size()] += std::max(0.0, stage.peak - stage.state);
      const size_t own = replicated_ ? s : static_cast<size_t>(rank) % stage_of_.size();
      if (sharded_ && seen.insert(own).second) bytes += stage.state;
      limit = std::min(limit, stage.limit);
    }
    double most_held = 0;
    for (const auto& [pipeline, of_pipeline] : held) most_held = std::max(most_held, of_pipeline);
    out.emplace_back(bytes + most_held, limit);
  }
  return out;
}

bool PlanMemory::has_room(int64_t workers, double here) const {
  double all = 0;
  bool each = true;
  for (const auto& [bytes, limit] : needs(workers)) {
    all += bytes;
    each = each && bytes <= limit;
  }
  return each || (here > 0 && all <= here);
}

// With a worker for each part the plan itself was judged. One worker more may divide the ranks
// otherwise, so that two large stages meet that lay apart before: workers come and go while a job
// runs, so it has to have room with each number of them.
int64_t PlanMemory::fewest(double here) const {
  if (virtual_ranks_ > kMostLookedAt || has_room(1, 0)) return 1;
  int64_t workers = virtual_ranks_;
  while (workers > 1 && has_room(workers - 1, here)) --workers;
  return workers;
}

double PlanMemory::most(int64_t workers) const {
  double most = 0;
  for (const auto& [bytes, limit] : needs(std::min(workers, virtual_ranks_)))
    most = std::max(most, bytes);
  return most;
}

double PlanMemory::limit() const {
  double least = std::numeric_limits<double>::infinity();
  for (const Stage& stage : stages_) least = std::min(least, stage.limit);
  return least;
}

void PlanMemory::limit_to(double bytes) {
  for (Stage& stage : stages_) stage.limit = std::min(stage.limit, bytes);
}

double memory_here(const server::HostSetup& setup) {
  if (!setup.hosts.empty()) return 0;
  const MemoryShare memory = memory_share();
  return static_cast<double>(memory.limit > 0 ? std::min(memory.limit, memory.total)
                                              : memory.total);
}

void check_fewest(const spec::JobOptions& job, const std::string& plan, const fs::path& file,
                  int64_t workers, const server::HostSetup& setup) {
  const auto memory = PlanMemory::of(job, plan);
  const double here = memory_here(setup);
  if (!memory || memory->fits(workers, here)) return;
  const int64_t fewest = memory->fewest(here);
  fail(ErrorCode::invalid_argument,
       "{}: {} would need up to {} each for the stages at which they take turns, and have {} by "
       "the file of devices that it was planned for; use --workers {} or more, or plan for fewer "
       "devices (ductile plan --devices)",
       file.string(), page::plural(static_cast<double>(workers), "worker"),
       page::as_bytes(std::max(memory->most(workers), memory->most(fewest - 1))),
       page::as_bytes(memory->limit()), fewest);
}

}  // namespace ductile::cli
