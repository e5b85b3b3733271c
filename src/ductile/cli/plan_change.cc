#include "ductile/cli/plan_change.h"

#include <system_error>
#include <utility>
#include <variant>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/run/progress.h"
#include "ductile/run/trace.h"

namespace ductile::cli {
namespace {

fs::path former_plan(const run::RunFolder& folder) { return folder.path() / "former_plan.json"; }

std::optional<std::string> plan_text(const run::RunFolder& folder) {
  const fs::path file = run::plan_file(folder);
  if (kind_of(file) != FileKind::file) return std::nullopt;
  return read_file(file);
}

}  // namespace

std::optional<PlanChange> PlanChange::read(const run::RunFolder& folder) {
  const fs::path file = former_plan(folder);
  if (kind_of(file) == FileKind::none) return std::nullopt;
  const nlohmann::json value = parse_json(read_file(file), file.string(), ErrorCode::data_loss);
  try {
    const JsonFields fields(value, file.string());
    Texts before{fields.text("job"), std::nullopt};
    if (fields.has("plan")) before.plan = fields.text("plan");
    return PlanChange(folder, std::move(before), {fields.text("new_job"), fields.text("new_plan")});
  } catch (const Error& error) {
    fail(ErrorCode::data_loss,
         "{}; it holds the plan that the run had before the last --plan: remove it, and the run "
         "goes on as job.toml says",
         error.message());
  }
}

std::optional<PlanChange> PlanChange::left_open(const run::RunFolder& folder) {
  std::optional<PlanChange> found = read(folder);
  if (!found) return std::nullopt;
  const std::string job = read_file(folder.job_file());
  if (job == found->now_.job) {
    if (plan_text(folder) != found->now_.plan) found->write(found->now_);
    return found;
  }
  if (job == found->before_.job) {  // it was killed before the change began, or when it had ended
    found->take_back();
  } else {  // somebody knows better
    found->accept();
  }
  return std::nullopt;
}

PlanChange PlanChange::put(const run::RunFolder& folder, const std::string& job,
                           const std::string& plan) {
  const std::optional<PlanChange> open = left_open(folder);
  Texts before = open ? open->before_ : Texts{read_file(folder.job_file()), plan_text(folder)};
  PlanChange out(folder, std::move(before), {job, plan});
  nlohmann::json value = {{"job", out.before_.job}, {"new_job", job}, {"new_plan", plan}};
  if (out.before_.plan) value["plan"] = *out.before_.plan;
  write_file_atomic(former_plan(folder), dump_json(value) + "\n");
  out.write(out.now_);
  return out;
}

// job.toml last when a change begins or ends: it says which of the two is in force.
void PlanChange::write(const Texts& texts) const {
  if (texts.plan) {
    write_file_atomic(run::plan_file(folder_), *texts.plan);
  } else {
    fs::remove(run::plan_file(folder_));
  }
  write_file_atomic(folder_.job_file(), texts.job);
}

void PlanChange::hear(std::string_view line) {
  if (!open_) return;
  const auto known = run::decode(line);
  const auto* progress = known ? std::get_if<run::Progress>(&*known) : nullptr;
  if (progress == nullptr) return;
  if (!first_step_) first_step_ = progress->step;
  if (progress->step > *first_step_) accept();
}

void PlanChange::accept() {
  if (!std::exchange(open_, false)) return;
  std::error_code ignored;  // a file that stays is looked at again
  fs::remove(former_plan(folder_), ignored);
}

bool PlanChange::take_back() {
  if (!open_) return false;
  write(before_);
  accept();
  return true;
}

}  // namespace ductile::cli
