// FIFO and shortest remaining time first: jobs run on the devices they asked for or wait.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "ductile/sched/policies_impl.h"

namespace ductile::sched {
namespace {

// Seconds the job still needs on what it asked for; nothing where nobody knows.
std::optional<double> remaining_seconds(const JobView& job) {
  if (!job.remaining_steps || job.known_step_seconds.empty()) return std::nullopt;
  const size_t k = std::clamp<size_t>(job.requested_devices, 1, job.known_step_seconds.size());
  return *job.remaining_steps * job.known_step_seconds[k - 1];
}

// What the jobs of a round still need. One of which it is not known, as of a command or of a job
// that counts in epochs, counts as an average one: put last it would wait for ever where others
// keep coming, and put first it would hold up everybody. What it has waited, or run, is taken from
// that, since long jobs that wait keep the average above what is short for ever. Where nothing is
// known all are alike, and the first that came is first.
class WorkLeft {
 public:
  explicit WorkLeft(const Round& round) {
    double sum = 0, count = 0;
    for (const JobView& job : round.jobs) {
      known_.push_back(remaining_seconds(job));
      waited_.push_back(std::max(0.0, round.now - job.arrival));
      if (!known_.back()) continue;
      sum += *known_.back();
      ++count;
    }
    if (count > 0) average_ = sum / count;
  }
  double of(size_t job) const {
    return known_[job].value_or(std::max(0.0, average_.value_or(0) - waited_[job]));
  }
  std::string why_it_starts(size_t job) const {
    if (known_[job])
      return fmt::format("starts: {:.0f} s of work left, among the least", *known_[job]);
    return average_ ? fmt::format(
                          "starts: its work left is not known and counts as {:.0f} s, the "
                          "average of others less what it has waited",
                          of(job))
                    : "starts: of no job the work left is known, and it came first";
  }
  std::string why_it_waits(const JobView& job) const {
    return fmt::format("waits: {} asked for; jobs {} hold them",
                       devices_text(job.requested_devices),
                       average_ ? "with less left" : "that came before");
  }

 private:
  std::vector<std::optional<double>> known_;
  std::vector<double> waited_;
  std::optional<double> average_;
};

class QueuePolicy : public ReasonedPolicy {
 public:
  explicit QueuePolicy(bool shortest_first) : shortest_first_(shortest_first) {}
  std::string_view name() const override { return shortest_first_ ? "srtf" : "fifo"; }
  PolicyTraits traits() const override { return {.uses = Scaling::rigid}; }

  Decisions decide(const Round& round) override {
    const size_t n = round.jobs.size();
    std::vector<size_t> order(n);
    for (size_t i = 0; i < n; ++i) order[i] = i;
    const WorkLeft left(round);
    if (shortest_first_) {
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        const JobView &x = round.jobs[a], &y = round.jobs[b];
        if (x.preemptible != y.preemptible && (!x.allocation.empty() || !y.allocation.empty()))
          return !x.preemptible && !x.allocation.empty();
        if (left.of(a) != left.of(b)) return left.of(a) < left.of(b);
        // Of two that are alike the one that runs goes on: by service they would take turns, and
        // where a restart takes longer than a round neither would ever get anywhere.
        return !x.allocation.empty() && y.allocation.empty();
      });
    }
    // Who runs, on which type; then where, those first that stay where they are.
    std::vector<int64_t> room(round.cluster.type_count(), 0);
    for (int32_t node = 0; node < round.cluster.nodes(); ++node)
      room[round.cluster.node_type[node]] += round.cluster.usable(node);
    std::vector<int32_t> type(n, -1);
    if (!shortest_first_)
      for (size_t i = 0; i < n; ++i) {
        type[i] = held_type(round.cluster, round.jobs[i]);
        if (type[i] >= 0) room[type[i]] -= device_count(round.jobs[i].allocation);
      }
    bool blocked = false;
    for (const size_t i : order) {
      const JobView& job = round.jobs[i];
      if (type[i] >= 0) continue;
      std::vector<int32_t> choices = types_by_speed(job);
      const int32_t held = held_type(round.cluster, job);
      if (held >= 0) choices.insert(choices.begin(), held);
      for (const int32_t t : choices) {
        if (blocked || room[t] < job.requested_devices) continue;
        type[i] = t;
        room[t] -= job.requested_devices;
        break;
      }
      // First come, first served: nobody overtakes.
      if (type[i] < 0 && !shortest_first_) blocked = true;
    }
    FreeDevices free(round.cluster);
    std::vector<Allocation> next(n);
    std::vector<std::string> reasons(n);
    for (size_t i = 0; i < n; ++i) {
      const JobView& job = round.jobs[i];
      if (type[i] < 0 || type[i] != held_type(round.cluster, job)) continue;
      free.take(job.allocation);
      next[i] = job.allocation;
      reasons[i] = "goes on with what it has";
    }
    for (const size_t i : order) {
      const JobView& job = round.jobs[i];
      if (type[i] >= 0 && next[i].empty()) {
        next[i] = free.take_most_free_first(type[i], job.requested_devices);
        reasons[i] = shortest_first_ ? left.why_it_starts(i) : "starts: first in the queue";
      } else if (type[i] < 0) {
        reasons[i] = shortest_first_
                         ? left.why_it_waits(job)
                         : fmt::format("waits for {}, or for the job before it in the queue",
                                       devices_text(job.requested_devices));
      }
    }
    return decisions(round, std::move(next), std::move(reasons));
  }

 private:
  bool shortest_first_;
};

}  // namespace

std::unique_ptr<Policy> make_fifo(const PolicyOptions&) {
  return std::make_unique<QueuePolicy>(false);
}

std::unique_ptr<Policy> make_srtf(const PolicyOptions&) {
  return std::make_unique<QueuePolicy>(true);
}

}  // namespace ductile::sched
