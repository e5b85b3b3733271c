// The fleet scheduler (fleet.h) as a policy. It is made anew each round from what the jobs hold and
// from their accounts, and decides about all of them, so the regions of jobs are all that is
// remembered.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/sched/fleet.h"
#include "ductile/sched/policies_impl.h"
#include "ductile/sched/pool_round_impl.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {
namespace {

constexpr int32_t kMostSavedRegions = 1 << 16;
constexpr uint8_t kAsAsked = 0b100;  // FleetJob::sizes

const JobPlan* plan_for(const JobView& job, int32_t type, int32_t devices) {
  for (const JobPlan& plan : job.plans)
    if (plan.type == type && plan.devices == devices) return &plan;
  return nullptr;
}

bool may_hold(const JobView& job, int32_t type, int32_t devices) {
  if (!job.plans.empty()) return plan_for(job, type, devices) != nullptr;
  const TypeModel& model = job.types[static_cast<size_t>(type)];
  return (model.max_useful == 0 || devices <= model.max_useful) && devices % model.unit == 0;
}

// What the job asks for, or of its plans the nearest below, or the least.
int32_t demand_of(const JobView& job) {
  const int32_t asked = std::clamp(job.requested_devices, job.min_devices,
                                   std::max(job.min_devices, job.max_devices));
  int32_t best = 0;
  for (const JobPlan& plan : job.plans)
    if (best == 0 || (plan.devices <= asked && (best > asked || plan.devices > best)) ||
        (plan.devices > asked && plan.devices < best))
      best = plan.devices;
  return best > 0 ? best : asked;
}

// The types on which it may hold so many devices, or where there are none, that it may use at all.
uint64_t types_for(const JobView& job, int32_t devices) {
  uint64_t allowed = 0, fitting = 0;
  for (size_t t = 0; t < std::min<size_t>(job.types.size(), 64); ++t) {
    if (!job.types[t].allowed) continue;
    allowed |= uint64_t{1} << t;
    if (may_hold(job, static_cast<int32_t>(t), devices)) fitting |= uint64_t{1} << t;
  }
  return fitting != 0 || !job.plans.empty() ? fitting : allowed;
}

FleetJob fleet_job(const JobView& job) {
  FleetJob out;
  out.tier = job.tier;
  out.home = job.region;
  out.movable = job.movable;
  out.elastic = job.scaling != Scaling::rigid;
  out.demand = demand_of(job);
  out.restart_seconds = job.restart_seconds + job.unsaved_seconds;
  out.transfer_seconds = job.transfer_seconds;
  out.types = types_for(job, out.demand);
  const int32_t counts[] = {out.demand / 4, out.demand / 2, out.demand, out.demand * 2};
  out.sizes = kAsAsked;
  for (size_t i = 0; i < std::size(counts); ++i) {
    bool fits = counts[i] >= job.min_devices && counts[i] <= job.max_devices;
    for (int32_t t = 0; fits && t < static_cast<int32_t>(job.types.size()); ++t)
      if (t < 64 && (out.types >> t & 1) != 0) fits = may_hold(job, t, counts[i]);
    if (fits) out.sizes |= static_cast<uint8_t>(1 << i);
  }
  return out;
}

class FleetPolicy final : public Policy {
 public:
  std::string_view name() const override { return "fleet"; }
  PolicyTraits traits() const override {
    return {.uses = Scaling::strong,
            .serves = true,
            .keeps_fixed = true,
            .sees_regions = true,
            .sees_plans = true,
            .sees_shares = true};
  }
  Decisions decide(const Round& round) override;
  std::string explain(JobId job) const override;
  nlohmann::json state() const override;
  void restore(const nlohmann::json& state, const std::string& where) override;

 private:
  void make_scheduler(const PoolRound& plan);
  void add_jobs(const PoolRound& plan);
  std::vector<int32_t> find_regions(const PoolRound& plan) const;

  std::unordered_map<JobId, int32_t> regions_;  // that the jobs belong to
  // Of the last round, for explain().
  std::unique_ptr<FleetScheduler> fleet_;
  std::unordered_map<JobId, int32_t> index_;  // in fleet_
  std::unordered_map<JobId, std::string> own_reasons_;
};

// A scheduler of the devices that are not set aside.
void FleetPolicy::make_scheduler(const PoolRound& plan) {
  const Cluster& cluster = plan.round().cluster;
  std::vector<Pool> pools;
  std::vector<int32_t> count(cluster.regions.size());
  for (size_t p = 0; p < plan.pools().size(); ++p) {
    Pool pool = plan.pools()[p];
    pool.devices = std::max<int64_t>(plan.devices()[p], 0);
    pool.nodes.clear();
    pools.push_back(std::move(pool));
    ++count[static_cast<size_t>(plan.region_of(static_cast<int32_t>(p)))];
  }
  for (size_t r = 0; r < count.size(); ++r)
    if (count[r] > Allocator::kMaxTypes)
      fail(ErrorCode::invalid_argument,
           "region {} has {} kinds of nodes (device types in each of its clusters), and policy "
           "fleet knows at most {} in a region; divide it into several regions",
           cluster.regions[r], count[r], Allocator::kMaxTypes);
  FleetOptions options;
  options.afresh = true;
  fleet_ = std::make_unique<FleetScheduler>(pools, cluster.cluster_region, options);
}

// By job: where it holds devices; else where it was, where its data are, or, if these are
// everywhere, the region that least is asked of for what it has.
std::vector<int32_t> FleetPolicy::find_regions(const PoolRound& plan) const {
  const Round& round = plan.round();
  std::vector<int32_t> out(round.jobs.size(), -1);
  std::vector<double> asked(round.cluster.regions.size()), there(asked.size());
  for (size_t p = 0; p < plan.pools().size(); ++p)
    there[static_cast<size_t>(plan.region_of(static_cast<int32_t>(p)))] +=
        static_cast<double>(std::max<int64_t>(plan.devices()[p], 0));
  for (size_t i = 0; i < out.size(); ++i) {
    const JobView& job = round.jobs[i];
    if (plan.set_aside(i)) continue;
    const auto known = regions_.find(job.id);
    if (plan.held_pool(i) >= 0) {
      out[i] = plan.region_of(plan.held_pool(i));
    } else if (!job.movable && job.region >= 0) {
      out[i] = job.region;
    } else if (known != regions_.end() && known->second < static_cast<int32_t>(asked.size())) {
      out[i] = known->second;
    } else {
      out[i] = job.region;
    }
    if (out[i] >= 0) asked[static_cast<size_t>(out[i])] += job.requested_devices;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (plan.set_aside(i) || out[i] >= 0) continue;
    size_t best = 0;
    for (size_t r = 1; r < asked.size(); ++r)
      if (there[r] - asked[r] > there[best] - asked[best]) best = r;
    out[i] = static_cast<int32_t>(best);
    asked[best] += round.jobs[i].requested_devices;
  }
  return out;
}

void FleetPolicy::add_jobs(const PoolRound& plan) {
  const Round& round = plan.round();
  const std::vector<int32_t> regions = find_regions(plan);
  std::unordered_map<int64_t, int32_t> teams;
  index_.clear();
  own_reasons_.clear();
  for (size_t i = 0; i < round.jobs.size(); ++i) {
    const JobView& job = round.jobs[i];
    if (plan.set_aside(i)) {
      own_reasons_[job.id] = plan.reason(i);
      continue;
    }
    const auto index = static_cast<int32_t>(index_.size());
    FleetJob known = fleet_job(job);
    known.team = teams.try_emplace(job.team, static_cast<int32_t>(teams.size())).first->second;
    if (known.home < 0) {  // its data are everywhere
      known.home = regions[i];
      known.transfer_seconds = 0;
    }
    fleet_->set_job(index, known, round.now);
    fleet_->set_place(index, regions[i], plan.held_pool(i), device_count(job.allocation));
    fleet_->set_window(index, job.window);
    index_[job.id] = index;
  }
  for (const Team& team : round.cluster.teams)
    if (const auto found = teams.find(team.id); team.share > 0 && found != teams.end())
      fleet_->set_team_share(found->second, team.share);
}

Decisions FleetPolicy::decide(const Round& round) {
  PoolRound plan(round, round.now + 2 * round.interval, ServicesTake::preemptible);
  make_scheduler(plan);
  add_jobs(plan);
  const FleetScheduler::Summary summary = fleet_->decide(round.now, true);
  std::unordered_map<JobId, int32_t> regions;
  for (size_t i = 0; i < round.jobs.size(); ++i) {
    const auto found = index_.find(round.jobs[i].id);
    if (found == index_.end()) continue;
    regions[found->first] = fleet_->region(found->second);
    if (const int32_t pool = fleet_->pool(found->second); pool >= 0)
      plan.choose(i, pool, fleet_->devices(found->second));
  }
  regions_ = std::move(regions);
  std::vector<Allocation> next = plan.place();
  Decisions out;
  out.objective = summary.objective;
  out.bound = summary.bound;
  for (size_t i = 0; i < round.jobs.size(); ++i)
    if (const JobView& job = round.jobs[i]; next[i] != job.allocation)
      out.changes.push_back({job.id, std::move(next[i]), explain(job.id)});
  return out;
}

std::string FleetPolicy::explain(JobId job) const {
  if (const auto own = own_reasons_.find(job); own != own_reasons_.end()) return own->second;
  const auto found = index_.find(job);
  return found == index_.end() ? "" : fleet_->explain(found->second);
}

nlohmann::json FleetPolicy::state() const {
  std::vector<std::pair<JobId, int32_t>> sorted(regions_.begin(), regions_.end());
  std::sort(sorted.begin(), sorted.end());
  nlohmann::json jobs = nlohmann::json::array();
  for (const auto& [job, region] : sorted) jobs.push_back({job, region});
  return {{"jobs", std::move(jobs)}};
}

void FleetPolicy::restore(const nlohmann::json& state, const std::string& where) {
  as_data_loss([&] {
    const JsonFields f(state, where);
    f.only({"jobs"});
    std::unordered_map<JobId, int32_t> regions;
    for (const nlohmann::json& item : f.array("jobs")) {
      if (!item.is_array() || item.size() != 2 || regions.size() == kMostSavedJobs)
        f.wrong("jobs", "a list of [job, region]", item);
      regions[f.as_integer(item[0], "jobs", 0, INT64_MAX)] =
          static_cast<int32_t>(f.as_integer(item[1], "jobs", 0, kMostSavedRegions - 1));
    }
    regions_ = std::move(regions);
    index_.clear();  // there is nothing to explain before the next round
    own_reasons_.clear();
  });
}

}  // namespace

std::unique_ptr<Policy> make_fleet(const PolicyOptions&) { return std::make_unique<FleetPolicy>(); }

}  // namespace ductile::sched
