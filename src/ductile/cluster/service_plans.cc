// Jobs by stages: which of its plans a job is begun with, and what is told of its pipelines.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/options.h"
#include "ductile/base/paths.h"
#include "ductile/cluster/service_impl.h"
#include "ductile/run/folder.h"

namespace ductile::cluster {
namespace {

std::string text_of_stages(spec::PipelinedOptions options) { return OptionSet(options).to_toml(); }

// Whoever resumes a run by hand may have changed the order of its stages' tasks, but neither the
// numbers of its stages nor those of its pipelines.
std::optional<size_t> place_of(const spec::TrainOptions& run, const std::vector<TrainPlan>& plans) {
  std::optional<size_t> alike;
  for (size_t i = 0; i < plans.size(); ++i) {
    const TrainPlan& plan = plans[i];
    if (plan.virtual_ranks != run.virtual_ranks ||
        plan.pipelined.replicas != run.pipelined.replicas)
      continue;
    if (text_of_stages(plan.pipelined) == text_of_stages(run.pipelined)) return i;
    if (!alike) alike = i;
  }
  return alike;
}

}  // namespace

// It is read from the run, since a service may be killed when the run is there and the store knows
// nothing of it. None: it has not begun, or has one plan only.
std::optional<size_t> Service::Impl::plan_of_run(const Live& live) const {
  if (live.plans.size() < 2 || live.record.run.empty()) return std::nullopt;
  const fs::path file = live.run / "job.toml";
  if (kind_of(file) == FileKind::none) return std::nullopt;
  spec::JobOptions saved;
  OptionSet(saved).read_toml(run::RunFolder::open(live.run).job_file(), Moved::follow);
  return place_of(saved.train, live.plans);
}

void Service::Impl::keep_plan_of_run(Live& live) {
  try {
    if (const auto known = plan_of_run(live)) keep_plan(live, *known);
  } catch (const Error&) {  // a run that cannot be read now is read again when its job starts
  }
}

void Service::Impl::keep_plan(Live& live, size_t chosen) {
  TrainPlan plan = std::move(live.plans.at(chosen));
  live.plans.clear();
  follow_plan(std::get<spec::JobOptions>(live.work), plan);
  live.plans.push_back(std::move(plan));
  scheduler_.keep_plan(live.record.id, chosen);
}

// Before the first process of a job that came with several plans: the plan that is best on what the
// job holds. It stays with it, as each plan has a result of its own; so it is an event.
void Service::Impl::settle_plan(Live& live, const spec::Allocation& devices) {
  if (live.plans.size() < 2) return;
  const JobId id = live.record.id;
  // What is not to be seen now may have begun, by a plan that must stay.
  require_folder_of_runs(runs_, live.run);
  const std::optional<size_t> known = plan_of_run(live);
  if (!known && devices.empty())
    fail(ErrorCode::unavailable, "it has not begun, and there are no devices for it now");
  const size_t count = live.plans.size();
  keep_plan(live, known ? *known : scheduler_.best_plan(id, devices));
  show_pipelines(live);
  // It was granted these when its run could not be seen.
  if (const int64_t most = live.plans.front().virtual_ranks; spec::device_count(devices) > most)
    fail(ErrorCode::unavailable, "it goes on by plan {} of {}, which takes {} devices at most",
         live.plans.front().place + 1, count, most);
  if (known) return;
  const TrainPlan& plan = live.plans.front();
  const StagePlan shape = stage_plans(live.work, live.plans).front();
  const nlohmann::json body = {
      {"plan", plan.place + 1},
      {"pipelines", shape.pipelines},
      {"devices_of_one", shape.devices},
      {"predicted_seconds", plan.seconds},
      {"reason",
       fmt::format("It is trained by plan {} of {}, whose result is its own: {} pipeline{} of {} "
                   "device{}.",
                   plan.place + 1, count, shape.pipelines, shape.pipelines == 1 ? "" : "s",
                   shape.devices, shape.devices == 1 ? "" : "s")}};
  writer_.write([id, body = dump_json(body)](Change& change) {
    change.record(id, "plan", body, wall_seconds());
  });
}

// For the report of its run, which does not have it yet; empty: there is none.
std::string Service::Impl::plan_text(const Live& live) {
  if (live.plans.empty() || kind_of(live.run / "plan.json") != FileKind::none) return "";
  const nlohmann::json spec =
      parse_json(reader_.spec(live.record.id), "spec", ErrorCode::data_loss);
  return spec.at("plans").at(live.plans.front().place).value("plan", "");
}

void Service::Impl::show_pipelines(const Live& live) {
  const std::vector<StagePlan> plans = stage_plans(live.work, live.plans);
  if (plans.empty() || !scheduler_.knows(live.record.id)) return;
  const std::vector<int32_t> sizes = scheduler_.whole_sizes(live.record.id);
  if (sizes.empty() && plans.front().devices == 1) return;  // a job like any other
  StagedFigures figures;
  figures.devices = plans.front().devices;
  figures.pipelines = plans.front().pipelines;
  figures.least = sizes.empty() ? 0 : sizes.front();
  figures.plans = static_cast<int64_t>(plans.size());
  view_.set_staged(live.record.id, figures);
}

}  // namespace ductile::cluster
