#include "ductile/cluster/scheduler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "ductile/base/error.h"

namespace ductile::cluster {
namespace {

// What a start or a change of allocation costs: a few seconds, since workers stay where they are.
constexpr double kRestartSeconds = 3;

sched::AgentFacts facts_of(const JobDemand& demand, const sched::Cluster& cluster) {
  sched::AgentFacts out;
  out.application = demand.application;
  out.scaling = sched::Scaling::strong;  // the batch is the job's own: its bits depend on it
  out.requested_replicas = demand.min_devices;
  out.requested_batch = demand.batch;
  out.most_devices = demand.max_devices;
  for (const std::string& type : cluster.types) {
    sched::AgentType known;
    known.name = type;
    known.limits = {demand.batch, demand.batch, 1, demand.batch};
    out.types.push_back(std::move(known));
  }
  return out;
}

// Some published policies know no least number of devices. What is less than a job needs is made up
// to it where the node has room beside everything else, and is nothing where it has not.
void give_least_or_nothing(const sched::Round& round, sched::Decisions& decisions) {
  std::map<JobId, const sched::JobView*> jobs;
  std::map<JobId, const sched::Allocation*> after;
  for (const sched::JobView& job : round.jobs) {
    jobs.emplace(job.id, &job);
    after[job.id] = &job.allocation;
  }
  for (const sched::Decision& change : decisions.changes) after[change.job] = &change.allocation;
  std::map<int32_t, int32_t> used;
  for (const auto& [id, allocation] : after)
    for (const sched::NodeShare& share : *allocation) used[share.node] += share.devices;
  for (sched::Decision& change : decisions.changes) {
    const auto job = jobs.find(change.job);
    const int32_t given = sched::device_count(change.allocation);
    if (given == 0 || job == jobs.end() || given >= job->second->min_devices) continue;
    sched::NodeShare& share = change.allocation.front();
    const int32_t missing = job->second->min_devices - given;
    if (used[share.node] + missing <= round.cluster.usable(share.node)) {
      used[share.node] += missing;
      share.devices += missing;
      continue;
    }
    for (const sched::NodeShare& each : change.allocation) used[each.node] -= each.devices;
    change.allocation.clear();
    change.reason = fmt::format("waits for {} devices at once", job->second->min_devices);
  }
}

}  // namespace

Scheduler::Scheduler(const spec::Cluster& cluster, std::string_view policy, double interval)
    : interval_(interval),
      cluster_(sched::cluster_of(cluster)),
      policy_(sched::make_policy(policy, {.interval = interval})),
      fits_(policy_->traits().fit_least_gain) {}

void Scheduler::add(const JobDemand& demand) {
  DUCTILE_CHECK(!jobs_.contains(demand.id), "job {} was added twice", demand.id);
  Job job;
  job.agent = std::make_unique<sched::JobAgent>(facts_of(demand, cluster_), policy_->traits(),
                                                fits_, &shared_);
  sched::JobView& view = job.view;
  job.agent->describe(view);
  view.id = demand.id;
  view.name = demand.name;
  view.application = demand.application;
  view.arrival = demand.arrival;
  view.tier = demand.tier;
  view.team = demand.team;
  view.min_devices = demand.min_devices;
  view.max_devices = demand.max_devices;
  view.restart_seconds = kRestartSeconds;
  job.accounted = demand.arrival;
  jobs_.emplace(demand.id, std::move(job));
}

void Scheduler::remove(JobId id) { jobs_.erase(id); }

void Scheduler::holds(JobId id, const spec::Allocation& allocation, double now) {
  Job& job = jobs_.at(id);
  sched::JobView& view = job.view;
  if (view.allocation == allocation) return;
  view.attained_service +=
      sched::device_count(view.allocation) * std::max(0.0, now - job.accounted);
  job.accounted = now;
  if (!allocation.empty()) {
    if (view.started < 0)
      view.started = now;
    else if (view.allocation.empty())
      ++view.restarts;
    view.last_change = now;
  }
  view.allocation = allocation;
}

void Scheduler::measured(JobId id, double samples_per_second) {
  Job& job = jobs_.at(id);
  const sched::Allocation& held = job.view.allocation;
  if (held.empty() || !(samples_per_second > 0) || !std::isfinite(samples_per_second)) return;
  const int32_t devices = sched::device_count(held);
  const double batch = job.agent->facts().requested_batch;
  sched::StepSample sample;
  sample.nodes = static_cast<int32_t>(held.size());
  sample.replicas = devices;
  sample.local_batch = std::max(1, static_cast<int32_t>(std::ceil(batch / devices)));
  sample.step_seconds = batch / samples_per_second;
  if (devices == 1) job.rate_of_one = samples_per_second;
  // The rest of a step is the exchange; without a run on one device it cannot be told apart.
  const double gradient =
      job.rate_of_one > 0 ? batch / devices / job.rate_of_one : sample.step_seconds;
  sample.gradient_seconds = std::min(gradient, sample.step_seconds);
  job.agent->observe(cluster_.node_type[static_cast<size_t>(held.front().node)], sample);
}

void Scheduler::progress(JobId id, int64_t steps, int64_t total_steps) {
  Job& job = jobs_.at(id);
  if (steps < 0 || total_steps < 0) return;
  job.view.progress = static_cast<double>(steps);
  job.total_steps = static_cast<double>(total_steps);
}

void Scheduler::drain(int32_t node, bool drained) {
  cluster_.node_up.at(static_cast<size_t>(node)) = drained ? 0 : 1;
}

std::vector<Allotment> Scheduler::decide(double now) {
  std::vector<sched::JobView> views;
  for (auto& [id, job] : jobs_) {
    job.view.attained_service +=
        sched::device_count(job.view.allocation) * std::max(0.0, now - job.accounted);
    job.accounted = std::max(job.accounted, now);
    job.agent->models(job.view);
    if (job.total_steps > 0)
      job.view.remaining = job.view.remaining_steps =
          std::max(0.0, job.total_steps - job.view.progress);
    views.push_back(job.view);
    // What it holds on a node that is not there any more is no device to a policy.
    sched::JobView& view = views.back();
    std::erase_if(view.allocation,
                  [&](const sched::NodeShare& share) { return cluster_.usable(share.node) == 0; });
    if (sched::device_count(view.allocation) < view.min_devices) view.allocation.clear();
  }
  const sched::Round round{now, interval_, cluster_, views};
  sched::Decisions decisions = policy_->decide(round);
  give_least_or_nothing(round, decisions);
  sched::check_decisions(round, decisions);
  std::vector<Allotment> out;
  std::set<JobId> named;
  for (sched::Decision& change : decisions.changes) {
    named.insert(change.job);
    out.push_back({change.job, std::move(change.allocation), std::move(change.reason)});
  }
  for (const sched::JobView& view : views)
    if (view.allocation != jobs_.at(view.id).view.allocation && !named.contains(view.id))
      out.push_back({view.id, view.allocation, "a node is drained or lost"});
  return out;
}

std::vector<double> Scheduler::modelled_speeds(JobId id) const {
  const Job& job = jobs_.at(id);
  sched::JobView view = job.view;
  job.agent->models(view);
  std::vector<double> out;
  if (view.allocation.empty()) return out;
  const auto node = static_cast<size_t>(view.allocation.front().node);
  const sched::TypeModel& model = view.types.at(static_cast<size_t>(cluster_.node_type[node]));
  if (!model.fitted && !model.steps) return out;
  const double batch = job.agent->facts().requested_batch;
  for (int32_t n = 1; n <= view.max_devices; ++n) {
    const double local = std::ceil(batch / n);
    const double seconds =
        model.steps ? model.steps->step_seconds(1, n, local)
                    : sched::step_seconds(model.perf, 1, n, static_cast<int32_t>(local), 0);
    if (!(seconds > 0)) return {};
    out.push_back(batch / seconds);
  }
  return out;
}

std::string Scheduler::why(JobId id) const { return policy_->explain(id); }

}  // namespace ductile::cluster
