#include "ductile/link/plan_change.h"

#include <cstddef>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/run/diary.h"
#include "ductile/run/progress.h"
#include "ductile/run/trace.h"

namespace ductile::link {
namespace {

constexpr int64_t kMostSteps = int64_t{1} << 62;
constexpr int64_t kMostWorkers = int64_t{1} << 20;
constexpr int64_t kMostFigure = int64_t{1} << 40;  // of stages, or of micro-batches

fs::path former_plan(const run::RunFolder& folder) { return folder.path() / "former_plan.json"; }

std::optional<std::string> plan_text(const run::RunFolder& folder) {
  const fs::path file = run::plan_file(folder);
  if (kind_of(file) != FileKind::file) return std::nullopt;
  return read_file(file);
}

// What change_text() and has_saved() read of it.
void check_event(const nlohmann::json& event, const std::string& where) {
  const JsonFields fields(event, where);
  (void)fields.integer("step", 0, kMostSteps);
  for (const char* key : {"before", "now"}) {
    const JsonFields figures(fields.at(key), where + ": " + key);
    (void)figures.integer("stages", 1, kMostFigure);
    (void)figures.text("replicas");
    (void)figures.integer("micro_batches", 1, kMostFigure);
  }
  for (const char* key : {"same_result", "may_round"}) (void)fields.boolean(key);
}

}  // namespace

std::optional<PlanChange> PlanChange::read(const run::RunFolder& folder) {
  const fs::path file = former_plan(folder);
  try {
    if (kind_of(file) == FileKind::none) return std::nullopt;
    std::vector<std::byte> bytes;
    read_regular_file(file, kMostText, bytes);  // which waits for the writer of no FIFO
    const nlohmann::json value =
        parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.string(),
                   ErrorCode::data_loss);
    const JsonFields fields(value, file.string());
    Texts before{fields.text("job"), std::nullopt};
    if (fields.has("plan")) before.plan = fields.text("plan");
    New now;
    now.job = fields.text("new_job");
    now.plan = fields.text("new_plan");
    if (fields.has("event")) {  // earlier versions wrote none
      now.event = fields.at("event");
      check_event(now.event, file.string() + ": event");
    }
    now.workers_before = fields.integer_or("workers", 0, 0, kMostWorkers);
    return PlanChange(folder, std::move(before), std::move(now));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) throw;  // it cannot be read now
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
    if (plan_text(folder) != found->now_.plan) found->write({job, found->now_.plan});
    if (found->is_told()) {  // it was killed before it had removed the file
      found->drop();
      return std::nullopt;
    }
    if (!found->has_saved()) return found;
    found->accept();
    return std::nullopt;
  }
  if (job == found->before_.job) {  // it was killed before the change began, or when it had ended
    found->write(found->before_);
    found->drop();
  } else {  // somebody knows better
    found->drop();
  }
  return std::nullopt;
}

std::optional<std::string> PlanChange::job_before(const run::RunFolder& folder) {
  const std::optional<PlanChange> found = read(folder);
  if (!found || found->has_saved() || found->is_told() ||
      read_file(folder.job_file()) != found->now_.job)
    return std::nullopt;
  return found->before_.job;
}

// Of two changes in a row the second one was compared with the job of before both (job_before()).
PlanChange PlanChange::put(const run::RunFolder& folder, New now) {
  const std::optional<PlanChange> open = left_open(folder);
  Texts before = open ? open->before_ : Texts{read_file(folder.job_file()), plan_text(folder)};
  if (open && open->now_.workers_before > 0) now.workers_before = open->now_.workers_before;
  // Else a kill behind the next write would leave a job that is neither of the two that it names,
  // as if somebody had written another one.
  if (open && open->now_.job != now.job) open->write(before);
  PlanChange out(folder, std::move(before), std::move(now));
  nlohmann::json value = {{"job", out.before_.job},
                          {"new_job", out.now_.job},
                          {"new_plan", out.now_.plan},
                          {"workers", out.now_.workers_before}};
  if (out.before_.plan) value["plan"] = *out.before_.plan;
  if (out.now_.event.is_object()) value["event"] = out.now_.event;
  write_file_atomic(former_plan(folder), dump_json(value) + "\n");
  out.write({out.now_.job, out.now_.plan});
  return out;
}

// Whether there is a checkpoint of a later step than the one from which the new plan went on.
bool PlanChange::has_saved() const {
  if (!now_.event.is_object()) return false;
  const auto saved = ckpt::list(folder_.checkpoints());
  return !saved.empty() && saved.front().step > now_.event.at("step").get<int64_t>();
}

// Whether events.jsonl tells of it, which is written once it is accepted.
bool PlanChange::is_told() const {
  const fs::path file = folder_.events_file();
  if (!now_.event.is_object() || !fs::is_regular_file(file)) return false;
  bool told = false;
  run::for_each_diary_line(file, [&](const nlohmann::json& line) { told |= line == now_.event; });
  return told;
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

// Told first: no change goes untold, and of one that is told the next process knows that it is
// accepted.
void PlanChange::accept() {
  if (!open_) return;
  if (now_.event.is_object()) {
    run::Diary diary(folder_.events_file());
    diary.append(now_.event);
    if (!diary.take_trouble().empty()) return;  // as of a full disk: it is told later
  }
  drop();
}

void PlanChange::drop() {
  if (!std::exchange(open_, false)) return;
  std::error_code ignored;  // a file that stays is looked at again
  fs::remove(former_plan(folder_), ignored);
}

bool PlanChange::stays() {
  if (open_ && !has_saved()) return false;
  accept();  // where it cannot be told now, the file waits for the next one
  return true;
}

bool PlanChange::take_back() {
  if (stays()) return false;
  write(before_);
  drop();
  return true;
}

}  // namespace ductile::link
