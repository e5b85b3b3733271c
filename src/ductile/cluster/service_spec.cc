#include <algorithm>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/options.h"
#include "ductile/base/paths.h"
#include "ductile/cluster/service.h"
#include "ductile/cluster/service_spec_impl.h"

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

}  // namespace

spec::JobOptions job_of(const nlohmann::json& spec) {
  const JsonFields fields(spec, "spec");
  fields.only({"job"});
  spec::JobOptions job;
  OptionSet options(job);
  options.read_toml_text(fields.text("job"), "spec.job");
  spec::check(job);
  return job;
}

JobDemand demand_of(const JobRecord& record, const spec::JobOptions& job, int64_t devices,
                    double now) {
  const Submission& s = record.submission;
  JobDemand demand;
  demand.id = record.id;
  demand.name = s.name;
  demand.application = s.name;
  demand.arrival = std::min(record.submitted, now);
  demand.tier = tier_of(s.tier);
  demand.min_devices = static_cast<int32_t>(s.min_devices);
  demand.max_devices = static_cast<int32_t>(std::min(s.max_devices, devices));
  demand.batch = static_cast<int32_t>(job.train.batch_size);
  return demand;
}

namespace {

const fs::path& shared_of(const ServiceOptions& options) {
  return options.shared.empty() ? options.folder : options.shared;
}

}  // namespace

fs::path runs_of(const ServiceOptions& options) {
  const fs::path runs = shared_of(options) / "runs";
  std::error_code error;
  fs::create_directories(options.folder, error);
  fs::create_directories(runs, error);
  if (error) fail_errno(runs.string() + ": the service keeps its runs there", error.value());
  return runs;
}

fs::path unused(const fs::path& path) {
  fs::path out = path;
  for (int n = 2; kind_of(out) != FileKind::none; ++n)
    out = path.string() + "-" + std::to_string(n);
  return out;
}

run::RunFolder made_run(const fs::path& run, spec::JobOptions& job) {
  if (kind_of(run / "job.toml") == FileKind::none) {
    std::error_code ignored;
    for (const char* empty : {"checkpoints", "tensorboard", ""}) fs::remove(run / empty, ignored);
    if (kind_of(run) == FileKind::none) run::RunFolder::create_at(run, OptionSet(job).to_toml());
  }
  return run::RunFolder::open(run);
}

spec::Cluster cluster_of(const ServiceOptions& options) {
  if (options.cluster) return *options.cluster;
  spec::NodeGroup group;
  group.type = options.device_type;
  group.devices = options.devices;
  group.hosts = {options.node};
  return {{group}, {}};
}

std::unique_ptr<Engine> engine_of(net::Loop& loop, const ServiceOptions& options) {
  if (!options.cluster) return make_local_engine(loop, options.worker, options.devices);
  return make_hosts_engine(
      loop, *options.cluster,
      {shared_of(options), options.program, options.worker, options.launcher, options.listen});
}

std::string lack_of_devices(const JobRecord& record, int64_t devices) {
  const int64_t least = record.submission.min_devices;
  if (least <= devices) return "";
  return fmt::format(
      "It needs {} devices, and this service has {}; it runs when the service is started again "
      "with more.",
      least, devices);
}

void check_spec(const Submission& submission, const nlohmann::json& spec, int64_t devices) {
  if (submission.kind != "train")
    fail(ErrorCode::invalid_argument, "kind = \"{}\": this service runs jobs of kind \"train\"",
         submission.kind);
  tier_of(submission.tier);
  const spec::JobOptions job = job_of(spec);
  if (submission.min_devices > devices)
    fail(ErrorCode::invalid_argument, "min_devices = {}: this service has {}",
         submission.min_devices, devices);
  if (submission.max_devices > job.train.virtual_ranks)
    fail(ErrorCode::invalid_argument,
         "max_devices = {}: train.virtual_ranks is {}, and each device hosts at least one of them",
         submission.max_devices, job.train.virtual_ranks);
}

}  // namespace ductile::cluster
