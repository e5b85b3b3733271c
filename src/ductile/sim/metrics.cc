#include "ductile/sim/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "ductile/base/json_value.h"
#include "ductile/noise/noise_scale.h"

namespace ductile::sim {
namespace {

constexpr int kBatchesPerCurve = 24;

// The whole batch that the job keeps to; 0 if it is free.
int32_t kept_batch(const Submission& job, const Application& app) {
  if (job.scaling == sched::Scaling::adaptive && !app.fixed_batch) return 0;
  return job.batch > 0 ? job.batch : app.init_batch;
}

// Seconds of one whole job of the application, restart not counted. The batch is `kept`, or, with
// 0, chosen anew each epoch.
double fastest(const Application& app, const ReplayRules& rules, const std::string& type,
               int32_t devices, int32_t per_node, int32_t kept) {
  std::vector<int32_t> counts;
  for (int32_t left = devices; left > 0; left -= per_node)
    counts.push_back(std::min(left, per_node));
  const double slow = rules.own_pause ? app.slowdown : 1;
  if (!app.plans.empty()) {
    double seconds = 0;
    for (int32_t epoch = 0; epoch < app.epochs; ++epoch) {
      double most = 0;
      for (const PlanProfile& plan : app.plans)
        if (plan.type == type && plan.devices <= devices)
          most = std::max(most, noise::gain(app.noise(plan.batch, epoch),
                                            static_cast<double>(plan.batch) / app.init_batch) /
                                    plan.seconds);
      seconds += (app.progress_at(epoch + 1) - app.progress_at(epoch)) / most;
    }
    return seconds * slow;
  }
  if (app.micro_batches > 0) {
    const int32_t batch = devices / app.unit(type) * app.micro_batches;
    const double step = app.step_time(type, counts, app.micro_batches).step;
    double seconds = 0;
    for (int32_t epoch = 0; epoch < app.epochs; ++epoch)
      seconds += (app.progress_at(epoch + 1) - app.progress_at(epoch)) * step /
                 noise::gain(app.noise(batch, epoch), static_cast<double>(batch) / app.init_batch);
    return seconds * slow;
  }
  const Profile& profile = app.profile(type);
  sched::BatchLimits limits = app.limits(profile);
  if (rules.limit_by_placement) limits.max_local = profile.max_local(counts);
  const double low =
      std::max<double>(limits.init_batch, static_cast<double>(limits.min_local) * devices);
  struct Candidate {
    int32_t batch;
    double step;
  };
  std::vector<Candidate> candidates;
  for (int i = 0; i < (kept > 0 ? 1 : kBatchesPerCurve); ++i) {
    const auto batch =
        kept > 0
            ? kept
            : static_cast<int32_t>(std::ceil(
                  low * std::pow(limits.max_batch / low, i / (kBatchesPerCurve - 1.0)) - 1e-8));
    const sched::BatchChoice split = sched::split_batch(limits, devices, batch);
    if (split.local_batch < 1) continue;
    const int32_t whole = devices * split.local_batch * (split.accumulation + 1);
    if (!candidates.empty() && candidates.back().batch == whole) continue;
    const StepTime time = profile.at(counts, split.local_batch);
    candidates.push_back({whole, time.step + split.accumulation * (time.step - time.sync)});
  }
  double seconds = 0;
  for (int32_t epoch = 0; epoch < app.epochs; ++epoch) {
    double most = 0;
    for (const Candidate& c : candidates)
      most = std::max(most, noise::gain(app.noise(c.batch, epoch),
                                        static_cast<double>(c.batch) / app.init_batch) /
                                c.step);
    seconds += (app.progress_at(epoch + 1) - app.progress_at(epoch)) / most;
  }
  return seconds * slow;
}

}  // namespace

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

double alone_seconds(const Submission& job, const Application& app, const ReplayRules& rules,
                     const sched::Cluster& cluster, double contention) {
  const auto total = static_cast<double>(cluster.usable_devices());
  const int32_t kept = kept_batch(job, app);
  double rate = 0;
  for (int32_t t = 0; t < cluster.type_count(); ++t) {
    const auto of_type = static_cast<double>(cluster.usable_devices(t));
    const int32_t unit = app.unit(cluster.types[t]);
    if (unit == 0 || of_type < unit) continue;
    if (!app.plans.empty()) {
      // Its share of them, but not less than it takes to run.
      int32_t least = INT32_MAX;
      for (const PlanProfile& plan : app.plans)
        if (plan.type == cluster.types[t]) least = std::min(least, plan.devices);
      if (job.scaling == sched::Scaling::rigid) least = job.devices;
      if (least > of_type) continue;
      const auto share = static_cast<int32_t>(
          std::max<double>(least, std::min(total / std::max(contention, 1.0), of_type)));
      rate += of_type / total / fastest(app, rules, cluster.types[t], share, 1, 0);
      continue;
    }
    const sched::BatchLimits limits = app.limits(app.profile(cluster.types[t]));
    int32_t most = std::max((kept > 0 ? kept : limits.max_batch) / limits.min_local, 1);
    if (app.most_devices > 0) most = std::min(most, app.most_devices);
    if (job.scaling == sched::Scaling::rigid) most = std::min(most, job.devices);
    // In replicas, which only of pipelines are more than a device each.
    const auto replicas = static_cast<int32_t>(
        std::clamp(std::floor(std::min(total / std::max(contention, 1.0), of_type) / unit), 1.0,
                   static_cast<double>(std::min(most, 64))));
    const int32_t devices = replicas * unit;
    rate += of_type / total /
            fastest(app, rules, cluster.types[t], devices, cluster.devices_per_node(t), kept);
  }
  return job.work / rate + pause_of(app, rules);
}

namespace {

std::vector<TeamSummary> teams_of(const SimResult& result, const sched::Cluster& cluster) {
  std::map<int32_t, TeamSummary> teams;
  std::map<int32_t, int64_t> finished;
  for (const JobResult& job : result.jobs) {
    TeamSummary& team = teams[job.team];
    team.team = job.team;
    team.device_hours += job.service / 3600;
    team.jobs += !job.served;
    if (job.served || !job.finished) continue;
    team.mean += job.jct();
    ++finished[job.team];
  }
  std::vector<TeamSummary> out;
  if (teams.size() < 2 && cluster.teams.empty()) return out;
  for (auto& [id, team] : teams) {
    team.mean /= static_cast<double>(std::max<int64_t>(finished[id], 1));
    for (const sched::Team& known : cluster.teams) {
      if (known.id != id || known.quota <= 0) continue;
      std::map<double, int64_t> change;
      for (const Segment& segment : result.timeline)
        if (result.jobs[segment.job].team == id) {
          change[segment.from] += sched::device_count(segment.allocation);
          change[segment.to] -= sched::device_count(segment.allocation);
        }
      int64_t held = 0;
      double since = 0;
      for (const auto& [time, devices] : change) {
        const int64_t over = std::max<int64_t>(held - known.quota, 0);
        team.over_quota_hours += static_cast<double>(over) * (time - since) / 3600;
        held += devices;
        since = time;
      }
    }
    out.push_back(team);
  }
  return out;
}

void count_service(const JobResult& job, ServiceRecord& all, double& alive, Summary& summary) {
  ++summary.services;
  summary.worst_hour = std::min(summary.worst_hour, job.worst_hour);
  alive += job.jct();
  all.requests += job.served->requests;
  all.on_time += job.served->on_time;
  all.latency_sum += job.served->latency_sum;
  all.kept_up += job.served->kept_up;
  all.overloaded_seconds += job.served->overloaded_seconds;
}

void count_windows(const JobResult& job, TierSummary& tier) {
  for (const sched::SlaWindow& window : job.windows) {
    ++tier.windows;
    tier.kept += window.fraction() >= sched::guarantee(job.tier) - 1e-9;
    tier.fraction += window.fraction();
    tier.worst = std::min(tier.worst, window.fraction());
  }
}

// The fairness of jobs, where jobs that are alike share what was computed.
class Fairness {
 public:
  Fairness(const Catalog& catalog, const sched::Cluster& cluster)
      : catalog_(catalog), cluster_(cluster) {}

  double rho(const Submission& submission, const JobResult& job) {
    Submission whole = submission;
    whole.work = 1;
    // Contention to the nearest tenth, so that jobs share it.
    const double contention = std::max(std::round(job.contention * 10) / 10, 1.0);
    const Application& app = catalog_.find(job.application);
    const auto key = std::tuple(job.application, whole.devices, contention,
                                whole.scaling == sched::Scaling::rigid, kept_batch(whole, app));
    auto [found, fresh] = alone_.try_emplace(key, 0);
    if (fresh) found->second = alone_seconds(whole, app, catalog_.rules, cluster_, contention);
    const double pause = pause_of(app, catalog_.rules);
    return job.jct() / ((found->second - pause) * submission.work + pause);
  }

 private:
  const Catalog& catalog_;
  const sched::Cluster& cluster_;
  std::map<std::tuple<std::string, int32_t, double, bool, int32_t>, double> alone_;
};

void count_rounds(const SimResult& result, Summary& summary) {
  std::vector<double> decisions;
  int64_t used = 0, usable = 0;
  for (const RoundSample& round : result.rounds) {
    decisions.push_back(round.decision_seconds);
    summary.decision_mean += round.decision_seconds / static_cast<double>(result.rounds.size());
    if (round.waiting == 0) continue;
    used += round.used;
    usable += round.usable;
  }
  summary.decision_p99 = quantile(std::move(decisions), 0.99);
  summary.busy = usable > 0 ? static_cast<double>(used) / static_cast<double>(usable) : 0;
}

}  // namespace

Summary summarise(const SimResult& result, const Workload& workload, const Catalog& catalog,
                  const sched::Cluster& cluster) {
  Summary summary;
  for (const JobResult& job : result.jobs) {
    summary.jobs += !job.served;
    summary.unfinished += !job.finished;
  }
  if (result.jobs.empty()) return summary;
  const double n = static_cast<double>(std::max<int64_t>(summary.jobs, 1));
  std::vector<double> jcts, rhos;
  double service = 0;
  ServiceRecord served;
  double serving = 0;
  Fairness fairness(catalog, cluster);
  for (size_t j = 0; j < result.jobs.size(); ++j) {
    const JobResult& job = result.jobs[j];
    service += job.service;
    count_windows(job, summary.tiers[static_cast<size_t>(job.tier)]);
    if (job.served) {
      count_service(job, served, serving, summary);
      continue;
    }
    summary.restarts += job.restarts / n;
    summary.starts += job.service > 0 ? 1 + job.restarts : 0;
    summary.hits += job.node_losses;
    summary.redone_hours += job.redone / 3600;
    summary.lost_hours += job.lost / 3600;
    if (!job.finished) continue;
    jcts.push_back(job.jct());
    rhos.push_back(fairness.rho(workload.jobs[j], job));
    TierSummary& tier = summary.tiers[static_cast<size_t>(job.tier)];
    ++tier.finished;
    tier.mean += job.jct();
  }
  const double finished = static_cast<double>(std::max<size_t>(jcts.size(), 1));
  for (const double rho : rhos) {
    summary.worst_fairness = std::max(summary.worst_fairness, rho);
    summary.mean_fairness += rho / finished;
    summary.unfair_share += (rho > 1) / finished;
  }
  for (const double jct : jcts) summary.mean += jct / finished;
  summary.median = quantile(jcts, 0.5);
  summary.p90 = quantile(jcts, 0.9);
  summary.p99 = quantile(jcts, 0.99);
  summary.makespan = result.end;
  summary.device_hours = service / 3600;
  summary.utilisation =
      result.usable_device_seconds > 0 ? service / result.usable_device_seconds : 0;
  const TierSummary &premium = summary.tiers[0], &standard = summary.tiers[1];
  if (premium.windows + standard.windows > 0)
    summary.sla = static_cast<double>(premium.kept + standard.kept) /
                  static_cast<double>(premium.windows + standard.windows);
  for (TierSummary& tier : summary.tiers) {
    tier.fraction /= static_cast<double>(std::max<int64_t>(tier.windows, 1));
    tier.mean /= static_cast<double>(std::max<int64_t>(tier.finished, 1));
  }
  summary.teams = teams_of(result, cluster);
  if (summary.services > 0) {
    summary.attained = served.attained();
    summary.latency = served.kept_up > 0 ? served.latency_sum / served.kept_up : 0;
    summary.overload = serving > 0 ? served.overloaded_seconds / serving : 0;
  }
  count_rounds(result, summary);
  return summary;
}

Summary average(std::span<const Summary> summaries) {
  Summary out;
  if (summaries.empty()) return out;
  const double n = static_cast<double>(summaries.size());
  double sla = 0;
  int with_sla = 0;
  out.attained = 0;
  std::map<int32_t, TeamSummary> teams;
  for (const Summary& s : summaries) {
    out.jobs += s.jobs;
    out.unfinished += s.unfinished;
    out.mean += s.mean / n;
    out.median += s.median / n;
    out.p90 += s.p90 / n;
    out.p99 += s.p99 / n;
    out.makespan += s.makespan / n;
    out.device_hours += s.device_hours / n;
    out.restarts += s.restarts / n;
    out.utilisation += s.utilisation / n;
    out.worst_fairness = std::max(out.worst_fairness, s.worst_fairness);
    out.mean_fairness += s.mean_fairness / n;
    out.unfair_share += s.unfair_share / n;
    out.lost_hours += s.lost_hours / n;
    out.busy += s.busy / n;
    out.starts += s.starts / n;
    out.hits += s.hits / n;
    out.redone_hours += s.redone_hours / n;
    out.services = std::max(out.services, s.services);
    out.attained += s.attained / n;
    out.worst_hour = std::min(out.worst_hour, s.worst_hour);
    out.latency += s.latency / n;
    out.overload += s.overload / n;
    out.decision_mean += s.decision_mean / n;
    out.decision_p99 = std::max(out.decision_p99, s.decision_p99);
    for (size_t t = 0; t < out.tiers.size(); ++t) {
      TierSummary& tier = out.tiers[t];
      tier.fraction += s.tiers[t].fraction * static_cast<double>(s.tiers[t].windows);
      tier.windows += s.tiers[t].windows;
      tier.kept += s.tiers[t].kept;
      tier.worst = std::min(tier.worst, s.tiers[t].worst);
      tier.mean += s.tiers[t].mean * static_cast<double>(s.tiers[t].finished);
      tier.finished += s.tiers[t].finished;
    }
    for (const TeamSummary& team : s.teams) {
      TeamSummary& sum = teams[team.team];
      sum.team = team.team;
      sum.mean += team.mean * static_cast<double>(team.jobs);
      sum.jobs += team.jobs;
      sum.device_hours += team.device_hours / n;
      sum.over_quota_hours += team.over_quota_hours / n;
    }
    if (s.sla) {
      sla += *s.sla;
      ++with_sla;
    }
  }
  for (TierSummary& tier : out.tiers) {
    tier.fraction /= static_cast<double>(std::max<int64_t>(tier.windows, 1));
    tier.mean /= static_cast<double>(std::max<int64_t>(tier.finished, 1));
  }
  for (auto& [id, team] : teams) {
    team.mean /= static_cast<double>(std::max<int64_t>(team.jobs, 1));
    out.teams.push_back(team);
  }
  if (with_sla > 0) out.sla = sla / with_sla;
  return out;
}

nlohmann::ordered_json to_json(const Summary& s) {
  nlohmann::ordered_json out = {{"jobs", s.jobs},
                                {"mean_jct", s.mean},
                                {"median_jct", s.median},
                                {"p90_jct", s.p90},
                                {"p99_jct", s.p99},
                                {"makespan", s.makespan},
                                {"device_hours", s.device_hours},
                                {"restarts", s.restarts},
                                {"utilisation", s.utilisation},
                                {"worst_fairness", s.worst_fairness},
                                {"mean_fairness", s.mean_fairness},
                                {"unfair_share", s.unfair_share},
                                {"busy", s.busy},
                                {"starts", s.starts},
                                {"hits", s.hits}};
  if (s.unfinished > 0) out["unfinished"] = s.unfinished;
  if (s.redone_hours > 0) out["redone_hours"] = s.redone_hours;
  if (s.lost_hours > 0) out["lost_hours"] = s.lost_hours;
  if (s.sla) {
    out["sla"] = *s.sla;
    for (size_t t = 0; t < s.tiers.size(); ++t)
      if (s.tiers[t].windows > 0)
        out["tiers"][std::string(sched::to_string(static_cast<sched::Tier>(t)))] = {
            {"windows", s.tiers[t].windows},        {"kept", s.tiers[t].kept},
            {"mean_fraction", s.tiers[t].fraction}, {"worst_fraction", s.tiers[t].worst},
            {"finished", s.tiers[t].finished},      {"mean_jct", s.tiers[t].mean}};
  }
  for (const TeamSummary& team : s.teams)
    out["teams"].push_back({{"team", team.team},
                            {"jobs", team.jobs},
                            {"device_hours", team.device_hours},
                            {"mean_jct", team.mean},
                            {"over_quota_hours", team.over_quota_hours}});
  if (s.services > 0)
    out["services"] = {{"services", s.services},
                       {"on_time", s.attained},
                       {"worst_hour_on_time", s.worst_hour},
                       {"mean_latency", s.latency},
                       {"overloaded_share", s.overload}};
  out["decision_seconds"] = s.decision_mean;
  out["decision_seconds_p99"] = s.decision_p99;
  return out;
}

nlohmann::ordered_json to_json(const SimResult& result) {
  nlohmann::ordered_json out = {{"workload", result.workload}, {"policy", result.policy}};
  auto& jobs = out["jobs"] = nlohmann::ordered_json::array();
  for (const JobResult& job : result.jobs) {
    jobs.push_back({{"name", job.name},
                    {"application", job.application},
                    {"tier", sched::to_string(job.tier)},
                    {"team", job.team},
                    {"arrival", job.arrival},
                    {"start", job.start},
                    {"finish", job.finish},
                    {"device_seconds", job.service},
                    {"paused", job.paused},
                    {"restarts", job.restarts},
                    {"node_losses", job.node_losses}});
    auto& entry = jobs.back();
    if (!job.finished) entry["finished"] = false;
    if (job.lost > 0) entry["lost"] = job.lost;
    if (job.tier != sched::Tier::basic)
      for (const sched::SlaWindow& window : job.windows)
        entry["windows"].push_back({window.from, window.to, window.fraction()});
    if (job.served)
      entry["served"] = {{"requests", job.served->requests},
                         {"on_time", job.served->attained()},
                         {"worst_hour_on_time", job.worst_hour},
                         {"overloaded_seconds", job.served->overloaded_seconds}};
  }
  auto& rounds = out["rounds"] = nlohmann::ordered_json::array();
  for (const RoundSample& r : result.rounds)
    rounds.push_back({{"time", r.time},
                      {"active", r.active},
                      {"waiting", r.waiting},
                      {"used", r.used},
                      {"usable", r.usable},
                      {"goodput", r.goodput},
                      {"objective", r.objective},
                      {"bound", r.bound}});
  return out;
}

}  // namespace ductile::sim
