#include "ductile/cli/other_plan.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/cli/pipeline_plan.h"
#include "ductile/page/numbers.h"
#include "ductile/run/diary.h"
#include "ductile/run/runs_mark.h"
#include "ductile/run/trace.h"
#include "ductile/spec/model_identity.h"

namespace ductile::cli {
namespace {

using nlohmann::json;

// "2", or "3, 1, 1" where stages have their own.
std::string replicas_text(const spec::PipelinedOptions& options) {
  if (options.stage_replicas.empty()) return fmt::format("{}", options.replicas);
  return fmt::format("{}", fmt::join(options.stage_replicas, ", "));
}

json figures_of(const spec::JobOptions& job) {
  const spec::PipelinedOptions& options = job.train.pipelined;
  return {{"stages", spec::num_stages(job)},
          {"replicas", replicas_text(options)},
          {"micro_batches", options.micro_batches},
          {"ranks", job.train.virtual_ranks}};
}

bool have_same_stages(const spec::JobOptions& a, const spec::JobOptions& b) {
  const spec::PipelinedOptions &x = a.train.pipelined, &y = b.train.pipelined;
  const bool divided = spec::divides_tensors(a) || spec::divides_tensors(b);
  return figures_of(a) == figures_of(b) && x.stage_replicas == y.stage_replicas &&
         (!divided || x.tensor == y.tensor);
}

// Workers compare the plan's model with their own. What the run was planned for is known before any
// of them begins, and nothing in the run has been touched yet.
void check_model(const std::vector<std::string>& before, spec::JobOptions& job,
                 const fs::path& file) {
  std::vector<std::string>& now = job.train.pipelined.model;
  if (now.empty()) now = before;  // a plan by hand does not say it, and the run's stays
  const spec::ModelIdentity own = spec::model_identity(before), planned = spec::model_identity(now);
  const std::string difference = spec::difference(planned, own);
  if (difference.empty()) return;
  fail(ErrorCode::invalid_argument,
       "{}: the plan is for another model ({}) than the run's ({}): {}; plan the run's model anew "
       "(ductile profile, then ductile plan --runnable)",
       file.string(), planned.name, own.name, difference);
}

// Of the run; empty: it has none.
std::string kept_plan(const run::RunFolder& folder) {
  const fs::path file = run::plan_file(folder);
  return kind_of(file) == FileKind::file ? read_file(file) : "";
}

std::string stages_text(const json& figures) {
  const auto stages = figures.at("stages").get<double>();
  const auto replicas = figures.at("replicas").get<std::string>();
  return fmt::format("{}, {} replica{} of each and {} micro-batches", page::plural(stages, "stage"),
                     replicas, replicas == "1" ? "" : "s",
                     figures.at("micro_batches").get<int64_t>());
}

}  // namespace

bool is_done(const run::RunFolder& folder) {
  json end;
  run::for_each_diary_line(folder.events_file(), [&](const json& line) {
    if (line.value("kind", json()) == "end") end = line;
  });
  if (!end.is_object()) return false;
  const json status = end.value("status", json());
  if (status != "done" && status != "target_reached") return false;
  const auto saved = ckpt::list(folder.checkpoints());
  if (saved.empty() || end.value("step", json()) != saved.front().step) return false;
  if (status == "done") return true;
  spec::JobOptions job;
  OptionSet(job).read_toml(folder.job_file(), Moved::follow);
  const json state = ckpt::Checkpoint::open(folder.checkpoints(), saved.front().step).state();
  return state.contains("job") && state.at("job").is_object() &&
         state.at("job").value("target", json()) == OptionSet(job).to_json().at("target");
}

bool had_parts(const run::RunFolder& folder) {
  bool out = false;
  run::for_each_diary_line(folder.events_file(), [&](const json& line) {
    if (line.value("kind", json()) != "replan" || !line.contains("before")) return;
    const json& before = line.at("before");
    if (!before.is_object()) return;
    // Parts of stages are ranks beside the replicas.
    const json ranks = before.value("ranks", json(1)), stages = before.value("stages", json(1));
    out = out || stages > 1 || before.value("replicas", json()) != dump_json(ranks);
  });
  return out;
}

OtherPlan other_plan(spec::JobOptions& job, const fs::path& file, bool had_parts) {
  if (!spec::is_pipelined(job)) {
    fail(ErrorCode::conflict,
         "{}: the run was begun with train.method = \"{}\", and a plan would make another job of "
         "it; resume it without --plan, or start a new run",
         file.string(), job.train.method);
  }
  spec::JobOptions before = job;
  const std::vector<int64_t>& tensor = before.train.pipelined.tensor;
  OtherPlan out;
  out.text = set_plan(job, file);
  spec::PipelinedOptions& now = job.train.pipelined;
  check_model(before.train.pipelined.model, job, file);
  out.same_stages = have_same_stages(before, job);
  out.same_result = spec::same_result(before, job);
  out.may_round =
      out.same_result && !job.train.pipeline_exact && now.stages != before.train.pipelined.stages;
  if (out.same_stages && now.tensor.empty()) now.tensor = tensor;  // ones, which say nothing
  if (!out.same_result) ++now.replans;
  // Nobody could ask for it by stage so far. Where somebody did, it stays, also while there is one
  // rank and nothing to divide.
  if (!had_parts && !before.train.shard_optimizer && spec::num_stages(before) <= 1 &&
      !spec::divides_tensors(before))
    job.train.shard_optimizer = may_lie_by_stage(job);
  out.changes_job = OptionSet(before).to_json() != OptionSet(job).to_json();
  out.before = figures_of(before);
  out.now = figures_of(job);
  return out;
}

void check_may_change(const run::RunFolder& folder, const OtherPlan& plan, bool repeats) {
  if (repeats && !plan.same_result) {
    fail(ErrorCode::conflict,
         "{}: it repeats another run to the bit, and the plan would change its result; resume it "
         "without --plan, or with a plan of {}",
         folder.path().string(), stages_text(plan.before));
  }
  if (!plan.same_stages && !run::runs_mark(folder.path().parent_path()).empty()) {
    fail(ErrorCode::conflict,
         "{}: the run is in the folder of a service, which shares devices among its jobs by the "
         "stages that they were submitted with, and may start it at any time; submit the job anew "
         "by the plan (ductile submit --plan), or give it one of {}",
         folder.path().string(), stages_text(plan.before));
  }
  if ((plan.changes_job || plan.text != kept_plan(folder)) && is_done(folder)) {
    fail(ErrorCode::conflict,
         "{}: the run is done, and has no step left for another plan; resume it without --plan, or "
         "start a new run by the plan (ductile train --plan)",
         folder.path().string());
  }
}

json change_event(const run::RunFolder& folder, const OtherPlan& plan) {
  const auto saved = ckpt::list(folder.checkpoints());
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {{"kind", "replan"},
          {"time", std::chrono::duration<double>(now).count()},
          {"seconds", run::end_of_diaries(folder).seconds},
          {"step", saved.empty() ? 0 : saved.front().step},
          {"asked", true},
          {"from", plan.before.at("ranks")},
          {"to", plan.now.at("ranks")},
          {"before", plan.before},
          {"now", plan.now},
          {"same_result", plan.same_result},
          {"may_round", plan.may_round}};
}

std::string change_text(const json& event) {
  std::string result = fmt::format("from step {} on the result is that of another plan",
                                   event.at("step").get<int64_t>());
  if (event.at("same_result") == true) {
    result = "the result is the same to the bit";
    if (event.at("may_round") == true)
      result +=
          ", unless three or more operators read a tensor, or several hold a weight, across a cut";
  }
  return fmt::format("the run goes on from step {} by another plan: {}, in place of {}; {}",
                     event.at("step").get<int64_t>(), stages_text(event.at("now")),
                     stages_text(event.at("before")), result);
}

}  // namespace ductile::cli
