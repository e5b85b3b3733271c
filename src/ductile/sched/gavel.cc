// Gavel (Narayanan et al., OSDI'20) for the greatest sum of throughputs, as Sia's authors ran it: a
// linear programme gives each job a share of time on each type; rounds serve the jobs that have
// had least of their share. Jobs run on the devices and batch asked for.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ductile/sched/linear_program.h"
#include "ductile/sched/policies_impl.h"

namespace ductile::sched {
namespace {

class Gavel : public ReasonedPolicy {
 public:
  std::string_view name() const override { return "gavel"; }
  Scaling uses() const override { return Scaling::rigid; }

  Decisions decide(const Round& round) override {
    const size_t count = round.jobs.size();
    const auto types = static_cast<size_t>(round.cluster.type_count());
    type_time_.resize(types, 0);
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
    FreeDevices free(round.cluster);
    std::vector<Allocation> next(count);
    std::vector<std::string> reasons(count);
    std::vector<size_t> order;
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
      if (held_type(round.cluster, job) == type[i]) {
        next[i] = job.allocation;
        free.take(next[i]);
      } else {
        order.push_back(i);
      }
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return round.jobs[a].requested_devices > round.jobs[b].requested_devices;
    });
    for (const size_t i : order)
      next[i] = free.take_most_free_first(type[i], round.jobs[i].requested_devices);
    return decisions(round, std::move(next), std::move(reasons));
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
    for (double& value : x) value = std::round(value * 1e5) / 1e5;
    return x;
  }

  std::unordered_map<JobId, std::vector<double>> job_time_;  // seconds had, by type
  std::vector<double> type_time_;
};

}  // namespace

std::unique_ptr<Policy> make_gavel(const PolicyOptions&) { return std::make_unique<Gavel>(); }

}  // namespace ductile::sched
