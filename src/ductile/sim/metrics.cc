#include "ductile/sim/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include <nlohmann/json.hpp>

namespace ductile::sim {
namespace {

constexpr int kBatches = 24;

// Seconds of one whole job of the application, batch chosen anew each epoch, restart not counted.
double fastest(const Application& app, const ReplayRules& rules, const std::string& type,
               int32_t devices, int32_t per_node) {
  const Profile& profile = app.profile(type);
  sched::BatchLimits limits = app.limits(profile);
  std::vector<int32_t> counts;
  for (int32_t left = devices; left > 0; left -= per_node)
    counts.push_back(std::min(left, per_node));
  if (rules.limit_by_placement) limits.max_local = profile.max_local(counts);
  const double low =
      std::max<double>(limits.init_batch, static_cast<double>(limits.min_local) * devices);
  struct Candidate {
    int32_t batch;
    double step;
  };
  std::vector<Candidate> candidates;
  for (int i = 0; i < kBatches; ++i) {
    const auto batch = static_cast<int32_t>(
        std::ceil(low * std::pow(limits.max_batch / low, i / (kBatches - 1.0)) - 1e-8));
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
      most = std::max(most, sched::gain(app.noise(c.batch, epoch),
                                        static_cast<double>(c.batch) / app.init_batch) /
                                c.step);
    seconds += (app.progress_at(epoch + 1) - app.progress_at(epoch)) / most;
  }
  return seconds * (rules.own_pause ? app.slowdown : 1);
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
  double rate = 0;
  for (int32_t t = 0; t < cluster.type_count(); ++t) {
    const auto of_type = static_cast<double>(cluster.usable_devices(t));
    if (of_type == 0) continue;
    const sched::BatchLimits limits = app.limits(app.profile(cluster.types[t]));
    int32_t most = std::max(limits.max_batch / limits.min_local, 1);
    if (app.most_devices > 0) most = std::min(most, app.most_devices);
    if (job.scaling == sched::Scaling::rigid) most = std::min(most, job.devices);
    const auto devices = static_cast<int32_t>(
        std::clamp(std::floor(std::min(total / std::max(contention, 1.0), of_type)), 1.0,
                   static_cast<double>(std::min(most, 64))));
    rate += of_type / total /
            fastest(app, rules, cluster.types[t], devices, cluster.devices_per_node(t));
  }
  return job.work / rate + pause_of(app, rules);
}

Summary summarise(const SimResult& result, const Workload& workload, const Catalog& catalog,
                  const sched::Cluster& cluster) {
  Summary summary;
  summary.jobs = static_cast<int64_t>(result.jobs.size());
  if (result.jobs.empty()) return summary;
  const double n = static_cast<double>(result.jobs.size());
  std::vector<double> jcts, decisions;
  double service = 0;
  int64_t promised = 0, kept = 0;
  std::map<std::tuple<std::string, int32_t, double, bool>, double> alone;
  for (size_t j = 0; j < result.jobs.size(); ++j) {
    const JobResult& job = result.jobs[j];
    jcts.push_back(job.jct());
    service += job.service;
    summary.restarts += job.restarts / n;
    // Contention to the nearest tenth, so that jobs share what was computed.
    Submission whole = workload.jobs[j];
    whole.work = 1;
    const double contention = std::max(std::round(job.contention * 10) / 10, 1.0);
    const auto key = std::tuple(job.application, whole.devices, contention,
                                whole.scaling == sched::Scaling::rigid);
    auto [found, fresh] = alone.try_emplace(key, 0);
    const Application& app = catalog.find(job.application);
    if (fresh) found->second = alone_seconds(whole, app, catalog.rules, cluster, contention);
    const double pause = pause_of(app, catalog.rules);
    const double rho = job.jct() / ((found->second - pause) * workload.jobs[j].work + pause);
    summary.worst_fairness = std::max(summary.worst_fairness, rho);
    summary.mean_fairness += rho / n;
    summary.unfair_share += (rho > 1) / n;
    if (job.tier != sched::Tier::basic) {
      ++promised;
      const double share = job.service / (workload.jobs[j].devices * std::max(job.jct(), 1.0));
      kept += share >= guarantee(job.tier);
    }
  }
  for (const double jct : jcts) summary.mean += jct / n;
  summary.median = quantile(jcts, 0.5);
  summary.p90 = quantile(jcts, 0.9);
  summary.p99 = quantile(jcts, 0.99);
  summary.makespan = result.end;
  summary.device_hours = service / 3600;
  summary.utilisation =
      result.usable_device_seconds > 0 ? service / result.usable_device_seconds : 0;
  if (promised > 0) summary.sla = static_cast<double>(kept) / static_cast<double>(promised);
  for (const RoundSample& round : result.rounds) {
    decisions.push_back(round.decision_seconds);
    summary.decision_mean += round.decision_seconds / static_cast<double>(result.rounds.size());
  }
  summary.decision_p99 = quantile(decisions, 0.99);
  return summary;
}

Summary average(std::span<const Summary> summaries) {
  Summary out;
  if (summaries.empty()) return out;
  const double n = static_cast<double>(summaries.size());
  double sla = 0;
  int with_sla = 0;
  for (const Summary& s : summaries) {
    out.jobs += s.jobs;
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
    out.decision_mean += s.decision_mean / n;
    out.decision_p99 = std::max(out.decision_p99, s.decision_p99);
    if (s.sla) {
      sla += *s.sla;
      ++with_sla;
    }
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
                                {"unfair_share", s.unfair_share}};
  if (s.sla) out["sla"] = *s.sla;
  out["decision_seconds"] = s.decision_mean;
  out["decision_seconds_p99"] = s.decision_p99;
  return out;
}

nlohmann::ordered_json to_json(const SimResult& result) {
  nlohmann::ordered_json out = {{"workload", result.workload}, {"policy", result.policy}};
  auto& jobs = out["jobs"] = nlohmann::ordered_json::array();
  for (const JobResult& job : result.jobs)
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
