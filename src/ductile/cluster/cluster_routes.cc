// Routes that tell what the service is just doing, and why.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/cluster/front_impl.h"
#include "ductile/cluster/routes_impl.h"
#include "ductile/cluster/why_impl.h"
#include "ductile/run/folder.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostDevices = 1 << 20;

// The step of the weights that the end of the run has left, as replicas count it.
std::optional<int64_t> final_step(const run::RunFolder& run) {
  if (kind_of(run.model_file()) == FileKind::none) return std::nullopt;
  const ckpt::SafetensorsFile file(run.model_file());
  const auto step = file.metadata().find("step");
  return step == file.metadata().end() ? 0 : std::strtoll(step->second.c_str(), nullptr, 10);
}

// Weights that the run does not have are refused at once, and not by each replica later. Of a run
// that cannot be seen now, as where its disk is not mounted, replicas say what is wrong.
void require_weights(JobId id, const fs::path& folder, int64_t step) {
  constexpr size_t kMostNamed = 20;
  if (kind_of(folder / "job.toml") == FileKind::none) return;
  const run::RunFolder run = run::RunFolder::open(folder);
  if (kind_of(run.checkpoints()) != FileKind::folder) return;
  std::set<int64_t, std::greater<>> steps;  // of a damaged one a replica says more
  for (const ckpt::CheckpointSummary& one : ckpt::list(run.checkpoints())) steps.insert(one.step);
  if (steps.contains(step)) return;
  if (const auto last = final_step(run)) steps.insert(*last);
  if (steps.contains(step)) return;
  std::string known;
  size_t named = 0;
  for (const int64_t other : steps) {
    if (++named > kMostNamed) break;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", other);
  }
  if (steps.size() > kMostNamed)
    known += fmt::format(" and {} older ones", steps.size() - kMostNamed);
  fail(ErrorCode::not_found, "job {}: its run {} has no weights of step {}; there are {}", id,
       folder.string(), step, known.empty() ? "none yet" : "those of the steps " + known);
}

}  // namespace

// One who names the least number and one who names the most may come at the same time: what a
// request does not name stays as it is when its change is made.
Answer resize_job(Request& request) {
  const JobRecord job = job_to_act_on(request);
  require_owner(request.call.principal, job);
  if (has_ended(job.phase))
    fail(ErrorCode::conflict, "job {} is {} already", job.id, to_string(job.phase));
  const nlohmann::json body = request.object();
  const JsonFields fields(body, "body");
  fields.only({"min_devices", "max_devices"});
  nlohmann::json spec = parse_json(request.reader.spec(job.id),
                                   fmt::format("the spec of job {}", job.id), ErrorCode::data_loss);
  const auto resized = [&](Submission wanted) {
    wanted.min_devices = fields.integer_or("min_devices", wanted.min_devices, 1, kMostDevices);
    wanted.max_devices = fields.integer_or(
        "max_devices", std::max(wanted.max_devices, wanted.min_devices), 1, kMostDevices);
    if (wanted.max_devices < wanted.min_devices)
      fail(ErrorCode::invalid_argument, "body: from {} to {} devices: the first must not be larger",
           wanted.min_devices, wanted.max_devices);
    request.check(wanted, spec, nullptr);
    return wanted;
  };
  resized(job.submission);
  return request.commit(200, [&](Change& change) -> nlohmann::json {
    const JobRecord now = change.job(job.id);
    const Submission wanted = resized(now.submission);
    if (now.submission.kind == "command" && now.phase == Phase::running)
      fail(ErrorCode::conflict,
           "job {} is a command, which keeps its devices while it runs; `ductile preempt {}` comes "
           "first",
           job.id, job.id);
    change.set_devices(job.id, wanted.min_devices, wanted.max_devices, request.call.principal.name,
                       request.now());
    return {
        {"id", job.id}, {"min_devices", wanted.min_devices}, {"max_devices", wanted.max_devices}};
  });
}

// The service hears of it by the event, also one that begins later.
Answer reload_job(Request& request) {
  const JobRecord job = job_to_act_on(request);
  require_owner(request.call.principal, job);
  const nlohmann::json body = request.object();
  const JsonFields fields(body, "body");
  fields.only({"version"});
  nlohmann::json wanted = {{"version", nullptr}, {"by", request.call.principal.name}};
  if (fields.has("version")) wanted["version"] = fields.integer("version", 0, kMostVersion);
  if (job.submission.kind != "serve")
    fail(ErrorCode::conflict, "job {} does not answer requests, so it has no weights to change",
         job.id);
  const nlohmann::json spec = parse_json(
      request.reader.spec(job.id), fmt::format("the spec of job {}", job.id), ErrorCode::data_loss);
  if (spec.value("follow", false))
    fail(ErrorCode::conflict, "job {} takes the newest weights of its run by itself", job.id);
  if (fields.has("version") && !has_ended(job.phase))
    require_weights(job.id, serve_of(spec).run, wanted.at("version").get<int64_t>());
  return request.commit(200, [&](Change& change) -> nlohmann::json {
    if (const Phase now = change.job(job.id).phase; has_ended(now))
      fail(ErrorCode::conflict, "job {} is {} already", job.id, to_string(now));
    change.record(job.id, kReload, dump_json(wanted), request.now());
    return {{"id", job.id}, {"version", wanted.at("version")}};
  });
}

namespace {

// "runs on 2 cpu".
std::string_view what_it_holds(std::string_view reason) {
  return reason.starts_with("runs on ") ? reason.substr(0, reason.find_first_of(",;:")) : "";
}

// Why a job waits changes with every other job, and the store hears of it only now and then. What
// is said of one that runs changes with its speed and with the others, while it keeps what it has.
void take_newest_reason(Request& request, JobRecord& job) {
  if (request.view() == nullptr) return;
  const auto live = request.view()->of(job.id);
  if (!live) return;
  using Moment = LiveState::Moment;
  if (job.phase == Phase::queued && live->moment == Moment::waiting && !live->text.empty())
    job.reason = live->text;
  const std::string_view holds = what_it_holds(job.reason);
  if (job.phase == Phase::running && live->moment == Moment::running && !holds.empty() &&
      what_it_holds(live->says) == holds)
    job.reason = live->says;
}

}  // namespace

Json shown_now(Request& request, const JobRecord& job) {
  JobRecord now = job;
  take_newest_reason(request, now);
  Json out = to_json(now);
  if (request.view() == nullptr || has_ended(job.phase)) return out;
  if (const auto training = request.view()->training(job.id)) {
    Json& progress = out["progress"];
    progress = {{"step", training->step}, {"total_steps", training->total_steps}};
    if (job.phase == Phase::running && training->rate > 0) {
      const double left =
          static_cast<double>(std::max<int64_t>(0, training->total_steps - training->step));
      progress["steps_per_second"] = training->rate;
      progress["seconds_left"] = left / training->rate;
    }
  }
  return out;
}

// What a service job is doing; of a job by stages, what one pipeline is, and what its plan has of
// them.
void show_live(Request& request, const JobRecord& job, nlohmann::ordered_json& out) {
  const LiveView* const view = request.view();
  if (view == nullptr || has_ended(job.phase)) return;
  if (const auto serving = view->serving(job.id)) out["serving"] = to_json(*serving);
  if (const auto staged = view->staged(job.id))
    out["stages"] = {{"devices", staged->devices},
                     {"pipelines", staged->pipelines},
                     {"least", staged->least},
                     {"plans", staged->plans}};
}

// The texts of plans are for reports, and may be long.
nlohmann::json spec_shown(Request& request, JobId job) {
  nlohmann::json spec = parse_json(request.reader.spec(job), fmt::format("the spec of job {}", job),
                                   ErrorCode::data_loss);
  if (const auto plans = spec.find("plans"); plans != spec.end())
    for (nlohmann::json& plan : *plans)
      if (plan.is_object()) plan.erase("plan");
  return spec;
}

std::string why(Request& request, const JobRecord& job) {
  WhyFacts facts;
  facts.job = job;
  facts.nodes = request.reader.nodes();
  facts.now = request.now();
  for (Drain& drain : request.reader.drains())
    if (drain.holds(facts.now)) facts.drains.push_back(std::move(drain));
  facts.holders = request.reader.holders();
  const LiveView* view = request.view();
  if (view == nullptr) return job.reason;
  take_newest_reason(request, facts.job);
  facts.live = view->of(job.id);
  facts.hardware = view->hardware();
  facts.gpus = view->gpus();
  facts.claim = view->claim();
  facts.staged = view->staged(job.id);
  if (const auto serving = view->serving(job.id)) facts.serving_trouble = serving->trouble;
  for (const auto& [id, serving] : view->serving()) facts.services.insert(id);
  if (job.phase == Phase::queued) facts.after = request.reader.awaited_by(job.id);
  std::tie(facts.above, facts.above_since) = view->above(job.id, job.submission.tier);
  const auto quota = view->quotas().find(job.submission.team);
  if (quota != view->quotas().end()) facts.quota = quota->second;
  const auto gpu_quota = view->gpu_quotas().find(job.submission.team);
  if (gpu_quota != view->gpu_quotas().end()) facts.gpu_quota = gpu_quota->second;
  const auto share = view->shares().find(job.submission.team);
  if (share != view->shares().end()) facts.share = share->second;
  return why(facts);
}

}  // namespace ductile::cluster
