#include "ductile/sched/regional_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/sched/policies_impl.h"
#include "ductile/sched/pools.h"
#include "ductile/sched/saved_state_impl.h"
#include "ductile/sched/valuation.h"

namespace ductile::sched {
namespace {

// A move must promise so much more than staying: what others do next is not in the model.
constexpr double kWorthMoving = 1.1;
// Seconds over which a move is expected to pay off, and for which a job stays where it went.
constexpr double kHorizon = 1800;
constexpr size_t kMostRegions = 1 << 16;

}  // namespace

struct RegionalPolicy::Region {
  std::string name;
  std::unique_ptr<Policy> policy;
  Cluster cluster;             // its nodes alone; device types have their numbers in the whole one
  std::vector<int32_t> nodes;  // their numbers in the whole cluster
  // In a round:
  std::vector<JobView> jobs;
  std::vector<size_t> indices;  // of these in Round::jobs
};

// What the regions offer in a round.
struct RegionalPolicy::Outlook {
  explicit Outlook(size_t regions) : usable(regions), asked(regions), free(regions) {}
  std::vector<std::vector<double>> usable;  // by region and type: devices that stay
  std::vector<double> asked;                // devices, by the jobs that belong there
  std::vector<double> free;

  // What the job can expect of a region, that it is asked for in as `besides` says without it: in
  // devices asked for at the speed of the fastest type; 0: it cannot run there.
  double expect(const JobView& job, size_t region, double besides) const {
    double all = 0, own = 0, speed = 0;
    for (size_t t = 0; t < usable[region].size(); ++t) {
      all += usable[region][t];
      if (t >= job.types.size() || !job.types[t].allowed || usable[region][t] <= 0) continue;
      own += usable[region][t];
      speed = std::max(speed, job.types[t].unit_rate);
    }
    if (own < job.min_devices || own <= 0) return 0;
    const double request = std::max(job.requested_devices, 1);
    const double part = std::min(all / (besides + request), own / request);
    const double most = std::max(1.0, job.max_devices / request);
    return (part <= 1 ? part : std::sqrt(std::min(part, most))) * (speed > 0 ? speed : 1);
  }
};

RegionalPolicy::RegionalPolicy(Make make) : make_(std::move(make)) {}
RegionalPolicy::~RegionalPolicy() = default;

PolicyTraits RegionalPolicy::traits() const {
  PolicyTraits traits = make_()->traits();
  traits.sees_regions = true;
  return traits;
}

// The regions' clusters; policies of regions that stay go on.
void RegionalPolicy::lay_out(const Cluster& cluster) {
  bool same = regions_.size() == cluster.regions.size() &&
              node_region_.size() == static_cast<size_t>(cluster.nodes());
  for (size_t r = 0; same && r < regions_.size(); ++r)
    same = regions_[r].name == cluster.regions[r] && regions_[r].cluster.types == cluster.types;
  if (!same) {
    std::vector<Region> before = std::exchange(regions_, {});
    for (const std::string& name : cluster.regions) {
      Region r;
      r.name = name;
      for (Region& old : before)
        if (old.name == name && old.policy) r.policy = std::move(old.policy);
      if (!r.policy) r.policy = make_();
      r.cluster.types = cluster.types;
      r.cluster.regions = {name};
      regions_.push_back(std::move(r));
    }
    std::vector<int32_t> local(cluster.clusters.size());
    for (size_t c = 0; c < cluster.clusters.size(); ++c) {
      Cluster& own = regions_[static_cast<size_t>(cluster.cluster_region[c])].cluster;
      local[c] = static_cast<int32_t>(own.clusters.size());
      own.clusters.push_back(cluster.clusters[c]);
      own.cluster_region.push_back(0);
    }
    node_region_.clear();
    node_local_.clear();
    for (int32_t n = 0; n < cluster.nodes(); ++n) {
      const auto home = static_cast<size_t>(cluster.node_cluster[static_cast<size_t>(n)]);
      const int32_t region = cluster.cluster_region[home];
      Region& r = regions_[static_cast<size_t>(region)];
      node_region_.push_back(region);
      node_local_.push_back(r.cluster.nodes());
      r.nodes.push_back(n);
      r.cluster.node_cluster.push_back(local[home]);
      r.cluster.node_type.push_back(cluster.node_type[static_cast<size_t>(n)]);
      r.cluster.node_spot.push_back(cluster.node_spot[static_cast<size_t>(n)]);
    }
    for (Region& r : regions_) {
      r.cluster.node_devices.resize(r.nodes.size());
      r.cluster.node_up.resize(r.nodes.size());
      r.cluster.node_leaves_at.resize(r.nodes.size());
    }
  }
  for (Region& r : regions_)
    for (size_t i = 0; i < r.nodes.size(); ++i) {
      const auto n = static_cast<size_t>(r.nodes[i]);
      r.cluster.node_devices[i] = cluster.node_devices[n];
      r.cluster.node_up[i] = cluster.node_up[n];
      r.cluster.node_leaves_at[i] = cluster.node_leaves_at[n];
    }
}

void RegionalPolicy::assign(const Round& round) {
  const double horizon = round.now + 2 * round.interval;
  Outlook outlook(regions_.size());
  for (size_t r = 0; r < regions_.size(); ++r) {
    const Cluster& own = regions_[r].cluster;
    outlook.usable[r].resize(own.types.size());
    for (int32_t n = 0; n < own.nodes(); ++n)
      if (usable_until(own, n, horizon)) {
        outlook.usable[r][static_cast<size_t>(own.node_type[static_cast<size_t>(n)])] +=
            own.usable(n);
        outlook.free[r] += own.usable(n);
      }
  }
  std::unordered_map<JobId, int32_t> now;
  for (const JobView& job : round.jobs) {
    const auto known = belongs_.find(job.id);
    int32_t region = known != belongs_.end() ? known->second : job.region;
    if (!job.allocation.empty())
      region = node_region_[static_cast<size_t>(job.allocation.front().node)];
    if (region >= static_cast<int32_t>(regions_.size())) region = -1;
    now[job.id] = region;
    if (region < 0) continue;
    outlook.asked[static_cast<size_t>(region)] += job.requested_devices;
    outlook.free[static_cast<size_t>(region)] -= device_count(job.allocation);
  }
  belongs_ = std::move(now);
  // Those that wait choose first.
  for (const bool runs : {false, true})
    for (const JobView& job : round.jobs) {
      if (job.allocation.empty() == runs) continue;
      int32_t& region = belongs_.at(job.id);
      const bool fixed = job.is_fixed() || (job.service && runs) || (!job.movable && region >= 0);
      if (fixed || (runs && round.now - job.last_change < kHorizon)) continue;
      const double request = job.requested_devices;
      double best = 0;
      int32_t chosen = region;
      if (region >= 0) {
        const auto here = static_cast<size_t>(region);
        best = kWorthMoving * outlook.expect(job, here, outlook.asked[here] - request) *
               after_pause(kHorizon, runs ? job.pause_left : job.restart_seconds);
      }
      for (size_t r = 0; r < regions_.size(); ++r) {
        if (static_cast<int32_t>(r) == region || (runs && outlook.free[r] < request)) continue;
        double pause = job.restart_seconds + (runs ? job.unsaved_seconds : 0);
        if (job.region >= 0 && static_cast<int32_t>(r) != job.region) pause += job.transfer_seconds;
        const double there =
            outlook.expect(job, r, outlook.asked[r]) * after_pause(kHorizon, pause);
        if (there > best) best = there, chosen = static_cast<int32_t>(r);
      }
      if (chosen < 0) chosen = 0;  // it can run nowhere now, and waits somewhere
      if (chosen == region) continue;
      if (region >= 0) {
        regions_[static_cast<size_t>(region)].policy->forget(job.id);
        outlook.asked[static_cast<size_t>(region)] -= request;
      }
      outlook.asked[static_cast<size_t>(chosen)] += request;
      if (runs) outlook.free[static_cast<size_t>(chosen)] -= request;
      region = chosen;
    }
}

// What the teams hold elsewhere is not theirs here. Jobs of a team that holds its quota elsewhere
// are hidden if they hold nothing.
void RegionalPolicy::keep_quotas(const Round& round, int32_t region) {
  Region& r = regions_[static_cast<size_t>(region)];
  r.cluster.teams = round.cluster.teams;
  for (size_t t = 0; t < r.cluster.teams.size(); ++t) {
    Team& team = r.cluster.teams[t];
    if (team.quota <= 0) continue;
    int64_t here = 0;
    for (const JobView& job : r.jobs)
      if (job.team == team.id) here += device_count(job.allocation);
    const int64_t left = team.quota - (team_held_[t] - here);
    team.quota = std::max<int64_t>(left, 1);
    if (left > 0) continue;
    size_t kept = 0;
    for (size_t i = 0; i < r.jobs.size(); ++i) {
      if (r.jobs[i].team == team.id && r.jobs[i].allocation.empty()) continue;
      if (kept != i) r.jobs[kept] = std::move(r.jobs[i]);
      r.indices[kept++] = r.indices[i];
    }
    r.jobs.resize(kept);
    r.indices.resize(kept);
  }
}

void RegionalPolicy::decide_region(const Round& round, int32_t region, Decisions& out) {
  Region& r = regions_[static_cast<size_t>(region)];
  keep_quotas(round, region);
  const Decisions own = r.policy->decide({round.now, round.interval, r.cluster, r.jobs});
  out.objective += own.objective;
  out.bound += own.bound;
  std::unordered_map<JobId, const Decision*> decided;
  for (const Decision& d : own.changes) decided.emplace(d.job, &d);
  for (size_t i = 0; i < r.jobs.size(); ++i) {
    const JobView& before = round.jobs[r.indices[i]];
    Allocation next = r.jobs[i].allocation;
    std::string reason;
    if (const auto found = decided.find(before.id); found != decided.end()) {
      next = found->second->allocation;
      reason = found->second->reason;
    }
    for (NodeShare& share : next) share.node = r.nodes[static_cast<size_t>(share.node)];
    for (size_t t = 0; t < round.cluster.teams.size(); ++t)
      if (round.cluster.teams[t].id == before.team)
        team_held_[t] += device_count(next) - device_count(before.allocation);
    if (next == before.allocation) continue;
    if (reason.empty()) reason = fmt::format("it moves to region {}", r.name);
    out.changes.push_back({before.id, std::move(next), std::move(reason)});
  }
}

Decisions RegionalPolicy::decide(const Round& round) {
  lay_out(round.cluster);
  if (regions_.size() == 1) {
    belongs_.clear();
    for (const JobView& job : round.jobs) belongs_[job.id] = 0;
    return regions_[0].policy->decide(round);
  }
  assign(round);
  team_held_.assign(round.cluster.teams.size(), 0);
  for (Region& r : regions_) r.jobs.clear(), r.indices.clear();
  for (size_t i = 0; i < round.jobs.size(); ++i) {
    const JobView& job = round.jobs[i];
    for (size_t t = 0; t < round.cluster.teams.size(); ++t)
      if (round.cluster.teams[t].id == job.team) team_held_[t] += device_count(job.allocation);
    const int32_t region = belongs_.at(job.id);
    Region& r = regions_[static_cast<size_t>(region)];
    JobView view = job;
    for (NodeShare& share : view.allocation) {
      if (node_region_[static_cast<size_t>(share.node)] != region) {  // it is moving
        view.allocation.clear();
        view.pause_left = 0;
        break;
      }
      share.node = node_local_[static_cast<size_t>(share.node)];
    }
    if (view.allocation.empty() && job.region >= 0 && region != job.region)
      view.restart_seconds += job.transfer_seconds;
    view.region = -1;  // the region's policy knows no other
    view.movable = true;
    r.jobs.push_back(std::move(view));
    r.indices.push_back(i);
  }
  Decisions out;
  for (size_t r = 0; r < regions_.size(); ++r) decide_region(round, static_cast<int32_t>(r), out);
  return out;
}

int32_t RegionalPolicy::region_of(JobId job) const {
  const auto found = belongs_.find(job);
  return found == belongs_.end() ? -1 : found->second;
}

std::string RegionalPolicy::explain(JobId job) const {
  const int32_t region = region_of(job);
  if (region < 0 || static_cast<size_t>(region) >= regions_.size()) return "";
  const Region& r = regions_[static_cast<size_t>(region)];
  const std::string own = r.policy->explain(job);
  if (regions_.size() == 1) return own;
  return fmt::format("in region {}: {}", r.name, own.empty() ? "its team holds its quota" : own);
}

void RegionalPolicy::forget(JobId job) {
  const int32_t region = region_of(job);
  if (region >= 0 && static_cast<size_t>(region) < regions_.size())
    regions_[static_cast<size_t>(region)].policy->forget(job);
}

nlohmann::json RegionalPolicy::state() const {
  nlohmann::json regions = nlohmann::json::array(), jobs = nlohmann::json::array();
  for (const Region& r : regions_) regions.push_back({r.name, r.policy->state()});
  std::vector<std::pair<JobId, int32_t>> sorted(belongs_.begin(), belongs_.end());
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [job, region] : sorted) jobs.push_back({job, region});
  return {{"regions", std::move(regions)}, {"jobs", std::move(jobs)}};
}

void RegionalPolicy::restore(const nlohmann::json& state, const std::string& where) {
  as_data_loss([&] {
    const JsonFields f(state, where);
    f.only({"regions", "jobs"});
    std::vector<Region> regions;
    for (const nlohmann::json& item : f.array("regions")) {
      if (!item.is_array() || item.size() != 2 || !item[0].is_string() ||
          regions.size() == kMostRegions)
        f.wrong("regions", "a list of [name, state of its policy]", item);
      Region r;
      r.name = item[0].get<std::string>();
      r.policy = make_();
      r.policy->restore(item[1], fmt::format("{}: region {}", where, r.name));
      regions.push_back(std::move(r));
    }
    std::unordered_map<JobId, int32_t> belongs;
    for (const nlohmann::json& item : f.array("jobs")) {
      if (!item.is_array() || item.size() != 2 || belongs.size() == kMostSavedJobs)
        f.wrong("jobs", "a list of [job, region]", item);
      belongs[f.as_integer(item[0], "jobs", 0, INT64_MAX)] = static_cast<int32_t>(
          f.as_integer(item[1], "jobs", 0, static_cast<int64_t>(regions.size()) - 1));
    }
    regions_ = std::move(regions);
    belongs_ = std::move(belongs);
    node_region_.clear();  // the nodes come with the next round
    node_local_.clear();
  });
}

std::unique_ptr<Policy> make_regional(const PolicyOptions& options) {
  return std::make_unique<RegionalPolicy>([options] { return make_ductile(options); });
}

}  // namespace ductile::sched
