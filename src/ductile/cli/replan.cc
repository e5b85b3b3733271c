#include "ductile/cli/replan.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/cli/other_commands.h"
#include "ductile/cli/pipeline_plan.h"
#include "ductile/cli/plan_memory.h"
#include "ductile/link/saved_state.h"
#include "ductile/link/worker_processes.h"
#include "ductile/page/numbers.h"
#include "ductile/run/diary.h"
#include "ductile/run/trace.h"
#include "ductile/spec/cluster.h"

namespace ductile::cli {
namespace {

using nlohmann::json;

constexpr const char* kRemedy =
    "go on with as many workers as before (--workers), or give it a plan for those that there are "
    "as a new run";

// One node with so many of the devices for which the plan was made.
std::string devices_left(const json& report, int64_t workers) {
  spec::Cluster cluster = spec::cluster_from_json(report.at("cluster"), "the run's plan: cluster");
  cluster.groups.resize(1);
  cluster.teams.clear();
  spec::NodeGroup& group = cluster.groups.front();
  group.hosts.clear();
  group.addresses.clear();
  group.count = 1;
  group.devices = std::min(workers, spec::kMostDevicesOfNode);
  return spec::to_toml(cluster);
}

// Those that are listed are of other virtual ranks than the job has now. One that is still at work
// somewhere is told to stop when it reports, and its number is given to nobody else.
void forget_workers(const run::RunFolder& folder) {
  const fs::path file = link::state_file(folder.path());
  std::optional<json> state = link::read_state(file);
  if (!state || !state->is_object()) return;
  (*state)["workers"] = json::array();
  write_file_atomic(file, link::sealed(*state));
}

}  // namespace

void end_workers_here(const run::RunFolder& folder, const fs::path& program) {
  const fs::path file = link::state_file(folder.path());
  const std::optional<json> state = link::read_state(file);
  if (!state || !state->is_object() || !state->contains("workers")) return;
  for (const json& entry : state->at("workers")) {
    const JsonFields report(JsonFields(entry, file.string()).at("report"), file.string());
    uint64_t worker = 0;
    report.read("worker", worker);
    (void)link::end_worker(program, folder.path().string(), worker);
  }
}

int64_t Replanner::workers_before(const run::RunFolder& folder) {
  const auto state = link::read_state(link::state_file(folder.path()));
  if (!state || !state->is_object() || !state->contains("wanted")) return 1;
  const json& wanted = state->at("wanted");
  return wanted.is_number_integer() ? std::max<int64_t>(1, wanted.get<int64_t>()) : 1;
}

PlanSearch::PlanSearch(const spec::JobOptions& job, const std::string& plan, int64_t workers)
    : folder_("ductile-replan") {
  const json report = parse_json(plan);
  if (!report.is_object() || !report.contains("profile") || !report.contains("cluster")) {
    fail(ErrorCode::conflict,
         "memory of {}: too little for the stages of the run's plan, and plan.json holds no graph "
         "to plan anew with, as what `ductile plan GRAPH --devices FILE --runnable --json` prints "
         "does; {}",
         page::plural(static_cast<double>(workers), "worker"), kRemedy);
  }
  const fs::path graph = folder_.path() / "graph.json", devices = folder_.path() / "devices.toml";
  write_file_atomic(graph, dump_json(report.at("profile")));
  write_file_atomic(devices, devices_left(report, workers));
  std::vector<std::string> words = {"plan", graph.string(), "--devices", devices.string()};
  words.insert(words.end(), {"--batch", std::to_string(job.train.batch_size), "--runnable",
                             "--time-limit", "3", "--json"});
  if (report.contains("evaluation")) {
    const StateScale scale =
        state_scale(job, report.at("evaluation"), "the run's plan: evaluation");
    if (scale.factor > 1)
      words.insert(words.end(), {"--optimizer-state", fmt::format("{}", scale.optimizer)});
  }
  command_ = std::make_unique<FleetCommand>(
      words, fmt::format("a plan for {} of the run",
                         page::plural(static_cast<double>(workers), "worker")));
}

PlanSearch::~PlanSearch() = default;

bool PlanSearch::ended() { return command_->ended(); }

std::string PlanSearch::plan() { return command_->output(); }

Replanner::Replanner(JobConfig& config, const run::RunFolder& folder,
                     const server::HostSetup& setup, const fs::path& program, Console& console)
    : config_(config), folder_(folder), setup_(setup), program_(program), console_(console) {
  const fs::path file = run::plan_file(folder);
  if (spec::is_pipelined(config.job) && kind_of(file) == FileKind::file) plan_ = read_file(file);
}

int64_t Replanner::begin(int64_t workers) {
  const auto memory = PlanMemory::of(config_.job, plan_);
  if (!memory) return workers;
  const int64_t asked = workers > 0 ? workers : workers_before(folder_);
  if (memory->fits(asked, memory_here(setup_))) return workers;
  put(PlanSearch(config_.job, plan_, asked).plan(), asked);
  return std::min(asked, config_.job.train.virtual_ranks);
}

int64_t Replanner::fewest() const {
  const auto memory = PlanMemory::of(config_.job, plan_);
  return memory ? memory->fewest(memory_here(setup_)) : 1;
}

bool Replanner::find_plan(int64_t workers) {
  try {
    if (std::exchange(tried_for_, workers) != workers) {
      give_up();  // one for another number of workers
      search_ = std::make_unique<PlanSearch>(config_.job, plan_, workers);
    }
    if (search_ && search_->ended()) {
      const std::unique_ptr<PlanSearch> search = std::move(search_);
      std::string plan = search->plan();
      (void)job_by(plan);  // which may refuse it
      found_ = std::move(plan);
      found_for_ = workers;
    }
  } catch (const Error& error) {
    search_.reset();
    console_.error(fmt::format("the run waits for workers: {}", error.message()));
  }
  return !found_.empty();
}

void Replanner::give_up() {
  search_.reset();
  found_.clear();
}

std::optional<int64_t> Replanner::put_found() {
  if (found_.empty()) return std::nullopt;
  put(std::exchange(found_, {}), found_for_);
  return std::min(found_for_, config_.job.train.virtual_ranks);
}

// The run's job by another plan.
spec::JobOptions Replanner::job_by(const std::string& plan) const {
  const TempFolder temporary("ductile-replan");
  const fs::path file = temporary.path() / "plan.json";
  write_file_atomic(file, plan);
  spec::JobOptions job = config_.job;
  set_plan(job, file);
  ++job.train.pipelined.replans;
  if (job.train.virtual_ranks == 1) job.train.shard_optimizer = false;
  spec::check(job);
  check_memory(job, plan, file);
  return job;
}

// The job first: a plan.json of other stages than its own says nothing of them.
void Replanner::put(const std::string& plan, int64_t workers) {
  spec::JobOptions& job = config_.job;
  const int64_t before = job.train.virtual_ranks;
  job = job_by(plan);
  end_workers_here(folder_, program_);
  forget_workers(folder_);
  write_file_atomic(folder_.job_file(), config_.options.to_toml());
  write_file_atomic(run::plan_file(folder_), plan);
  plan_ = plan;
  planned_anew_ = true;
  const auto saved = ckpt::list(folder_.checkpoints());
  const int64_t step = saved.empty() ? 0 : saved.front().step;
  const run::DiaryEnd end = run::end_of_diaries(folder_);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  run::Diary(folder_.events_file())
      .append({{"kind", "replan"},
               {"time", std::chrono::duration<double>(now).count()},
               {"seconds", end.seconds},
               {"step", step},
               {"workers", workers},
               {"from", before},
               {"to", job.train.virtual_ranks}});
  console_.say(
      "memory of {}: too little for the {} stages of the run's plan, with all replicas; planned "
      "anew with {}; from step {} on the result is that of another plan",
      page::plural(static_cast<double>(workers), "worker"), before, job.train.virtual_ranks, step);
}

}  // namespace ductile::cli
