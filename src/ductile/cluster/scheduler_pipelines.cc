// What jobs are to their policy; of jobs by stages, the numbers of devices that they are given,
// which are those of whole pipelines, and what is known of their times.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/control/ranges.h"

namespace ductile::cluster {
namespace {

constexpr size_t kMostSeen = 64;

sched::AgentFacts facts_of(const JobDemand& demand, const sched::Cluster& cluster) {
  sched::AgentFacts out;
  out.application = demand.application;
  // The batch is the job's own, since its bits depend on it, unless the job records what is
  // ordered.
  const bool rigid = demand.rigid || demand.target;
  const int32_t most = rigid ? demand.batch : std::max(demand.batch, demand.most_batch);
  out.scaling = rigid                  ? sched::Scaling::rigid
                : most == demand.batch ? sched::Scaling::strong
                                       : sched::Scaling::adaptive;
  out.requested_replicas = demand.min_devices;
  out.requested_batch = demand.batch;
  out.most_devices = demand.max_devices;
  out.averages = true;
  for (const std::string& type : cluster.types) {
    sched::AgentType known;
    known.name = type;
    known.limits = {demand.batch, most, 1, most};
    // Nobody measures a rigid job. Any rate does, since it has but one size; none would mean that
    // it gets nowhere.
    if (rigid) known.unit_rate = 1;
    out.types.push_back(std::move(known));
  }
  return out;
}

// Where fewer pipelines have devices than there are, these take turns.
int32_t turns_of(const StagePlan& plan, int32_t at_once) {
  return (plan.pipelines + at_once - 1) / at_once;
}

// Samples per second; 0: these devices are no whole pipelines, or the plan has no time.
double predicted_rate(const StagePlan& plan, int32_t devices, int32_t batch) {
  const int32_t at_once = devices / plan.devices;
  if (!(plan.seconds > 0) || devices % plan.devices != 0 || at_once < 1 || at_once > plan.pipelines)
    return 0;
  return batch / (plan.seconds * turns_of(plan, at_once));
}

// Whether each worker hosts whole pipelines, or parts of one: those that host parts of two let both
// wait for one another.
bool keeps_apart(const StagePlan& plan, int32_t at_once) {
  constexpr int64_t kMostLookedAt = 128;  // beyond these the spread takes long to find
  const int64_t of_one = plan.devices, ranks = of_one * plan.pipelines;
  const int64_t workers = of_one * at_once;
  if (ranks > kMostLookedAt) {
    const int64_t each = ranks / workers;
    return ranks % workers != 0 || each % of_one == 0 || of_one % each == 0;
  }
  return std::ranges::all_of(
      control::spread_ranks(ranks, workers), [&](const control::RankRange& range) {
        const bool whole = range.begin % of_one == 0 && range.end % of_one == 0;
        return whole || range.begin / of_one == (range.end - 1) / of_one;
      });
}

// In rising order; beside the least those that keep pipelines apart. `faster`: of those with
// equally many turns the least alone.
std::vector<int32_t> sizes_of(const StagePlan& plan, int32_t least, int32_t most, bool faster) {
  std::vector<int32_t> out;
  int32_t turns = 0;
  for (int32_t at_once = 1; at_once <= std::min(plan.pipelines, most / plan.devices); ++at_once) {
    const int32_t devices = at_once * plan.devices;
    if (devices < least || (faster && !out.empty() && turns_of(plan, at_once) >= turns)) continue;
    if (!out.empty() && !keeps_apart(plan, at_once)) continue;
    turns = turns_of(plan, at_once);
    out.push_back(devices);
  }
  return out;
}

// The largest of these that is no more; 0: there is none.
int32_t largest_within(const std::vector<int32_t>& sizes, int32_t devices) {
  const auto above = std::ranges::upper_bound(sizes, devices);
  return above == sizes.begin() ? 0 : *std::prev(above);
}

// Of nodes on which it has few, so that it is on few nodes.
sched::Allocation cut_to(sched::Allocation allocation, int32_t devices) {
  for (int32_t more = sched::device_count(allocation) - devices; more > 0;) {
    const auto least = std::min_element(
        allocation.rbegin(), allocation.rend(),
        [](const sched::NodeShare& a, const sched::NodeShare& b) { return a.devices < b.devices; });
    const int32_t cut = std::min(more, least->devices);
    least->devices -= cut;
    more -= cut;
    if (least->devices == 0) allocation.erase(std::next(least).base());
  }
  return allocation;
}

// Whether it is offered as columns of the policy, a speed for each number of devices.
bool is_in_columns(const JobDemand& demand, const sched::PolicyTraits& traits) {
  return traits.sees_plans &&
         std::ranges::all_of(demand.plans, [](const StagePlan& plan) { return plan.seconds > 0; });
}

// Where none of the numbers that it asks for are whole pipelines: the most of fewer devices that
// are, with memory for them; 0: some are, or no such number is.
int32_t whole_below(const JobDemand& demand, const sched::PolicyTraits& traits) {
  const bool columns = is_in_columns(demand, traits);
  int32_t out = 0;
  for (const StagePlan& plan : demand.plans) {
    const int32_t least = std::max(demand.min_devices, plan.least);
    if (!sizes_of(plan, least, demand.max_devices, columns).empty()) return 0;
    const auto sizes = sizes_of(plan, plan.least, demand.max_devices, columns);
    if (!sizes.empty()) out = std::max(out, sizes.back());
    if (!columns) break;  // by the others nothing is offered
  }
  return out;
}

// Each device hosts at least one virtual rank, and the job's user may have asked for more when it
// had other plans. With fewer devices than any plan of those that the policy sees has memory on,
// the job does not run, unless its user lets it have no more.
JobDemand within_plans(JobDemand demand, const sched::PolicyTraits& traits) {
  int64_t ranks = 0;
  for (const StagePlan& plan : demand.plans)
    ranks = std::max(ranks, int64_t{plan.devices} * plan.pipelines);
  if (demand.plans.empty()) return demand;
  demand.min_devices = static_cast<int32_t>(std::min<int64_t>(demand.min_devices, ranks));
  demand.max_devices = static_cast<int32_t>(std::min<int64_t>(demand.max_devices, ranks));
  int32_t least = demand.plans.front().least;
  if (traits.sees_plans)
    for (const StagePlan& plan : demand.plans) least = std::min(least, plan.least);
  if (least <= demand.max_devices) demand.min_devices = std::max(demand.min_devices, least);
  // Whoever asks for three devices asks for one pipeline of two, and not for stages in turns.
  if (const int32_t whole = whole_below(demand, traits); whole > 0) demand.min_devices = whole;
  return demand;
}

// Of a job by stages: writes what a policy of these traits is offered into what it is told of any
// job, and returns Scheduler::whole_sizes(). A policy that knows neither plans nor pipelines has a
// job that asks for its least number and never changes, as in the simulator.
std::vector<int32_t> offer_pipelines(const JobDemand& demand, const sched::PolicyTraits& traits,
                                     sched::AgentFacts& facts) {
  for (const StagePlan& plan : demand.plans)
    DUCTILE_CHECK(plan.devices >= 1 && plan.pipelines >= 1, "job {}: {} pipelines of {} devices",
                  demand.id, plan.pipelines, plan.devices);
  const bool columns = is_in_columns(demand, traits);
  // A pipeline on one device is a replica like any other.
  if (!columns && !demand.plans.empty() && demand.plans.front().devices == 1) return {};
  std::set<int32_t> sizes;
  for (const StagePlan& plan : demand.plans) {
    const int32_t least = std::max(demand.min_devices, plan.least);
    for (const int32_t devices : sizes_of(plan, least, demand.max_devices, columns)) {
      sizes.insert(devices);
      if (!columns) continue;
      for (size_t type = 0; type < facts.types.size(); ++type)
        facts.plans.push_back({static_cast<int32_t>(type), devices, demand.batch,
                               predicted_rate(plan, devices, demand.batch)});
    }
    if (!columns) break;
  }
  if (sizes.empty()) {
    // Its steps take another time than those of whole pipelines.
    if (!demand.plans.empty() && !facts.application.empty()) facts.application += "-in-turns";
    return {};
  }
  facts.requested_replicas = *sizes.begin();
  facts.most_devices = *sizes.rbegin();
  if (columns) return {sizes.begin(), sizes.end()};
  if (traits.scales_pipelines) {
    for (sched::AgentType& type : facts.types) type.unit = demand.plans.front().devices;
    return {sizes.begin(), sizes.end()};
  }
  facts.scaling = sched::Scaling::rigid;
  for (sched::AgentType& type : facts.types) type.unit_rate = 1;  // as of any rigid job
  return {*sizes.begin()};
}

}  // namespace

void Scheduler::set_agent(Job& job, const JobDemand& asked) {
  const sched::PolicyTraits traits = policy_->traits();
  const JobDemand demand = within_plans(asked, traits);
  sched::AgentFacts facts = facts_of(demand, cluster_);
  job.sizes = offer_pipelines(demand, traits, facts);
  job.agent = std::make_unique<sched::JobAgent>(std::move(facts), traits, fits_, &shared_);
  job.of_kind.clear();
  if (const std::string& kind = job.agent->facts().application; !traits.measures && !kind.empty())
    for (const std::string& type : cluster_.types) job.of_kind.push_back(shared_.of(kind, type));
  job.agent->describe(job.view);
  job.view.min_devices = job.sizes.empty() ? demand.min_devices : job.sizes.front();
  job.view.max_devices = job.sizes.empty() ? demand.max_devices : job.sizes.back();
}

// Under other bounds, or with fewer plans. What was measured of replicas of another size is of no
// use.
void Scheduler::set_agent_anew(Job& job) {
  const auto kind = [&job] {
    const sched::AgentFacts& facts = job.agent->facts();
    return std::pair(facts.types.front().unit, facts.application);
  };
  const auto before = kind();
  const nlohmann::json learnt = job.agent->state();
  job.view.types.clear();
  job.view.plans.clear();
  job.view.noise.reset();
  job.view.model_version = job.view.speeds_version = 0;
  set_agent(job, *job.staged);
  if (kind() != before) return;
  try {
    job.agent->restore(learnt, "what the job had learnt");
  } catch (const Error& error) {  // of figures that no file may have: it is learnt anew
    if (error.code() != ErrorCode::data_loss) throw;
  }
}

std::vector<int32_t> Scheduler::whole_sizes(JobId id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? std::vector<int32_t>() : found->second.sizes;
}

spec::Allocation Scheduler::next_whole(JobId id, const spec::Allocation& now,
                                       const spec::Allocation& granted,
                                       spec::Allocation there) const {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || found->second.sizes.empty()) return there;
  const int32_t count = largest_within(found->second.sizes, sched::device_count(there));
  const bool stays = std::ranges::all_of(now, [&](const sched::NodeShare& share) {
    return std::ranges::any_of(granted, [&](const sched::NodeShare& g) {
      return g.node == share.node && g.devices >= share.devices;
    });
  });
  if (stays && sched::device_count(now) == count) return now;
  return cut_to(std::move(there), count);
}

int32_t Scheduler::least_of_stages(JobId id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() || !found->second.staged ? 0 : found->second.view.min_devices;
}

size_t Scheduler::best_plan(JobId id, const spec::Allocation& devices) const {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || !found->second.staged) return 0;
  const Job& job = found->second;
  const std::vector<StagePlan>& plans = job.staged->plans;
  const int32_t count = sched::device_count(devices);
  size_t best = plans.size();
  double most = 0;
  // A policy that sees no plans has the job by the first one.
  const size_t offered = policy_->traits().sees_plans ? plans.size() : 1;
  const auto has_room = [count](const StagePlan& plan) { return plan.least <= count; };
  for (size_t i = 0; i < offered; ++i)
    if (const double rate = predicted_rate(plans[i], count, job.staged->batch);
        rate > most && has_room(plans[i]))
      most = rate, best = i;
  for (const bool any : {false, true})
    for (size_t i = 0; i < plans.size() && best == plans.size(); ++i)
      if (int64_t{plans[i].devices} * plans[i].pipelines >= count && (any || has_room(plans[i])))
        best = i;
  return best == plans.size() ? 0 : best;
}

void Scheduler::keep_plan(JobId id, size_t plan) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || !found->second.staged) return;
  Job& job = found->second;
  const StagePlan kept = job.staged->plans.at(plan);
  job.staged->plans.assign(1, kept);
  set_agent_anew(job);
}

// Readings of one size are averaged, their logarithms. Of a part of a pipeline nothing is learnt.
void Scheduler::see_rate(Job& job, const SeenRate& seen) {
  if (!std::ranges::binary_search(job.sizes, seen.devices)) return;
  SeenRate now = seen;
  std::erase_if(job.seen, [&](const SeenRate& known) {
    if (known.type != seen.type || known.devices != seen.devices) return false;
    now.rate = std::sqrt(known.rate * seen.rate);
    return true;
  });
  if (job.seen.size() == kMostSeen) job.seen.erase(job.seen.begin());
  job.seen.push_back(now);
}

// What it may run by: at the rate that was measured, and where none was, at the predicted one, in
// the proportion in which the newest measured one is to its prediction.
std::vector<sched::JobPlan> Scheduler::plans_now(const Job& job) {
  std::vector<sched::JobPlan> plans = job.agent->facts().plans;
  if (job.seen.empty()) return plans;
  const auto is_of = [](const sched::JobPlan& plan, const SeenRate& seen) {
    return plan.type == seen.type && plan.devices == seen.devices;
  };
  const SeenRate& newest = job.seen.back();
  const auto known =
      std::ranges::find_if(plans, [&](const sched::JobPlan& plan) { return is_of(plan, newest); });
  const double off = known == plans.end() ? 1 : newest.rate / known->samples_per_second;
  for (sched::JobPlan& plan : plans) {
    const auto seen =
        std::ranges::find_if(job.seen, [&](const SeenRate& rate) { return is_of(plan, rate); });
    plan.samples_per_second = seen == job.seen.end() ? off * plan.samples_per_second : seen->rate;
  }
  return plans;
}

std::string Scheduler::room_for_pipelines(const Job& job, const spec::Allocation& devices) {
  if (job.sizes.empty() || devices.empty() || job.staged->plans.size() != 1) return "";
  const StagePlan& plan = job.staged->plans.front();
  return fmt::format("; room for {} of its {} pipeline{} of {} device{}",
                     sched::device_count(devices) / plan.devices, plan.pipelines,
                     plan.pipelines == 1 ? "" : "s", plan.devices, plan.devices == 1 ? "" : "s");
}

// Whoever makes room for another one, or loses a node, gives up whole pipelines. What is left of
// one is free for others in the next round.
void Scheduler::keep_pipelines_whole(const sched::Round& round, sched::Decisions& decisions) const {
  std::map<JobId, size_t> decided;
  for (size_t i = 0; i < decisions.changes.size(); ++i) decided[decisions.changes[i].job] = i;
  for (const sched::JobView& view : round.jobs) {
    const Job& job = jobs_.at(view.id);
    if (job.sizes.empty() || view.is_fixed()) continue;
    const auto found = decided.find(view.id);
    sched::Decision change = found == decided.end() ? sched::Decision{view.id, view.allocation, ""}
                                                    : decisions.changes[found->second];
    const int32_t given = sched::device_count(change.allocation);
    const int32_t devices = largest_within(job.sizes, given);
    if (devices == given) continue;
    change.allocation = cut_to(std::move(change.allocation), devices);
    if (devices == 0)
      change.reason = fmt::format("waits for {} devices at once", job.sizes.front());
    else if (change.reason.empty())
      change.reason = "it gives up the rest of a pipeline";
    if (found == decided.end())
      decisions.changes.push_back(std::move(change));
    else
      decisions.changes[found->second] = std::move(change);
  }
}

std::vector<double> Scheduler::modelled_speeds(JobId id) const {
  const Job& job = jobs_.at(id);
  sched::JobView view = job.view;
  job.agent->models(view);
  std::vector<double> out;
  if (view.allocation.empty()) return out;
  const auto node = static_cast<size_t>(view.allocation.front().node);
  const auto type = static_cast<size_t>(cluster_.node_type[node]);
  if (!job.agent->facts().plans.empty()) {
    if (job.seen.empty()) return out;
    out.resize(static_cast<size_t>(view.max_devices));
    for (const sched::JobPlan& plan : plans_now(job))
      if (static_cast<size_t>(plan.type) == type)
        for (auto n = static_cast<size_t>(plan.devices); n <= out.size(); ++n)
          out[n - 1] = std::max(out[n - 1], plan.samples_per_second);
    return out;
  }
  const sched::TypeModel& model = view.types.at(type);
  if (!model.fitted && !model.steps) return out;
  const auto batch = static_cast<double>(job.batch);
  const int32_t per_node = std::max(1, cluster_.devices_per_node(static_cast<int32_t>(type)));
  for (int32_t n = 1; n <= view.max_devices; ++n) {
    const int32_t replicas = n / model.unit;
    if (replicas == 0) {
      out.push_back(0);
      continue;
    }
    const double local = std::ceil(batch / replicas);
    const int32_t nodes = std::max(1, (n + per_node - 1) / per_node);  // as policies reckon
    const double seconds = model.steps ? model.steps->step_seconds(nodes, replicas, local)
                                       : sched::step_seconds(model.perf, nodes, replicas,
                                                             static_cast<int32_t>(local), 0);
    if (!(seconds > 0)) return {};
    out.push_back(batch / seconds);
  }
  return out;
}

}  // namespace ductile::cluster
