#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/cluster/command_impl.h"
#include "ductile/cluster/engine_impl.h"
#include "ductile/cluster/front_impl.h"
#include "ductile/cluster/job_runner_impl.h"
#include "ductile/cluster/records.h"
#include "ductile/cluster/runs_folder_impl.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/service.h"
#include "ductile/run/folder.h"
#include "ductile/spec/cluster.h"
#include "ductile/spec/job.h"

namespace ductile::cluster {

// What a job runs: one alternative for each kind.
using Work = std::variant<spec::JobOptions, CommandSpec, ServeSpec>;

// Throws invalid_argument for a kind or a spec that this program does not know.
Work work_of(const std::string& kind, const nlohmann::json& spec);

// One way to train a job by stages, of those that it was submitted with.
struct TrainPlan {
  size_t place = 0;  // among them
  int64_t virtual_ranks = 1;
  bool shard_optimizer = false;
  spec::PipelinedOptions pipelined;
  double seconds = 0;  // predicted, of a step with a device for each virtual rank; 0: not known
  int64_t least = 1;   // devices without which there is no memory for it
};

// The plans of a spec, of which one is chosen when the job begins: results are equal to the bit for
// one plan, and not for several. work_of() has the job by the first. Throws invalid_argument for
// what is no plan, and for several of which one has no time.
std::vector<TrainPlan> plans_of(const std::string& kind, const nlohmann::json& spec);
void follow_plan(spec::JobOptions& job, const TrainPlan& plan);
// The same for the scheduler; also of a job by stages that came without plans. Empty: it does not
// train by stages.
std::vector<StagePlan> stage_plans(const Work& work, std::span<const TrainPlan> plans);

// GPUs of one node that it has for itself.
int64_t gpus_of(const Work& work);
// The numbers of the teams that have something of their own, a quota or a share: from 1 in the
// order of their names. All others have 0 together.
std::map<std::string, int32_t> teams_of(const ServiceOptions& options);
// Of teams by their numbers.
std::map<int32_t, int64_t> gpu_quotas_of(const ServiceOptions& options);
// Throws invalid_argument for a job that asks for more GPUs than any node will ever have.
void check_gpus(const Submission& submission, const Work& work, const Engine& engine);
// Throws invalid_argument where it cannot run on `devices` devices, of which the largest node has
// `of_a_node`.
void check_spec(const Submission& submission, const Work& work, std::span<const TrainPlan> plans,
                int64_t devices, int64_t of_a_node);
// Whether it brings code of its submitter, besides what Ductile has.
bool runs_own_code(const Work& work);

// Samples of one step; 1 where there is no such thing.
int64_t batch_of(const Work& work);

// Jobs that take as long for a step behave alike, whatever their users call them; the same text for
// those. Empty: nothing is known of it but the job's name.
std::string application_of(const Work& work);

// What a job asks of a service with so many devices. `application`: application_of(). `teams`:
// teams_of(). `arrival`: by the clock of Scheduler::decide().
JobDemand demand_of(const JobRecord& record, const Work& work, const std::string& application,
                    const std::map<std::string, int32_t>& teams, int64_t devices, double arrival,
                    std::span<const TrainPlan> plans = {});

// The processes of the job. `front`: of a job of kind "serve". `plan`, `least`: as
// make_train_runner() has them. Throws as the runners of the kinds do.
std::unique_ptr<JobRunner> make_runner(net::Loop& loop, Engine& engine,
                                       const ServiceOptions& options, const JobRecord& record,
                                       const RunsFolder& runs, const fs::path& run, Work& work,
                                       Front* front, const std::string& plan = "",
                                       int64_t least = 1);

// The job whose run is served. Throws not_found if there is no such run.
spec::JobOptions served_job(const ServeSpec& serve);
// Whether there is anything to serve: final weights, or a sound checkpoint.
bool has_weights(const run::RunFolder& run);

// The cluster that the options name, or one of this machine alone, with the teams of teams_of().
// Throws invalid_argument for shares that the policy does not know, and for teams of the file.
spec::Cluster cluster_of(const ServiceOptions& options);
std::unique_ptr<Engine> engine_of(net::Loop& loop, const ServiceOptions& options);

// Throws invalid_argument where the job cannot run in one region of the cluster, or has wishes that
// the policy does not know.
void check_region(const Submission& submission, const spec::Cluster& cluster,
                  std::string_view policy);

// In a sentence, that the job needs more devices than there are, of all nodes or of the largest
// one; empty: it does not.
std::string lack_of_devices(const JobRecord& record, int64_t devices, int64_t of_a_node);

// In a sentence: that a job begins after these, which have not ended.
std::string text_of_order(const std::set<JobId>& after);
// Who paused the job, as the middle of a sentence; and in a sentence, that they did.
std::string who_paused(const JobRecord& record);
std::string text_of_pause(const JobRecord& record);

// The store's file, in the service's own folder, which is made where it is missing.
fs::path store_of(const ServiceOptions& options);

// A run directory of this name that nobody has used. There is one of the name itself already where
// an earlier store, which was lost, counted its jobs from 1, too.
fs::path unused(const fs::path& path);

// Of a job that has begun before: what becomes of it if its run directory is not there. Empty: it
// is, or that cannot be seen now (absence_of_runs), or nothing of the job is in it.
std::string lost_run(const Work& work, const RunsFolder& runs, const fs::path& run);

// Makes the run directory if it is missing. One without a job in it, and with nothing else, is what
// a service that was killed while it made the directory has left. `plan`: the text of the plan that
// it is trained by, for its report; empty: there is none.
run::RunFolder made_run(const fs::path& run, spec::JobOptions& job, const std::string& plan = "");

}  // namespace ductile::cluster
