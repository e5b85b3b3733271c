// Gavel (Narayanan et al., OSDI'20) for the greatest sum of throughputs, as Sia's authors ran it: a
// linear programme gives each job a share of time on each type; rounds serve the jobs that have
// had least of their share. Jobs run on the devices and batch asked for.
#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "ductile/sched/linear_program.h"
#include "ductile/sched/policies_impl.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {
namespace {

class Gavel : public ReasonedPolicy {
 public:
  std::string_view name() const override { return "gavel"; }
  PolicyTraits traits() const override { return {.uses = Scaling::rigid}; }

  Decisions decide(const Round& round) override {
    const size_t count = round.jobs.size();
    const auto types = static_cast<size_t>(round.cluster.type_count());
    if (type_time_.size() != types) {  // also after restore() on another cluster
      type_time_.assign(types, 0);
      job_time_.clear();
    }
    std::unordered_map<JobId, bool> present;
    for (const JobView& job : round.jobs) {
      present[job.id] = true;
      if (job_time_.contains(job.id)) continue;
      job_time_[job.id].assign(types, round.interval / 2);
      for (double& time : type_time_) time += round.interval / 2;
    }
    std::erase_if(job_time_, [&](const auto& entry) { return !present.contains(entry.first); });
    const std::vector<double> share = shares(round);

    struct Entry {
      size_t job, type;
      double priority, share;
    };
    std::vector<Entry> queue;
    for (size_t t = 0; t < types; ++t)
      for (size_t i = 0; i < count; ++i) {
        const double part = job_time_[round.jobs[i].id][t] / type_time_[t];
        queue.push_back({i, t, share[i * types + t] / part, share[i * types + t]});
      }
    std::stable_sort(queue.begin(), queue.end(), [](const Entry& a, const Entry& b) {
      return a.priority != b.priority ? a.priority > b.priority : a.share > b.share;
    });
    std::vector<int64_t> room(types, 0);
    for (size_t t = 0; t < types; ++t)
      room[t] = round.cluster.usable_devices(static_cast<int32_t>(t));
    std::vector<int32_t> type(count, -1);
    // What must not be preempted comes first.
    for (size_t i = 0; i < count; ++i) {
      const JobView& job = round.jobs[i];
      if (job.preemptible || job.allocation.empty()) continue;
      type[i] = held_type(round.cluster, job);
      room[type[i]] -= device_count(job.allocation);
    }
    for (const Entry& entry : queue) {
      const JobView& job = round.jobs[entry.job];
      if (type[entry.job] >= 0 || room[entry.type] < job.requested_devices ||
          !job.types[entry.type].allowed)
        continue;
      type[entry.job] = static_cast<int32_t>(entry.type);
      room[entry.type] -= job.requested_devices;
    }
    std::vector<std::string> reasons(count);
    std::vector<std::vector<size_t>> chosen(types);  // in the order in which they were served
    for (size_t i = 0; i < count; ++i) {
      const JobView& job = round.jobs[i];
      if (type[i] < 0) {
        reasons[i] = fmt::format("waits: has had its share of time; {} devices asked for",
                                 job.requested_devices);
        continue;
      }
      reasons[i] =
          fmt::format("runs on {}: its share there is {:.0f} %", round.cluster.types[type[i]],
                      100 * share[i * types + static_cast<size_t>(type[i])]);
      job_time_[job.id][type[i]] += round.interval;
      type_time_[type[i]] += round.interval;
      if (!job.preemptible && !job.allocation.empty()) chosen[type[i]].push_back(i);
    }
    std::vector<bool> listed(count, false);
    for (const Entry& entry : queue) {
      if (type[entry.job] != static_cast<int32_t>(entry.type) || listed[entry.job]) continue;
      listed[entry.job] = true;
      const JobView& job = round.jobs[entry.job];
      if (job.preemptible || job.allocation.empty()) chosen[entry.type].push_back(entry.job);
    }
    std::vector<Allocation> next(count);
    for (size_t t = 0; t < types; ++t)
      place(round, static_cast<int32_t>(t), std::move(chosen[t]), next);
    return decisions(round, std::move(next), std::move(reasons));
  }

  nlohmann::json state() const override {
    nlohmann::json jobs = nlohmann::json::array();
    const std::map<JobId, std::vector<double>> sorted(job_time_.begin(), job_time_.end());
    for (const auto& [id, times] : sorted) jobs.push_back({id, times});
    return {{"jobs", std::move(jobs)}, {"types", type_time_}};
  }

  void restore(const nlohmann::json& state, const std::string& where) override {
    as_data_loss([&] {
      const JsonFields f(state, where);
      f.only({"jobs", "types"});
      const std::vector<double> types =
          numbers_from(f, f.at("types"), "types", 0, kMostSaved, SIZE_MAX, 1024);
      std::unordered_map<JobId, std::vector<double>> jobs;
      for (const nlohmann::json& item : f.array("jobs")) {
        if (!item.is_array() || item.size() != 2 || jobs.size() > kMostSavedJobs)
          f.wrong("jobs", "a list of [job, seconds by type]", item);
        jobs[f.as_integer(item[0], "jobs", 0, INT64_MAX)] =
            numbers_from(f, item[1], "jobs", 1e-300, kMostSaved, types.size());
      }
      // Shares are divided by it.
      if (!jobs.empty() && std::count(types.begin(), types.end(), 0.0) > 0)
        f.wrong("types", "a list of times above 0 once there are jobs", f.at("types"));
      job_time_ = std::move(jobs);
      type_time_ = types;
    });
  }

 private:
  // Steps a second on the devices and batch asked for; 0 where the type has too few devices.
  static double rate(const Round& round, const JobView& job, size_t type) {
    const TypeModel& model = job.types[type];
    if (!model.allowed ||
        job.requested_devices > round.cluster.usable_devices(static_cast<int32_t>(type)))
      return 0;
    return model.requested_rate / std::max(job.requested_batch, 1);
  }

  // Of the many optima the authors' interior-point solver returns one that treats equal jobs
  // equally; a corner, which the simplex method finds, serves some of them and starves others.
  static void share_alike(const Round& round, const std::vector<double>& cost,
                          std::vector<double>& x) {
    const size_t jobs = round.jobs.size(), types = round.cluster.types.size();
    std::map<std::pair<int32_t, std::vector<double>>, std::vector<size_t>> alike;
    for (size_t i = 0; i < jobs; ++i)
      alike[{round.jobs[i].requested_devices,
             std::vector<double>(cost.begin() + static_cast<ptrdiff_t>(i * types),
                                 cost.begin() + static_cast<ptrdiff_t>((i + 1) * types))}]
          .push_back(i);
    for (const auto& [kind, members] : alike)
      for (size_t t = 0; t < types; ++t) {
        double sum = 0;
        for (const size_t i : members) sum += x[i * types + t];
        for (const size_t i : members) x[i * types + t] = sum / static_cast<double>(members.size());
      }
  }

  // jobs x types, row-major: the fraction of time each job should get. Maximises the sum of rates.
  static std::vector<double> shares(const Round& round) {
    const size_t jobs = round.jobs.size(), types = round.cluster.types.size();
    const size_t variables = jobs * types, rows = jobs + types, columns = variables + rows;
    std::vector<double> matrix(rows * columns, 0), b(rows), cost(columns, 0);
    for (size_t i = 0; i < jobs; ++i) {
      const JobView& job = round.jobs[i];
      b[i] = 1;
      matrix[i * columns + variables + i] = 1;
      for (size_t t = 0; t < types; ++t) {
        matrix[i * columns + i * types + t] = 1;
        matrix[(jobs + t) * columns + i * types + t] = job.requested_devices;
        cost[i * types + t] = -rate(round, job, t);
      }
    }
    for (size_t t = 0; t < types; ++t) {
      b[jobs + t] = static_cast<double>(round.cluster.usable_devices(static_cast<int32_t>(t)));
      matrix[(jobs + t) * columns + variables + jobs + t] = 1;
    }
    std::vector<double> x = solve_linear(matrix, b, cost).x;
    x.resize(variables);
    share_alike(round, cost, x);
    for (double& value : x) value = std::round(value * 1e5) / 1e5;
    return x;
  }

  // Devices of one type by number, as published: they are counted through node by node; the jobs
  // that ask for most choose first, and among equals those that can keep theirs; all others take
  // the lowest that are free. What was chosen earlier may thus push a smaller job off its devices,
  // and a job may straddle nodes that it would fit on.
  static void place(const Round& round, int32_t type, std::vector<size_t> jobs,
                    std::vector<Allocation>& next) {
    const Cluster& cluster = round.cluster;
    std::stable_sort(jobs.begin(), jobs.end(), [&](size_t a, size_t b) {
      const JobView &x = round.jobs[a], &y = round.jobs[b];
      const bool fixed_x = !x.preemptible && !x.allocation.empty();
      const bool fixed_y = !y.preemptible && !y.allocation.empty();
      if (fixed_x != fixed_y) return fixed_x;  // not in the published one, which preempts all
      return x.requested_devices > y.requested_devices;
    });
    FreeDevices free(cluster);
    for (size_t begin = 0; begin < jobs.size();) {
      const int32_t devices = round.jobs[jobs[begin]].requested_devices;
      size_t end = begin;
      while (end < jobs.size() && round.jobs[jobs[end]].requested_devices == devices) ++end;
      for (size_t k = begin; k < end; ++k) {
        const JobView& job = round.jobs[jobs[k]];
        if (held_type(cluster, job) == type && free.take(job.allocation))
          next[jobs[k]] = job.allocation;
      }
      for (size_t k = begin; k < end; ++k) {
        Allocation& mine = next[jobs[k]];
        int32_t left = mine.empty() ? devices : 0;
        for (int32_t n = 0; n < cluster.nodes() && left > 0; ++n) {
          if (cluster.node_type[n] != type || free.on_node(n) == 0) continue;
          const NodeShare share{n, std::min(left, free.on_node(n))};
          mine.push_back(share);
          free.take({share});
          left -= share.devices;
        }
      }
      begin = end;
    }
  }

  std::unordered_map<JobId, std::vector<double>> job_time_;  // seconds had, by type
  std::vector<double> type_time_;
};

}  // namespace

std::unique_ptr<Policy> make_gavel(const PolicyOptions&) { return std::make_unique<Gavel>(); }

}  // namespace ductile::sched
