#include "ductile/cluster/scheduler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/cluster/scheduler_impl.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/sched/queueing.h"

namespace ductile::cluster {
namespace {

// How much of an estimate the newest pause is: of the job's own ones, and of those of all jobs.
constexpr double kOwnShare = 0.5, kSharedShare = 0.2;
constexpr int kOthersTurn = 3;
// Until a service's rate is measured: requests that one replica answers within the target.
constexpr double kFirstRate = 10;

// Devices of each node that are held once the decisions are carried out.
std::map<int32_t, int32_t> used_after(const sched::Round& round,
                                      const sched::Decisions& decisions) {
  std::map<JobId, const sched::Allocation*> after;
  for (const sched::JobView& job : round.jobs) after[job.id] = &job.allocation;
  for (const sched::Decision& change : decisions.changes) after[change.job] = &change.allocation;
  std::map<int32_t, int32_t> used;
  for (const auto& [id, allocation] : after)
    for (const sched::NodeShare& share : *allocation) used[share.node] += share.devices;
  return used;
}

// Some published policies know no least number of devices, and none changes what runs because its
// user wants another number. What is less than a job needs is made up to it where the node has room
// beside everything else, and is nothing where it has not; what is more than it wants is cut.
void keep_bounds(const sched::Round& round, sched::Decisions& decisions) {
  std::map<JobId, size_t> decided;
  for (size_t i = 0; i < decisions.changes.size(); ++i) decided[decisions.changes[i].job] = i;
  std::map<int32_t, int32_t> used = used_after(round, decisions);
  for (const sched::JobView& job : round.jobs) {
    const auto found = decided.find(job.id);
    const bool changes = found != decided.end();
    sched::Decision change =
        changes ? decisions.changes[found->second] : sched::Decision{job.id, job.allocation, ""};
    int32_t given = sched::device_count(change.allocation);
    if (given == 0 || (given >= job.min_devices && given <= job.max_devices)) continue;
    for (; given > job.max_devices; --given) {
      sched::NodeShare& last = change.allocation.back();
      --used[last.node];
      change.reason = fmt::format("its user wants at most {} devices", job.max_devices);
      if (--last.devices == 0) change.allocation.pop_back();
    }
    const int32_t missing = job.min_devices - given;
    if (missing > 0 && used[change.allocation.front().node] + missing <=
                           round.cluster.usable(change.allocation.front().node)) {
      used[change.allocation.front().node] += missing;
      change.allocation.front().devices += missing;
      if (change.reason.empty())
        change.reason = fmt::format("its user wants at least {} devices", job.min_devices);
    } else if (missing > 0) {
      for (const sched::NodeShare& each : change.allocation) used[each.node] -= each.devices;
      change.allocation.clear();
      change.reason = fmt::format("waits for {} devices at once", job.min_devices);
    }
    if (changes)
      decisions.changes[found->second] = std::move(change);
    else
      decisions.changes.push_back(std::move(change));
  }
}

// Why a job waits for its team's quota, of which `room` is left by those that come before it.
std::string text_of_quota(int64_t asked, int64_t quota, int64_t room, bool of_devices) {
  if (!of_devices) return "its team holds its quota of GPUs";
  if (asked > quota)
    return fmt::format("waits: it asks for {} devices, and its team's quota is {}", asked, quota);
  if (room <= 0) return "its team holds its quota";
  return fmt::format("waits: it asks for {} devices, and its team has {} left of its quota of {}",
                     asked, room, quota);
}

// A job is preempted for another one, or because its node goes, never for nobody. A published
// policy that does not know a job's least number of devices takes what the job holds for a mistake
// of its own, and would let it wait beside idle devices.
template <class TakesGpus>
void keep_what_nobody_takes(const sched::Round& round, sched::Decisions& decisions,
                            const TakesGpus& takes_gpus) {
  std::map<JobId, const sched::JobView*> jobs;
  for (const sched::JobView& job : round.jobs) jobs.emplace(job.id, &job);
  std::map<int32_t, int32_t> used = used_after(round, decisions);
  std::erase_if(decisions.changes, [&](const sched::Decision& change) {
    const sched::JobView& job = *jobs.at(change.job);
    const sched::Allocation& held = job.allocation;
    const int32_t devices = sched::device_count(held);
    if (!change.allocation.empty() || devices == 0) return false;
    if (devices < job.min_devices || devices > job.max_devices) return false;
    const bool fits = std::ranges::all_of(held, [&](const sched::NodeShare& share) {
      return used[share.node] + share.devices <= round.cluster.usable(share.node);
    });
    if (!fits || !takes_gpus(job.id, held.front().node)) return false;
    for (const sched::NodeShare& share : held) used[share.node] += share.devices;
    return true;
  });
}

}  // namespace

Scheduler::Scheduler(const spec::Cluster& cluster, std::string_view policy, double interval)
    : interval_(interval),
      policy_name_(policy),
      cluster_(sched::cluster_of(cluster)),
      policy_(sched::make_policy(policy, {.interval = interval})),
      fits_(policy_->traits().fit_least_gain),
      pause_(kFirstPause),
      gpus_(cluster_.node_up.size()),
      lost_gpus_(gpus_.size()),
      devices_(cluster_.node_devices) {}

void Scheduler::add(const JobDemand& demand) {
  DUCTILE_CHECK(!jobs_.contains(demand.id), "job {} was added twice", demand.id);
  Job job;
  if (!demand.plans.empty()) job.staged = std::make_unique<JobDemand>(demand);
  set_agent(job, demand);
  sched::JobView& view = job.view;
  view.id = demand.id;
  view.name = demand.name;
  view.arrival = demand.arrival;
  view.tier = demand.tier;
  view.team = demand.team;
  view.region = region_named(demand.region);
  view.transfer_seconds = demand.transfer;
  view.movable = demand.movable || view.region < 0;
  view.saves = !demand.rigid;
  job.total_steps = static_cast<double>(demand.total_steps);
  job.batch_parts = demand.batch_parts;
  job.one_node = demand.one_node || demand.gpus > 0;
  job.gpus = demand.gpus;
  job.batch = demand.batch;
  if (demand.target) {
    view.service.emplace();
    view.service->target = *demand.target;
    view.service->rate.assign(cluster_.types.size(), kFirstRate / *demand.target);
    bound_service(view, demand.min_devices, demand.max_devices);
  }
  job.accounted = demand.arrival;
  jobs_.emplace(demand.id, std::move(job));
  take_back(demand.id);
}

int32_t Scheduler::region_named(std::string_view name) const {
  const auto found = std::ranges::find(cluster_.regions, name);
  if (found == cluster_.regions.end()) return -1;
  return static_cast<int32_t>(found - cluster_.regions.begin());
}

int32_t Scheduler::region_of(int32_t node) const {
  const int32_t cluster = cluster_.node_cluster[static_cast<size_t>(node)];
  return cluster_.cluster_region[static_cast<size_t>(cluster)];
}

// A policy that does not know services has a rigid job that keeps its floor.
void Scheduler::bound_service(sched::JobView& view, int32_t least, int32_t most) const {
  const bool serves = policy_->traits().serves;
  view.scaling = sched::Scaling::rigid;
  view.preemptible = serves;
  view.requested_devices = least;
  view.min_devices = serves ? 1 : least;
  view.max_devices = serves ? most : least;
  view.service->floor = least;
  view.service->spread = true;
  for (sched::TypeModel& type : view.types) type.max_useful = view.max_devices;
}

bool Scheduler::served(JobId id, const ServiceLoad& load) {
  Job& job = jobs_.at(id);
  sched::ServiceView& service = *job.view.service;
  service.load = load.load;
  service.peak = load.peak;
  if (load.rate > 0) service.rate.assign(cluster_.types.size(), load.rate);
  const int32_t has = sched::device_count(job.granted.value_or(job.view.allocation));
  return policy_->traits().serves && has < job.view.max_devices &&
         sched::replicas_needed(std::max(load.load, load.peak), service.rate.front(),
                                service.target, service.goal, service.floor) > has;
}

std::optional<int64_t> Scheduler::service_needs(JobId id) const {
  constexpr double kKeepFor = 1.1;  // as the policy does
  const sched::JobView& view = jobs_.at(id).view;
  if (!view.service) return std::nullopt;
  if (!policy_->traits().serves) return view.max_devices;
  const sched::ServiceView& service = *view.service;
  const int32_t needed =
      sched::replicas_needed(kKeepFor * std::max(service.load, service.peak), service.rate.front(),
                             service.target, service.goal, service.floor);
  return std::min(needed, view.max_devices);
}

void Scheduler::remove(JobId id, bool ended) {
  if (ended) {
    aside_.erase(id);
  } else {
    policy_->forget(id);
    set_aside(id);
  }
  scattered_.erase(id);
  without_gpus_.erase(id);
  if (claim_ && claim_->job == id) claim_.reset();
  jobs_.erase(id);
}

// As far as the policy uses it.
int32_t Scheduler::most_batch(const Job& job) {
  const sched::AgentFacts& facts = job.agent->facts();
  return job.agent->scaling() == sched::Scaling::adaptive ? facts.types.front().limits.max_batch
                                                          : facts.requested_batch;
}

void Scheduler::set_bounds(JobId id, int32_t least, int32_t most) {
  Job& job = jobs_.at(id);
  sched::JobView& view = job.view;
  if (view.min_devices != least) {  // it asks for something else from now on
    if (claim_ && claim_->job == id) claim_.reset();
    job.lacks_since.reset();
  }
  if (job.staged) {
    job.staged->min_devices = least;
    job.staged->max_devices = most;
    set_agent_anew(job);
    least = view.min_devices, most = view.max_devices;
  } else if (view.service) {
    bound_service(view, least, most);
    least = view.min_devices, most = view.max_devices;
  } else {
    view.requested_devices = view.min_devices = least;
    view.max_devices = most;
  }
  for (sched::TypeModel& type : view.types)
    if (!view.service && !job.staged)
      type.max_useful =
          view.scaling == sched::Scaling::rigid ? least : std::min(most_batch(job), most);
  if (!job.granted || job.granted->empty()) return;
  const int32_t coming = sched::device_count(*job.granted);
  if (coming < least || coming > most) job.granted.reset();
}

// Of each team with a quota, as the jobs of the highest tier, and of these the oldest, fit into it:
// what would be too much waits unseen, and nobody grows beyond it. What runs counts first.
std::vector<sched::JobView> Scheduler::within_quotas(std::vector<sched::JobView> views) {
  over_quota_.clear();
  for (const sched::Team& team : cluster_.teams) {
    if (team.quota <= 0) continue;
    std::vector<sched::JobView*> jobs;
    for (sched::JobView& view : views)
      if (view.team == team.id) jobs.push_back(&view);
    std::ranges::stable_sort(jobs, [](const sched::JobView* a, const sched::JobView* b) {
      return std::pair(a->tier, a->arrival) < std::pair(b->tier, b->arrival);
    });
    const auto gpu_quota = gpu_quotas_.find(static_cast<int32_t>(team.id));
    int64_t room = team.quota,
            gpus = gpu_quota == gpu_quotas_.end() ? INT64_MAX : gpu_quota->second;
    for (const sched::JobView* job : jobs) {
      room -= sched::device_count(job->allocation);
      if (!job->allocation.empty()) gpus -= jobs_.at(job->id).gpus;
    }
    std::vector<std::pair<sched::JobView*, int32_t>> seen;
    for (sched::JobView* job : jobs) {
      const int32_t held = sched::device_count(job->allocation);
      const int32_t base = std::max(held, job->min_devices);
      const int32_t new_gpus = held == 0 ? jobs_.at(job->id).gpus : 0;
      if (held == 0 && (base > room || new_gpus > std::max<int64_t>(0, gpus))) {
        over_quota_[job->id] = text_of_quota(base, team.quota, room, base > room);
        continue;
      }
      room -= base - held;
      gpus -= new_gpus;
      seen.emplace_back(job, base);
    }
    for (const auto& [job, base] : seen) {
      const auto more =
          static_cast<int32_t>(std::clamp<int64_t>(room, 0, std::max(0, job->max_devices - base)));
      room -= more;
      if (base + more >= job->max_devices) continue;
      job->max_devices = base + more;
      job->quota = static_cast<int32_t>(std::min<int64_t>(team.quota, INT32_MAX));
    }
  }
  std::erase_if(views, [&](const sched::JobView& view) { return over_quota_.contains(view.id); });
  return views;
}

// Policies place jobs across nodes. One that has to be on a single node, and was given parts of
// several when it was looked at last, would otherwise have these kept free for it for nothing.
// These are `hidden` from the policy.
std::vector<sched::JobView> Scheduler::that_fit_a_node(std::vector<sched::JobView> views,
                                                       std::vector<sched::JobView>& hidden) {
  const bool claim_fits = claim_has_devices(views);
  std::erase_if(views, [&](const sched::JobView& view) {
    const auto found = scattered_.find(view.id);
    if (found == scattered_.end()) return false;
    const bool claims = claim_ && claim_->job == view.id;
    if (claims && claim_fits) found->second = 0;
    if ((claims && !claim_fits) || (view.allocation.empty() && found->second-- > 0)) {
      hidden.push_back(view);
      return true;
    }
    scattered_.erase(found);
    return false;
  });
  return views;
}

// Moves what it was given to a node that has room for all of it beside everything else, and the
// GPUs that it asks for.
void Scheduler::keep_on_one_node(const sched::Round& round, sched::Decisions& decisions) {
  std::map<int32_t, int32_t> used = used_after(round, decisions);
  std::map<int32_t, int32_t> gpus = gpus_after(round.jobs, decisions);
  std::map<JobId, const sched::JobView*> before;
  for (const sched::JobView& view : round.jobs) before[view.id] = &view;
  std::vector<sched::Decision*> moves;
  for (sched::Decision& change : decisions.changes) {
    const Job& job = jobs_.at(change.job);
    if (!job.one_node || change.allocation.empty()) continue;
    // Who stays does so where GPUs have failed since, too.
    if (change.allocation == before.at(change.job)->allocation) continue;
    gpus[change.allocation.front().node] -= job.gpus;
    moves.push_back(&change);
  }
  std::ranges::stable_sort(moves, {}, [&](const sched::Decision* change) {
    const sched::JobView& view = *before.at(change->job);
    return std::pair(view.tier, view.arrival);
  });
  for (sched::Decision* const move : moves) {
    sched::Decision& change = *move;
    const Job& job = jobs_.at(change.job);
    const int32_t first = change.allocation.front().node;
    const bool finds_gpus = job.gpus == 0 || gpus[first] + job.gpus + kept_gpus(job.view, first) <=
                                                 gpus_[static_cast<size_t>(first)];
    if (change.allocation.size() == 1 && finds_gpus) {
      gpus[first] += job.gpus;
      continue;
    }
    const int32_t devices = sched::device_count(change.allocation);
    for (const sched::NodeShare& share : change.allocation) used[share.node] -= share.devices;
    const int32_t best = best_node(round, job, devices, region_of(first), used, gpus);
    change.allocation.clear();
    if (best >= 0) {
      change.allocation = {{best, devices}};
      used[best] += devices;
      gpus[best] += job.gpus;
    } else {
      change.reason = lacks_on_a_node(job, devices);
      scattered_[change.job] = kOthersTurn;
    }
  }
}

void Scheduler::holds(JobId id, const spec::Allocation& allocation, double now) {
  Job& job = jobs_.at(id);
  sched::JobView& view = job.view;
  if (job.granted == allocation) job.granted.reset();
  if (claim_ && claim_->job == id && !allocation.empty()) claim_.reset();
  if (!allocation.empty() && view.region >= 0) view.region = region_of(allocation.front().node);
  if (view.allocation == allocation) return;
  if (std::exchange(job.held_before, std::nullopt) == allocation) {
    view.allocation = allocation;
    return;
  }
  view.attained_service +=
      sched::device_count(view.allocation) * std::max(0.0, now - job.accounted);
  job.accounted = now;
  if (view.allocation.empty()) job.works = false;
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
  job.works = true;
  const int32_t devices = sched::device_count(held);
  const int32_t type = cluster_.node_type[static_cast<size_t>(held.front().node)];
  if (!job.agent->facts().plans.empty()) {
    see_rate(job, {type, devices, samples_per_second});
    return;
  }
  // A replica is a device, or a whole pipeline. Of a part of one nothing is learnt.
  const int32_t unit = job.agent->facts().types[static_cast<size_t>(type)].unit;
  if (devices % unit != 0) return;
  const int32_t replicas = devices / unit;
  const auto batch = static_cast<double>(job.batch);
  sched::StepSample sample;
  sample.nodes = std::min(static_cast<int32_t>(held.size()), replicas);
  sample.replicas = replicas;
  sample.local_batch = std::max(1, static_cast<int32_t>(std::ceil(batch / replicas)));
  sample.step_seconds = batch / samples_per_second;
  if (replicas == 1) job.rate_of_one = samples_per_second;
  // The rest of a step is the exchange; without a run on one replica it cannot be told apart.
  const double gradient =
      job.rate_of_one > 0 ? batch / replicas / job.rate_of_one : sample.step_seconds;
  sample.gradient_seconds = std::min(gradient, sample.step_seconds);
  job.agent->observe(type, sample);
  note_of_kind(job, type, sample);
}

void Scheduler::trains_with(JobId id, int64_t batch, std::optional<double> noise_scale) {
  Job& job = jobs_.at(id);
  if (batch >= 1 && batch <= most_batch(job)) job.batch = batch;
  // The unit of the estimates is of no consequence: only their ratio counts.
  if (noise_scale && std::isfinite(*noise_scale))
    job.agent->observe(sched::GradientNoise{1, *noise_scale / job.agent->facts().requested_batch});
}

int64_t Scheduler::best_batch(JobId id) {
  Job& job = jobs_.at(id);
  const sched::Allocation& held = job.view.allocation;
  if (job.agent->scaling() != sched::Scaling::adaptive || held.empty() || !job.agent->noise())
    return 0;
  job.agent->models(job.view);
  const int32_t type = cluster_.node_type[static_cast<size_t>(held.front().node)];
  const sched::TypeModel& model = job.view.types[static_cast<size_t>(type)];
  if (!model.fitted && !model.steps) return 0;
  const int32_t devices = sched::device_count(held);
  const sched::BatchChoice choice =
      job.agent->choose_batch({type, static_cast<int32_t>(held.size()), devices, 0});
  const int64_t whole = int64_t{choice.local_batch} * (choice.accumulation + 1) * devices;
  const int64_t parts = job.batch_parts;
  return std::clamp<int64_t>(whole, job.agent->facts().requested_batch, most_batch(job)) / parts *
         parts;
}

void Scheduler::progress(JobId id, int64_t steps, int64_t total_steps) {
  Job& job = jobs_.at(id);
  if (steps < 0 || total_steps < 0) return;
  job.view.progress = static_cast<double>(steps);
  job.total_steps = static_cast<double>(total_steps);
}

void Scheduler::paused(JobId id, double seconds, bool at_start) {
  if (!(seconds >= 0) || !std::isfinite(seconds)) return;
  seconds = std::min(seconds, kLongestPause);
  Job& job = jobs_.at(id);
  if (!at_start) {
    const auto newer = [&](std::optional<double>& known, double share) {
      known = known ? std::lerp(*known, seconds, share) : seconds;
    };
    newer(job.change, kOwnShare);
    newer(change_, kSharedShare);
    return;
  }
  job.pause = job.pause > 0 ? std::lerp(job.pause, seconds, kOwnShare) : seconds;
  pause_ = std::lerp(pause_, seconds, kSharedShare);
}

std::optional<spec::Allocation> Scheduler::on_its_way(JobId id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? std::nullopt : found->second.granted;
}

void Scheduler::withdrawn(JobId id) {
  if (const auto found = jobs_.find(id); found != jobs_.end()) found->second.granted.reset();
}

// What is the matter with the nodes that such a job has to leave.
std::string Scheduler::why_gone(const spec::Allocation& had) const {
  for (const auto* out : {&drained_, &away_}) {
    std::string text;
    for (const spec::NodeShare& share : had)
      if (const auto found = out->find(share.node); found != out->end() && !found->second.empty())
        text += (text.empty() ? "" : "; ") + found->second;
    if (!text.empty()) return text;
  }
  return "a node is drained, lost or away";
}

std::vector<Allotment> Scheduler::decide(double now) {
  now_ = now;
  see_nodes();
  std::vector<sched::JobView> views;
  for (auto& [id, job] : jobs_) {
    job.view.attained_service +=
        sched::device_count(job.view.allocation) * std::max(0.0, now - job.accounted);
    job.accounted = std::max(job.accounted, now);
    job.agent->models(job.view);
    if (!job.seen.empty()) job.view.plans = plans_now(job);
    if (job.total_steps > 0) {
      const double left = std::max(0.0, job.total_steps - job.view.progress);
      const double scale = static_cast<double>(job.batch) / job.agent->facts().requested_batch;
      job.view.remaining_steps = left * scale;
      job.view.remaining =
          left * (job.agent->noise() ? noise::gain(*job.agent->noise(), scale) : scale);
    }
    views.push_back(view_of(job, now));
  }
  tell_speeds(views);
  without_gpus_.clear();
  choose_claim(views, now);
  const std::map<JobId, std::string> taken = take_gpus(views, now);
  // Also of those that are not shown to the policy now.
  std::map<JobId, Allotment> out;
  for (const sched::JobView& view : views) {
    const Job& job = jobs_.at(view.id);
    if (view.allocation == job.granted.value_or(job.view.allocation)) continue;
    const auto why = taken.find(view.id);
    out[view.id] = {
        view.id, view.allocation,
        why == taken.end() ? why_gone(job.granted.value_or(job.view.allocation)) : why->second};
  }
  // Whoever is stopped for another one may go on elsewhere once it has ended: until then it holds
  // what it is to give up.
  std::erase_if(views, [&](const sched::JobView& view) {
    return view.allocation.empty() && taken.contains(view.id);
  });
  views = within_quotas(that_find_gpus(std::move(views), false));  // they hold up nobody's quota
  std::vector<sched::JobView> hidden;
  views = that_fit_a_node(that_find_gpus(std::move(views), true), hidden);
  views.reserve(views.size() + hidden.size());  // the policy's round stays where it is
  for (sched::JobView& view : views) {
    if (!view.service) continue;
    if (!policy_->traits().serves)
      view.service.reset();
    else
      view.service->floor = std::min(view.service->floor, view.max_devices);
  }
  const sched::Round round{now, interval_, cluster_, views};
  sched::Decisions decisions = policy_->decide(round);
  keep_bounds(round, decisions);
  keep_claim(round, decisions);
  keep_on_one_node(round, decisions);
  std::ranges::move(hidden, std::back_inserter(views));
  const sched::Round whole{now, interval_, cluster_, views};
  keep_tiers(whole, decisions);
  std::map<int32_t, int32_t> gpus = gpus_after(views, decisions);
  keep_what_nobody_takes(whole, decisions,
                         [&](JobId id, int32_t node) { return takes_gpus(id, node, gpus); });
  keep_pipelines_whole(whole, decisions);
  sched::check_decisions(whole, decisions);
  for (sched::Decision& change : decisions.changes) {
    const Job& job = jobs_.at(change.job);
    if (change.allocation == job.granted.value_or(job.view.allocation))
      out.erase(change.job);
    else
      out[change.job] = {change.job, std::move(change.allocation), std::move(change.reason)};
  }
  std::vector<Allotment> list;
  for (auto& [id, allotment] : out) {
    Job& job = jobs_.at(id);
    job.granted = allotment.allocation;  // also of one that is to keep what it was to give up
    job.granted_at = now;
    allotment.reason += room_for_pipelines(job, allotment.allocation);
    list.push_back(std::move(allotment));
  }
  note_lacks(now);
  return list;
}

bool Scheduler::nothing_runs() const {
  return std::ranges::all_of(jobs_, [](const auto& one) {
    const Job& job = one.second;
    return job.view.allocation.empty() && (!job.granted || job.granted->empty());
  });
}

std::optional<double> Scheduler::efficiency(JobId id) const {
  const Job& job = jobs_.at(id);
  if (job.agent->scaling() != sched::Scaling::adaptive || !job.agent->noise()) return std::nullopt;
  const double scale = static_cast<double>(job.batch) / job.agent->facts().requested_batch;
  return noise::efficiency(*job.agent->noise(), scale);
}

}  // namespace ductile::cluster
