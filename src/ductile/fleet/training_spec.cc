#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/options.h"
#include "ductile/cli/job_config.h"
#include "ductile/cli/own_plan.h"
#include "ductile/cli/pipeline_plan.h"
#include "ductile/cli/plan_memory.h"
#include "ductile/cli/plan_placement.h"
#include "ductile/cli/python_job.h"
#include "ductile/fleet/training_spec_impl.h"
#include "ductile/page/terminal.h"
#include "ductile/spec/job.h"

namespace ductile::cli {
namespace {

// Of a plan's text a report reads the plan, and what was predicted of it. A service keeps it with
// the job, of which it may have very many.
constexpr size_t kMostText = 64 << 10;

// The text, or that part of it; empty: it is too long all the same.
std::string shortened(std::string text, size_t most) {
  if (text.size() <= most) return text;
  const nlohmann::json report = parse_json(text, "plan", ErrorCode::invalid_argument);
  nlohmann::json part = nlohmann::json::object();
  for (const char* const key : {"plan", "evaluation", "timeline"})
    if (report.is_object() && report.contains(key)) part[key] = report.at(key);
  text = dump_json(part);
  if (text.size() > most) text.clear();
  return text;
}

// With plans the job is that of the first, and the service has what it needs to compare all of them
// and to train by any. Their texts are for the run's report.
TrainingSpec planned_spec(const ServiceCommand& command, const JobRequest& request,
                          const Context& context) {
  const size_t most_text = kMostText / command.plans.size();
  TrainingSpec out;
  for (const fs::path& file : command.plans) {
    JobConfig config;
    std::string text = read_planned(request, file, command.plan_text, context.environment, config);
    config.make_paths_absolute();
    spec::check(config.job);
    check_memory(config.job, text, file);
    if (const auto placement = PlanPlacement::of(text, file))
      if (const std::string note = placement->note_for_service(); !note.empty())
        context.console.say("{}", note);
    if (const std::string note = note_on_split(config.job, text, file); !note.empty())
      context.console.say("{}", note);
    spec::TrainOptions& train = config.job.train;
    const auto memory = PlanMemory::of(config.job, text);
    const int64_t least = memory ? memory->fewest(0) : 1;
    out.least = out.spec.is_null() ? least : std::min(out.least, least);
    if (out.spec.is_null()) {
      out.name = config.job.name;
      out.spec["job"] = config.options.to_toml();
    }
    out.ranks = std::max(out.ranks, train.virtual_ranks);
    nlohmann::json plan = {{"virtual_ranks", train.virtual_ranks},
                           {"shard_optimizer", train.shard_optimizer},
                           {"pipelined", OptionSet(train.pipelined).to_toml()}};
    // An older service knows no such key; and with --min it is the user who says it.
    if (least > 1 && !command.min) plan["least_devices"] = least;
    if (const double seconds = predicted_seconds(text); seconds > 0)
      plan["seconds"] = seconds;
    else if (command.plans.size() > 1)
      fail(ErrorCode::invalid_argument,
           "{}: the plan says no time for a step, and of several plans each has to, so that the "
           "service can compare them; `ductile plan GRAPH --json` writes it",
           file.string());
    text = shortened(std::move(text), most_text);
    if (!text.empty()) plan["plan"] = std::move(text);
    out.spec["plans"].push_back(std::move(plan));
  }
  return out;
}

// Where the job file is no such file by its name either, it is likely to be another program.
void read_job(JobConfig& config, const JobRequest& request, const Context& context) try {
  config.read(request, context.environment);
} catch (const Error& error) {
  if (!request.file || request.file->extension() == ".toml" || python_object(*request.file)) throw;
  fail(error.code(), "{}; another program follows --: ductile submit -- {}", error.message(),
       page::shell_word(request.file->string()));
}

}  // namespace

TrainingSpec training_spec(const ServiceCommand& command, const JobRequest& request,
                           const Context& context) {
  if (!command.plans.empty()) return planned_spec(command, request, context);
  JobConfig config;
  read_job(config, request, context);
  config.make_paths_absolute();
  TrainingSpec out;
  out.name = config.job.name;
  out.ranks = config.job.train.virtual_ranks;
  out.spec["job"] = config.options.to_toml();
  return out;
}

namespace {

// All that a plan is compared with: two jobs with the same text have the same stages.
std::string text_of_stages(spec::JobOptions job) {
  spec::TrainOptions& train = job.train;
  train.max_steps = spec::TrainOptions().max_steps;
  train.epochs = spec::TrainOptions().epochs;
  return OptionSet(job.model).to_toml() + OptionSet(job.data).to_toml() +
         OptionSet(job.augment).to_toml() + OptionSet(job.python).to_toml() +
         OptionSet(train).to_toml();
}

// The job of a spec by its plan number `i`.
spec::JobOptions job_by_plan(const nlohmann::json& submitted, size_t i, const fs::path& file) {
  spec::JobOptions job;
  OptionSet(job).read_toml_text(submitted.at("job").get<std::string>(), "spec.job", Moved::follow);
  const nlohmann::json& plan = submitted.at("plans").at(i);
  spec::TrainOptions& train = job.train;
  train.virtual_ranks = plan.at("virtual_ranks").get<int64_t>();
  train.shard_optimizer = plan.at("shard_optimizer").get<bool>();
  train.pipelined = {};
  OptionSet(train.pipelined)
      .read_toml_text(plan.at("pipelined").get<std::string>(), file.string(), Moved::follow);
  return job;
}

}  // namespace

bool require_plans_of_model(const nlohmann::json& body, const std::vector<fs::path>& files) {
  std::set<std::string> seen;  // each takes a worker some time
  const auto look = [&](const nlohmann::json& submitted, const std::string& whose) {
    for (size_t i = 0; i < files.size(); ++i) {
      spec::JobOptions job = job_by_plan(submitted, i, files[i]);
      if (!seen.insert(text_of_stages(job)).second) continue;
      const std::optional<std::string> fault = fault_of_plan(OptionSet(job).to_toml());
      if (!fault) return false;
      if (!fault->empty())
        fail(ErrorCode::invalid_argument, "{}: {}{}", files[i].string(), whose, *fault);
    }
    return true;
  };
  if (!body.contains("array")) return look(body.at("spec"), "");
  for (const nlohmann::json& member : body.at("array"))
    if (!look(member.at("spec"),
              fmt::format("job {} of --array: ", member.at("index").get<int64_t>())))
      return false;
  return true;
}

}  // namespace ductile::cli
