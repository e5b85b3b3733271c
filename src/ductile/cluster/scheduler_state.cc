// What a Scheduler has learnt, as JSON.
#include <algorithm>
#include <memory>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json_fields.h"
#include "ductile/cluster/scheduler.h"

namespace ductile::cluster {

using nlohmann::json;

namespace {
constexpr const char* kWhere = "what the scheduler had learnt";
constexpr double kMost = 1e300;

// Of whom only the newest are kept.
constexpr size_t kMostSeenSizes = 64;

json held_of(const spec::Allocation& allocation) {
  json out = json::array();
  for (const spec::NodeShare& share : allocation) out.push_back({share.node, share.devices});
  return out;
}

}  // namespace

// Null: nothing was learnt, as of one that never ran; a hundred thousand of these may wait.
json Scheduler::state_of(JobId id, const Job& job) const {
  const sched::JobView& v = job.view;
  if (v.started < 0 && v.allocation.empty() && !job.held_before && v.progress <= 0) return nullptr;
  json out = {{"job", id},
              {"agent", job.agent->state()},
              {"service", v.attained_service},
              {"steps", v.progress},
              {"total_steps", job.total_steps},
              {"restarts", v.restarts},
              {"started", v.started},
              {"last_change", v.last_change},
              {"accounted", job.accounted},
              {"held", held_of(v.allocation)},
              {"rate_of_one", job.rate_of_one},
              {"pause", job.pause}};
  if (job.change) out["change"] = *job.change;
  for (const SeenRate& seen : job.seen) out["seen"].push_back({seen.type, seen.devices, seen.rate});
  if (v.region >= 0) out["region"] = cluster_.regions[static_cast<size_t>(v.region)];
  return out;
}

void Scheduler::set_aside(JobId id) {
  std::shared_ptr<const json>& kept = aside_[id];
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  json state = state_of(id, found->second);
  kept.reset();
  if (state.is_null()) return;
  state["held"] = json::array();  // whatever it held, it has given up when it goes on
  kept = std::make_shared<const json>(std::move(state));
}

// Of a job that goes on. What a damaged state said of it is learnt anew.
void Scheduler::take_back(JobId id) {
  const auto kept = aside_.extract(id);
  if (!kept || !kept.mapped()) return;
  try {
    restore_job(*kept.mapped(), now_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument && error.code() != ErrorCode::data_loss) throw;
  }
}

json Scheduler::state() const {
  json jobs = json::array();
  for (const auto& [id, job] : jobs_)
    if (json known = state_of(id, job); !known.is_null()) jobs.push_back(std::move(known));
  for (const auto& [id, known] : aside_)
    if (known) jobs.push_back(*known);
  json out = {
      {"policy", policy_name_},      {"types", cluster_.types}, {"memory", policy_->state()},
      {"measured", shared_.state()}, {"pause", pause_},         {"jobs", std::move(jobs)}};
  if (change_) out["change"] = *change_;
  return out;
}

void Scheduler::restore_job(const json& item, double now) {
  const JsonFields f(item, kWhere);
  f.only({"job", "agent", "service", "steps", "total_steps", "restarts", "started", "last_change",
          "accounted", "held", "rate_of_one", "pause", "change", "region", "seen"});
  const JobId id = f.integer("job", 0, INT64_MAX);
  if (const auto rests = aside_.find(id); rests != aside_.end()) {
    rests->second = std::make_shared<const json>(item);
    return;
  }
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;  // it has ended
  Job& job = found->second;
  const double service = f.number("service", 0, kMost), started = f.number("started", -1, kMost),
               steps = f.number("steps", 0, kMost), total = f.number("total_steps", 0, kMost),
               last_change = f.number("last_change", -1, kMost),
               accounted = f.number("accounted", 0, kMost),
               rate = f.number("rate_of_one", 0, kMost),
               // States of before 2026-11 have none.
      pause = item.contains("pause") ? f.number("pause", 0, kLongestPause) : 0;
  std::optional<double> change;
  if (item.contains("change")) change = f.number("change", 0, kLongestPause);
  spec::Allocation held;
  for (const json& share : f.array("held")) {
    if (!share.is_array() || share.size() != 2) f.wrong("held", "a list of [node, devices]", share);
    held.push_back({static_cast<int32_t>(f.as_integer(share[0], "held", 0, INT32_MAX)),
                    static_cast<int32_t>(f.as_integer(share[1], "held", 1, INT32_MAX))});
  }
  std::vector<SeenRate> seen;  // of jobs by stages
  if (item.contains("seen")) {
    for (const json& one : f.array("seen")) {
      if (!one.is_array() || one.size() != 3 || seen.size() == kMostSeenSizes)
        f.wrong("seen", "a list of at most 64 [type, devices, samples per second]", one);
      seen.push_back({static_cast<int32_t>(f.as_integer(one[0], "seen", 0, INT32_MAX)),
                      static_cast<int32_t>(f.as_integer(one[1], "seen", 1, INT32_MAX)),
                      f.as_number(one[2], "seen", 1e-300, kMost)});
    }
  }
  const int32_t region = item.contains("region") ? region_named(f.text("region")) : -1;
  const auto restarts = static_cast<int32_t>(f.integer("restarts", 0, INT32_MAX));
  job.agent->restore(f.at("agent"), fmt::format("{}: job {}", kWhere, found->first));
  job.view.attained_service = service;
  job.view.started = std::min(started, now);
  job.view.progress = steps;
  if (total > 0) job.total_steps = total;
  job.view.restarts = restarts;
  job.view.last_change = std::min(last_change, now);
  if (job.view.region >= 0 && job.view.movable && region >= 0) job.view.region = region;
  job.accounted = std::min(accounted, now);
  job.held_before = std::move(held);
  job.rate_of_one = rate;
  job.pause = pause;
  job.change = change;
  if (!job.agent->facts().plans.empty()) job.seen = std::move(seen);
}

void Scheduler::restore(const json& state, double now) {
  now_ = now;
  try {
    const JsonFields f(state, kWhere);
    f.only({"policy", "types", "memory", "measured", "pause", "change", "jobs"});
    // Of another policy, or of other devices, nothing is of use.
    if (f.text("policy") != policy_name_ || f.array("types") != json(cluster_.types)) return;
    shared_.restore(f.at("measured"), kWhere);
    if (state.contains("pause")) pause_ = f.number("pause", 0, kLongestPause);
    if (state.contains("change")) change_ = f.number("change", 0, kLongestPause);
    for (const json& item : f.array("jobs")) restore_job(item, now);
    // While there was no service, jobs may have gone on, or the machine was off: a round counts.
    for (auto& [id, job] : jobs_) job.accounted = std::clamp(job.accounted, now - interval_, now);
    policy_->restore(f.at("memory"), kWhere);
  } catch (const Error& error) {
    shared_.restore(json::array(), kWhere);
    pause_ = kFirstPause;
    change_.reset();
    for (auto& [id, known] : aside_) known.reset();
    for (auto& [id, job] : jobs_) {
      job.agent =
          std::make_unique<sched::JobAgent>(job.agent->facts(), policy_->traits(), fits_, &shared_);
      job.view.attained_service = job.view.progress = job.rate_of_one = job.pause = 0;
      job.view.started = job.view.last_change = -1;
      job.accounted = job.view.arrival;
      job.held_before.reset();
      job.change.reset();
      job.view.restarts = 0;
      if (!job.seen.empty()) job.view.plans = job.agent->facts().plans;
      job.seen.clear();
    }
    if (error.code() != ErrorCode::invalid_argument && error.code() != ErrorCode::data_loss) throw;
    fail(ErrorCode::data_loss, "{}; it is learnt anew", error.message());
  }
}

}  // namespace ductile::cluster
