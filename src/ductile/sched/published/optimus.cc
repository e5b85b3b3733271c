// Optimus (Peng et al., EuroSys'18) with an oracle, as in Pollux's comparison: each job gets one
// device, then devices go one by one to the job whose remaining time shrinks most. The batch stays
// as asked for; step times and remaining steps are known.
#include <algorithm>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "ductile/sched/policies_impl.h"

namespace ductile::sched {
namespace {

class Optimus : public ReasonedPolicy {
 public:
  std::string_view name() const override { return "optimus"; }
  PolicyTraits traits() const override { return {.uses = Scaling::strong, .sees_types = false}; }

  Decisions decide(const Round& round) override {
    const size_t n = round.jobs.size();
    std::vector<int64_t> room(round.cluster.type_count(), 0);
    for (int32_t node = 0; node < round.cluster.nodes(); ++node)
      room[round.cluster.node_type[node]] += round.cluster.usable(node);
    std::vector<int32_t> count(n, 0), type(n, -1);
    std::vector<double> gains(n, 0);
    const double average = average_steps(round.jobs);
    for (size_t i = 0; i < n; ++i) {
      const JobView& job = round.jobs[i];
      // Where it is, if there is room; else where most is free.
      type[i] = held_type(round.cluster, job);
      if (type[i] < 0 || room[type[i]] < job.min_devices)
        type[i] = static_cast<int32_t>(std::max_element(room.begin(), room.end()) - room.begin());
      if (room[type[i]] < job.min_devices) continue;
      count[i] = job.min_devices;
      room[type[i]] -= job.min_devices;
      gains[i] = gain(job, count[i], room[type[i]], average);
    }
    while (n > 0) {
      const size_t best =
          static_cast<size_t>(std::max_element(gains.begin(), gains.end()) - gains.begin());
      if (gains[best] <= 0) break;
      if (room[type[best]] == 0) {
        gains[best] = 0;
        continue;
      }
      ++count[best];
      gains[best] = gain(round.jobs[best], count[best], room[type[best]], average);
      --room[type[best]];
    }
    FreeDevices free(round.cluster);
    std::vector<Allocation> next(n);
    std::vector<std::string> reasons(n);
    std::vector<size_t> order;
    for (size_t i = 0; i < n; ++i) {
      const JobView& job = round.jobs[i];
      order.push_back(i);
      if (count[i] == 0 || device_count(job.allocation) != count[i] ||
          held_type(round.cluster, job) != type[i])
        continue;
      next[i] = job.allocation;
      free.take(next[i]);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return count[a] < count[b]; });
    for (const size_t i : order) {
      if (count[i] == 0) {
        reasons[i] = "waits: every device has a job that came before";
        continue;
      }
      reasons[i] = reason(round.jobs[i], count[i], average);
      if (next[i].empty()) next[i] = free.take_most_free_first(type[i], count[i]);
    }
    return decisions(round, std::move(next), std::move(reasons));
  }

 private:
  // Steps that a job still has of which nobody knows it.
  static double average_steps(std::span<const JobView> jobs) {
    double sum = 0, count = 0;
    for (const JobView& job : jobs)
      if (job.remaining_steps) sum += *job.remaining_steps, ++count;
    return count > 0 ? sum / count : 1;
  }
  // Seconds that one more device saves; nothing where nobody knows how fast it is with it.
  static std::optional<double> saved(const JobView& job, int32_t devices, double average) {
    const size_t k = static_cast<size_t>(devices);
    if (k < 1 || k + 1 > job.known_step_seconds.size()) return std::nullopt;
    return (job.known_step_seconds[k - 1] - job.known_step_seconds[k]) *
           job.remaining_steps.value_or(average);
  }
  // 0 where it may not have one.
  static double gain(const JobView& job, int32_t devices, int64_t room, double average) {
    if (room < 1 || devices + 1 > job.max_devices) return 0;
    return saved(job, devices, average).value_or(0);
  }
  static std::string reason(const JobView& job, int32_t devices, double average) {
    const std::string held = devices_text(devices);
    if (devices >= job.max_devices) return held + ": as many as it may have";
    const std::optional<double> seconds = saved(job, devices, average);
    if (!seconds) return held + ": what one more would save is not known";
    return *seconds <= 0 ? held + ": one more would save nothing"
                         : fmt::format("{}: one more would save {:.0f} s", held, *seconds);
  }
};

}  // namespace

std::unique_ptr<Policy> make_optimus(const PolicyOptions&) { return std::make_unique<Optimus>(); }

}  // namespace ductile::sched
