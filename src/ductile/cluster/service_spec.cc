#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/options.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/cluster/front_impl.h"
#include "ductile/cluster/service.h"
#include "ductile/cluster/service_spec_impl.h"
#include "ductile/cluster/sha256_impl.h"
#include "ductile/run/new_folder.h"
#include "ductile/run/trace.h"
#include "ductile/sched/policy.h"
#include "ductile/spec/methods.h"

namespace ductile::cluster {
namespace {

sched::Tier tier_of(const std::string& name) {
  constexpr sched::Tier kTiers[] = {sched::Tier::premium, sched::Tier::standard,
                                    sched::Tier::basic};
  std::vector<std::string> known;
  for (const sched::Tier tier : kTiers) {
    if (sched::to_string(tier) == name) return tier;
    known.emplace_back(sched::to_string(tier));
  }
  fail_unknown_name("tier", name, known);
}

spec::JobOptions training_of(const nlohmann::json& spec) {
  const JsonFields fields(spec, "spec");
  fields.only({"job", "plans"});
  spec::JobOptions job;
  OptionSet options(job);
  options.read_toml_text(fields.text("job"), "spec.job");
  if (const std::vector<TrainPlan> plans = plans_of("train", spec); !plans.empty())
    follow_plan(job, plans.front());
  spec::check(job);
  return job;
}

}  // namespace

std::vector<TrainPlan> plans_of(const std::string& kind, const nlohmann::json& spec) {
  constexpr size_t kMostPlans = 16;
  constexpr double kMostSeconds = 1e9;
  std::vector<TrainPlan> out;
  if (kind != "train" || !spec.is_object() || !spec.contains("plans")) return out;
  const JsonFields fields(spec, "spec");
  for (const nlohmann::json& item : fields.array("plans")) {
    if (!item.is_object() || out.size() == kMostPlans)
      fields.wrong("plans", "a list of at most 16 plans", item);
    const JsonFields one(item, fmt::format("spec.plans: plan {}", out.size() + 1));
    one.only({"virtual_ranks", "shard_optimizer", "pipelined", "seconds", "least_devices", "plan"});
    if (one.has("plan")) (void)one.text("plan");
    TrainPlan plan;
    plan.place = out.size();
    plan.virtual_ranks = one.integer("virtual_ranks", 1, 1 << 16);
    plan.shard_optimizer = one.boolean("shard_optimizer", false);
    if (one.has("seconds")) plan.seconds = one.number("seconds", 0, kMostSeconds);
    plan.least = one.integer_or("least_devices", 1, 1, 1 << 16);
    OptionSet options(plan.pipelined);
    options.read_toml_text(one.text("pipelined"), one.where());
    out.push_back(std::move(plan));
  }
  for (const TrainPlan& plan : out)
    if (out.size() > 1 && !(plan.seconds > 0))
      fail(ErrorCode::invalid_argument,
           "spec.plans: plan {} has no predicted seconds, and of several plans each needs them, so "
           "that they can be compared; `ductile plan GRAPH --json` writes them",
           plan.place + 1);
  return out;
}

void follow_plan(spec::JobOptions& job, const TrainPlan& plan) {
  job.train.method = "pipelined";
  job.train.virtual_ranks = plan.virtual_ranks;
  job.train.shard_optimizer = plan.shard_optimizer;
  job.train.pipelined = plan.pipelined;
}

std::vector<StagePlan> stage_plans(const Work& work, std::span<const TrainPlan> plans) {
  std::vector<StagePlan> out;
  const auto add = [&out](int64_t ranks, int64_t pipelines, double seconds, int64_t least) {
    out.push_back({static_cast<int32_t>(std::max<int64_t>(1, ranks / pipelines)),
                   static_cast<int32_t>(pipelines), seconds, static_cast<int32_t>(least)});
  };
  for (const TrainPlan& plan : plans)
    add(plan.virtual_ranks, plan.pipelined.replicas, plan.seconds, plan.least);
  const auto* job = std::get_if<spec::JobOptions>(&work);
  if (plans.empty() && job != nullptr && spec::is_pipelined(*job))
    add(job->train.virtual_ranks, job->train.pipelined.replicas, 0, 1);
  return out;
}

Work work_of(const std::string& kind, const nlohmann::json& spec) {
  if (kind == "train") return training_of(spec);
  if (kind == "command") return command_of(spec);
  if (kind == "serve") return serve_of(spec);
  fail_unknown_name("kind =", kind, std::vector<std::string>{"train", "command", "serve"});
}

int64_t gpus_of(const Work& work) {
  const auto* command = std::get_if<CommandSpec>(&work);
  return command == nullptr ? 0 : command->gpus;
}

std::map<std::string, int32_t> teams_of(const ServiceOptions& options) {
  std::map<std::string, int32_t> out;
  for (const auto& [team, devices] : options.quotas) out[team] = 0;
  for (const auto& [team, part] : options.shares) out[team] = 0;
  int32_t number = 0;
  for (auto& [team, own] : out) own = ++number;
  return out;
}

std::map<int32_t, int64_t> gpu_quotas_of(const ServiceOptions& options) {
  const std::map<std::string, int32_t> teams = teams_of(options);
  std::map<int32_t, int64_t> out;
  for (const auto& [team, gpus] : options.gpu_quotas)
    if (const auto known = teams.find(team); known != teams.end()) out[known->second] = gpus;
  return out;
}

void check_gpus(const Submission& submission, const Work& work, const Engine& engine) {
  const int64_t gpus = gpus_of(work);
  if (!engine.may_have({submission.min_devices, gpus}))
    fail(ErrorCode::invalid_argument,
         "spec: gpus = {}: no [[pool]] of this service has pilots with so many GPUs and {} "
         "device{}; "
         "`gpus` and `devices` of a pool in the cluster file say how many a pilot has",
         gpus, submission.min_devices, submission.min_devices == 1 ? "" : "s");
}

int64_t batch_of(const Work& work) {
  const auto* job = std::get_if<spec::JobOptions>(&work);
  return job == nullptr ? 1 : job->train.batch_size;
}

// Those of one model on one kind of data.
std::string application_of(const Work& work) {
  const auto* training = std::get_if<spec::JobOptions>(&work);
  if (training == nullptr) return "";
  spec::ModelOptions model = training->model;
  spec::DataOptions data = training->data;
  spec::AugmentOptions augment = training->augment;
  const spec::TrainOptions& train = training->train;
  // Of these alone, since a service may begin with thousands of jobs.
  std::string text = OptionSet(model).to_toml() + OptionSet(data).to_toml() +
                     OptionSet(augment).to_toml() +
                     fmt::format("{} {} {}", train.method, train.precision, train.virtual_ranks);
  if (spec::is_pipelined(*training)) {
    spec::PipelinedOptions stages = train.pipelined;
    text += OptionSet(stages).to_toml();
  }
  return model.name + "-" + sha256(text).substr(0, 16);
}

JobDemand demand_of(const JobRecord& record, const Work& work, const std::string& application,
                    const std::map<std::string, int32_t>& teams, int64_t devices, double arrival,
                    std::span<const TrainPlan> plans) {
  const Submission& s = record.submission;
  JobDemand demand;
  demand.id = record.id;
  demand.name = s.name;
  demand.application = application.empty() ? s.name : application;
  demand.arrival = arrival;
  demand.tier = tier_of(s.tier);
  if (const auto team = teams.find(s.team); team != teams.end()) demand.team = team->second;
  demand.rigid = demand.one_node = std::holds_alternative<CommandSpec>(work);
  demand.gpus = static_cast<int32_t>(gpus_of(work));
  if (const auto* serve = std::get_if<ServeSpec>(&work)) demand.target = serve->target;
  demand.min_devices = static_cast<int32_t>(s.min_devices);
  demand.max_devices = static_cast<int32_t>(std::min(s.max_devices, devices));
  demand.batch = static_cast<int32_t>(batch_of(work));
  demand.region = s.region;
  demand.transfer = s.transfer;
  demand.movable = s.movable;
  if (const auto* job = std::get_if<spec::JobOptions>(&work)) {
    demand.total_steps = job->train.max_steps;
    demand.plans = stage_plans(work, plans);
    if (spec::batch_is_ordered(*job)) {
      demand.most_batch =
          static_cast<int32_t>(std::min<int64_t>(spec::most_batch(*job), INT32_MAX));
      demand.batch_parts = static_cast<int32_t>(spec::batch_parts(*job));
    }
  }
  return demand;
}

std::unique_ptr<JobRunner> make_runner(net::Loop& loop, Engine& engine,
                                       const ServiceOptions& options, const JobRecord& record,
                                       const RunsFolder& runs, const fs::path& run, Work& work,
                                       Front* front, const std::string& plan, int64_t least) {
  // A command's runner waits for the folder itself: what it started may go on without it.
  if (!std::holds_alternative<CommandSpec>(work)) require_folder_of_runs(runs, run);
  if (auto* job = std::get_if<spec::JobOptions>(&work))
    return make_train_runner(loop, engine, run, *job, options.alone, plan, least);
  if (front != nullptr) return make_serve_runner(loop, engine, run, *front, options.alone);
  CommandSpec command = std::get<CommandSpec>(work);
  command.environment.emplace_back("DUCTILE_JOB", std::to_string(record.id));
  command.environment.emplace_back("DUCTILE_JOB_NAME", record.submission.name);
  return make_command_runner(loop, engine, runs, run, command,
                             options.cluster ? options.command_lease : 0);
}

spec::JobOptions served_job(const ServeSpec& serve) {
  spec::JobOptions job;
  OptionSet(job).read_toml(run::RunFolder::open(serve.run).job_file(), Moved::follow);
  return job;
}

bool has_weights(const run::RunFolder& run) {
  return kind_of(run.model_file()) != FileKind::none ||
         std::ranges::any_of(ckpt::list(run.checkpoints()),
                             [](const ckpt::CheckpointSummary& one) { return one.error.empty(); });
}

namespace {

const fs::path& shared_of(const ServiceOptions& options) {
  return options.shared.empty() ? options.folder : options.shared;
}

}  // namespace

fs::path store_of(const ServiceOptions& options) {
  std::error_code told_by_the_store;
  fs::create_directories(options.folder, told_by_the_store);
  return options.folder / "store.db";
}

// Where it cannot be seen what is there (no permission, a disk that fails) the job is not begun
// before it can be; nobody else has a name like that.
fs::path unused(const fs::path& path) try {
  fs::path out = path;
  for (int n = 2; kind_of(out) != FileKind::none; ++n)
    out = path.string() + "-" + std::to_string(n);
  return out;
} catch (const Error&) {
  return fmt::format("{}-{:.0f}", path.string(), wall_seconds());
}

std::string lost_run(const Work& work, const RunsFolder& runs, const fs::path& run) {
  std::error_code unknown;
  if (std::holds_alternative<ServeSpec>(work)) return "";
  if (fs::exists(run, unknown) || unknown || !absence_of_runs(runs).empty()) return "";
  return fmt::format("It begins anew, since its run directory {} is not there any more",
                     run.string());
}

run::RunFolder made_run(const fs::path& run, spec::JobOptions& job, const std::string& plan) {
  if (kind_of(run / "job.toml") == FileKind::none) {
    run::remove_half_made(run);
    if (kind_of(run) == FileKind::none) run::RunFolder::create_at(run, OptionSet(job).to_toml());
  }
  run::RunFolder folder = run::RunFolder::open(run);
  if (const fs::path file = run::plan_file(folder);
      !plan.empty() && kind_of(file) == FileKind::none)
    write_file_atomic(file, plan);
  return folder;
}

spec::Cluster cluster_of(const ServiceOptions& options) {
  spec::Cluster out;
  if (options.cluster) {
    out = *options.cluster;
    if (!out.teams.empty())
      fail(ErrorCode::invalid_argument,
           "the cluster file has [[teams]], which are for simulations; the teams of a service's "
           "jobs have names: write --quota NAME={} or --share NAME={:.3g} for each instead, and "
           "leave [[teams]] out",
           std::max<int64_t>(1, out.teams.front().quota),
           out.teams.front().share > 0 ? out.teams.front().share : 0.5);
  } else {
    spec::NodeGroup group;
    group.type = options.device_type;
    group.devices = options.devices;
    group.hosts = {options.node};
    out.groups = {group};
  }
  if (!options.shares.empty() && !sched::make_policy(options.policy)->traits().sees_shares)
    fail(ErrorCode::invalid_argument,
         "policy {} knows nothing of shares, and team {} has one; --policy ductile heeds them, and "
         "--quota holds under every policy",
         options.policy, options.shares.begin()->first);
  for (const auto& [name, number] : teams_of(options)) {
    spec::Team team;
    team.id = number;
    if (const auto part = options.shares.find(name); part != options.shares.end())
      team.share = part->second;
    if (const auto quota = options.quotas.find(name); quota != options.quotas.end())
      team.quota = quota->second;
    out.teams.push_back(team);
  }
  return out;
}

std::unique_ptr<Engine> engine_of(net::Loop& loop, const ServiceOptions& options) {
  if (!options.cluster)
    return make_local_engine(loop, options.worker, options.keeper, options.devices);
  if (!options.pools.empty())
    return make_slurm_engine(loop, *options.cluster,
                             {shared_of(options), options.program, options.worker, options.keeper,
                              options.pools, options.launcher, options.listen});
  return make_hosts_engine(loop, *options.cluster,
                           {shared_of(options), options.program, options.worker, options.keeper,
                            options.launcher, options.listen});
}

std::string lack_of_devices(const JobRecord& record, int64_t devices, int64_t of_a_node) {
  const int64_t least = record.submission.min_devices;
  if (record.submission.kind == "command" && least > of_a_node && least <= devices)
    return fmt::format(
        "It needs {} devices on one node, and the largest node of this service has {}; it runs "
        "when the service is started again with a larger one.",
        least, of_a_node);
  if (least <= devices) return "";
  return fmt::format(
      "It needs {} devices, and this service has {}; it runs when the service is started again "
      "with more.",
      least, devices);
}

namespace {

// Workers start in folders that their submitter does not know. The command line makes these paths
// absolute (JobConfig::make_paths_absolute()).
void require_absolute_paths(const spec::JobOptions& job) {
  for (const auto& [name, path] :
       {std::pair("data.path", &job.data.path), std::pair("data.test_path", &job.data.test_path),
        std::pair("model.library", &job.model.library)})
    if (!path->empty() && path->front() != '/')
      fail(ErrorCode::invalid_argument,
           "spec.job: {} = \"{}\": an absolute path is wanted, on the machine of the service", name,
           *path);
}

}  // namespace

void check_spec(const Submission& submission, const Work& work, std::span<const TrainPlan> plans,
                int64_t devices, int64_t of_a_node) {
  tier_of(submission.tier);
  if (submission.min_devices > devices)
    fail(ErrorCode::invalid_argument,
         "min_devices = {}: this service has {} in all, so the job could never begin; ask for "
         "fewer, "
         "or start the service with more",
         submission.min_devices, devices);
  if (const auto* serve = std::get_if<ServeSpec>(&work)) served_job(*serve);
  const auto* job = std::get_if<spec::JobOptions>(&work);
  if (job != nullptr) require_absolute_paths(*job);
  int64_t ranks = job == nullptr ? 0 : job->train.virtual_ranks;
  for (const TrainPlan& plan : plans) {
    spec::JobOptions planned = *job;
    follow_plan(planned, plan);
    spec::check(planned);
    ranks = std::max(ranks, plan.virtual_ranks);
  }
  if (job != nullptr && submission.max_devices > ranks)
    fail(ErrorCode::invalid_argument,
         "max_devices = {}: train.virtual_ranks is {}, and each device hosts at least one of them",
         submission.max_devices, ranks);
  if (std::holds_alternative<CommandSpec>(work) && submission.max_devices != submission.min_devices)
    fail(ErrorCode::invalid_argument,
         "min_devices = {}, max_devices = {}: a command runs on a fixed number of devices",
         submission.min_devices, submission.max_devices);
  if (std::holds_alternative<CommandSpec>(work) && submission.min_devices > of_a_node)
    fail(ErrorCode::invalid_argument,
         "min_devices = {}: a command runs on one node, and the largest has {}; ask for fewer",
         submission.min_devices, of_a_node);
}

void check_region(const Submission& submission, const spec::Cluster& cluster,
                  std::string_view policy) {
  std::map<std::string, int64_t> regions;  // devices
  for (const spec::NodeGroup& group : cluster.groups)
    regions[group.region] += group.count * group.devices;
  if (!submission.region.empty() && !regions.contains(submission.region)) {
    std::vector<std::string> known;
    for (const auto& [name, devices] : regions) known.push_back(name);
    fail_unknown_name("region =", submission.region, known);
  }
  if (!sched::make_policy(policy)->traits().sees_regions) {
    if (!submission.movable)
      fail(ErrorCode::invalid_argument,
           "movable = false: policy {} knows nothing of regions; the service is to be started "
           "with --policy regional",
           policy);
    return;
  }
  int64_t most = 0;
  for (const auto& [name, devices] : regions)
    if (submission.movable || name == submission.region) most = std::max(most, devices);
  if (submission.min_devices > most)
    fail(ErrorCode::invalid_argument, "min_devices = {}: a job runs in one region, and {} has {}",
         submission.min_devices,
         submission.movable ? std::string("the largest one") : submission.region, most);
}

bool runs_own_code(const Work& work) {
  if (const auto* serve = std::get_if<ServeSpec>(&work))
    return !served_job(*serve).model.library.empty();
  const auto* job = std::get_if<spec::JobOptions>(&work);
  return job == nullptr || !job->model.library.empty() || !job->python.object.empty();
}

}  // namespace ductile::cluster
