// FIFO and shortest remaining time first: jobs run on the devices they asked for or wait.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/json_value.h"
#include "ductile/sched/policies_impl.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {
namespace {

// Seconds the job still needs on what it asked for; nothing where nobody knows.
std::optional<double> remaining_seconds(const JobView& job) {
  if (!job.remaining_steps || job.known_step_seconds.empty()) return std::nullopt;
  const size_t k = std::clamp<size_t>(job.requested_devices, 1, job.known_step_seconds.size());
  return *job.remaining_steps * job.known_step_seconds[k - 1];
}

// What the jobs of a round still need, and who is first. A job of which it is not known, as a
// command or a job that counts in epochs, counts as an average one: put last it would wait for ever
// where others keep coming, and put first it would hold up everybody. For the same reasons
//  - one that has run longer than that counts as twice the average, then four times, and so on:
//    what ran long may run for ever, and so nobody waits longer for it than it has run;
//  - what it has waited for jobs of known length is taken from that, since long jobs that wait keep
//    the average above what is short for ever: the device-seconds that these have held since it
//    came, over all devices. What it has waited for others of its sort counts for nothing.
// Among them those that run and save nothing come first, since they would lose all that they have
// done to others that may take as long; then those that have run least, by these doublings, so that
// they do not take turns. One doubling less counts who has waited for as long as it is taken to
// need, so that none waits for ever for those that keep coming. Where nothing is known all are
// alike, and the first that came is first.
// A job that saves nothing is not stopped again before it has run for as long as all that it has
// lost, so that it is begun a few times, and not for ever, where short jobs keep coming.
class WorkLeft {
 public:
  // `known_service`: of each job, the device-seconds that jobs of known length have held since it
  // came.
  WorkLeft(const Round& round, const std::vector<double>& known_service) : round_(round) {
    double sum = 0, count = 0;
    for (const JobView& job : round.jobs) {
      const std::optional<double> seconds = remaining_seconds(job);
      known_.push_back(seconds.has_value());
      left_.push_back(seconds.value_or(0));
      sum += left_.back();
      count += known_.back();
    }
    if (count == 0) return;
    average_ = sum / count;
    int64_t devices = 0;
    for (int32_t node = 0; node < round.cluster.nodes(); ++node)
      devices += round.cluster.usable(node);
    guessed_.resize(left_.size());
    turn_.resize(left_.size());
    waited_.resize(left_.size());
    for (size_t i = 0; i < left_.size(); ++i)
      if (!known_[i])
        guess(i, known_service[i] / static_cast<double>(std::max<int64_t>(devices, 1)));
  }

  std::vector<size_t> order() const {
    std::vector<size_t> known, unknown, out;
    for (size_t i = 0; i < left_.size(); ++i) (known_[i] ? known : unknown).push_back(i);
    const auto by = [this](const std::vector<double>& what) {
      // Of two that are alike the one that runs goes on: by service they would take turns, and
      // where a restart takes longer than a round neither would ever get anywhere.
      return [this, &what](size_t a, size_t b) {
        return what[a] != what[b] ? what[a] < what[b] : runs(a) && !runs(b);
      };
    };
    std::ranges::stable_sort(known, by(left_));
    if (average_) {
      std::ranges::stable_sort(unknown, std::greater<>(), [this](size_t i) { return waited_[i]; });
      std::ranges::stable_sort(unknown, by(turn_));
    }
    std::ranges::stable_partition(unknown,
                                  [this](size_t i) { return runs(i) && !round_.jobs[i].saves; });
    for (size_t k = 0, u = 0; k < known.size() || u < unknown.size();) {
      const bool takes_known =
          u == unknown.size() || (k < known.size() && !by(left_)(unknown[u], known[k]));
      out.push_back(takes_known ? known[k++] : unknown[u++]);
    }
    std::ranges::stable_partition(out, [this](size_t i) { return is_fixed(i) || makes_up(i); });
    return out;
  }

  std::string why_it_runs(size_t job) const {
    if (is_fixed(job)) return "it is not to be stopped";
    if (makes_up(job)) return "it saves nothing, and has not yet run as long as it did in vain";
    if (known_[job]) return fmt::format("{:.0f} s of work left, among the least", left_[job]);
    if (!average_)
      return fmt::format("of no job the work left is known, and it {}",
                         runs(job) ? "runs already" : "came first");
    return fmt::format(
        "its work left is not known and counts as {:.0f} s, {} less what it has waited for others",
        left_[job],
        guessed_[job] > *average_ ? "about as much as it has run" : "the average of others");
  }
  // `before`: jobs that run and come before it in the order.
  std::string why_it_waits(size_t job, const std::vector<size_t>& before) const {
    bool less = false, guessed = false, alike = false, fixed = false;
    for (const size_t other : before) {
      if (is_fixed(other) || makes_up(other)) {
        fixed = true;
      } else if (left_[other] >= left_[job]) {
        alike = true;
      } else {
        (known_[other] ? less : guessed) = true;
      }
    }
    std::string who;
    const auto add = [&who](bool any, std::string_view what) {
      if (any) who += fmt::format("{}{}", who.empty() ? "" : " or ", what);
    };
    add(less, "with less left");
    add(guessed, "whose work left is not known and counts as less");
    add(alike, average_ ? "that count as much and were before it" : "that came before");
    add(fixed, "that are not to be stopped");
    const std::string asked = devices_text(round_.jobs[job].requested_devices);
    if (who.empty()) return fmt::format("waits: {} asked for, and no node has them now", asked);
    return fmt::format("waits: {} asked for; jobs {} hold them", asked, who);
  }

 private:
  bool runs(size_t job) const { return !round_.jobs[job].allocation.empty(); }
  bool is_fixed(size_t job) const { return runs(job) && !round_.jobs[job].preemptible; }
  bool makes_up(size_t i) const {
    const JobView& job = round_.jobs[i];
    if (known_[i] || !runs(i) || job.saves || job.last_change < 0) return false;
    const double now = round_.now - job.last_change;
    return 2 * now < job.attained_service / std::max(job.requested_devices, 1);
  }
  // `waited`: for those of known length.
  void guess(size_t i, double waited) {
    const JobView& job = round_.jobs[i];
    const double ran = job.attained_service / std::max(job.requested_devices, 1);
    const double times = ran / std::max(*average_, 1.0);
    const double doublings = std::floor(std::log2(std::max(times, 1.0)));
    guessed_[i] = *average_ * std::exp2(doublings);
    const double own = std::max(0.0, round_.now - job.arrival - ran);
    waited_[i] = own;
    turn_[i] = doublings - std::floor(own / std::max(guessed_[i], 1.0));
    left_[i] = std::max(0.0, guessed_[i] - std::max(0.0, std::min(waited, own)));
  }

  const Round& round_;
  std::vector<uint8_t> known_;
  std::vector<double> left_;     // seconds; of a job of unknown length, what it counts as
  std::vector<double> guessed_;  // of these, what they are taken to need once they begin
  // Of these: the doublings, less one each time that it has waited as long as it is taken to need;
  // and what it has waited.
  std::vector<double> turn_, waited_;
  std::optional<double> average_;
};

class QueuePolicy : public ReasonedPolicy {
 public:
  explicit QueuePolicy(bool shortest_first) : shortest_first_(shortest_first) {}
  std::string_view name() const override { return shortest_first_ ? "srtf" : "fifo"; }
  PolicyTraits traits() const override { return {.uses = Scaling::rigid}; }

  Decisions decide(const Round& round) override {
    const size_t n = round.jobs.size();
    const WorkLeft left(round, known_service(round));
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    if (shortest_first_) order = left.order();
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
    }
    std::vector<size_t> before;
    for (const size_t i : order) {
      const JobView& job = round.jobs[i];
      if (type[i] < 0) {
        reasons[i] = shortest_first_
                         ? left.why_it_waits(i, before)
                         : fmt::format("waits for {}, or for the job before it in the queue",
                                       devices_text(job.requested_devices));
        continue;
      }
      before.push_back(i);
      if (next[i].empty()) next[i] = free.take_most_free_first(type[i], job.requested_devices);
      // In words that stay true while it runs.
      reasons[i] = fmt::format("runs on {} {}: {}", device_count(next[i]),
                               round.cluster.types[static_cast<size_t>(type[i])],
                               shortest_first_ ? left.why_it_runs(i) : "it was first in the queue");
    }
    note_known(round, next);
    return decisions(round, std::move(next), std::move(reasons));
  }

  void forget(JobId job) override { came_.erase(job); }
  nlohmann::json state() const override {
    if (!shortest_first_) return Policy::state();
    std::vector<std::tuple<JobId, double, double>> sorted;
    for (const auto& [job, came] : came_) sorted.emplace_back(job, came.at, came.seen);
    std::sort(sorted.begin(), sorted.end());
    nlohmann::json jobs = nlohmann::json::array();
    for (const auto& [job, at, seen] : sorted) jobs.push_back({job, at, seen});
    return {{"at", round_at_},
            {"known_service", known_service_},
            {"known_devices", known_devices_},
            {"jobs", std::move(jobs)}};
  }
  // Also of a version that remembered nothing.
  void restore(const nlohmann::json& state, const std::string& where) override {
    if (!shortest_first_ || state == Policy::state()) return Policy::restore(state, where);
    as_data_loss([&] {
      const JsonFields f(state, where);
      f.only({"at", "known_service", "known_devices", "jobs"});
      const double at = f.number("at", 0, kMostSeconds);
      std::unordered_map<JobId, Came> came;
      for (const nlohmann::json& item : f.array("jobs")) {
        if (!item.is_array() || item.size() < 2 || item.size() > 3 || came.size() == kMostSavedJobs)
          f.wrong("jobs", "a list of [job, device-seconds, second]", item);
        came[f.as_integer(item[0], "jobs", 0, INT64_MAX)] = {
            f.as_number(item[1], "jobs", 0, kMostSeconds),
            item.size() == 3 ? f.as_number(item[2], "jobs", 0, kMostSeconds) : at};
      }
      const double service = f.number("known_service", 0, kMostSeconds);
      known_devices_ = f.number("known_devices", 0, kMostSeconds);
      round_at_ = at;
      known_service_ = service;
      came_ = std::move(came);
    });
  }

 private:
  static constexpr double kMostSeconds = 1e18;  // of all devices
  static constexpr double kRemembers = 86400;
  struct Came {
    double at = 0;    // known_service_ when it came
    double seen = 0;  // seconds; in the last round that showed it
  };

  // What jobs of known length have held since each job came. A job may be hidden for some rounds,
  // as one that finds no node. Between two rounds that are far apart nobody looked: the machine may
  // have been off.
  std::vector<double> known_service(const Round& round) {
    known_service_ += known_devices_ * std::clamp(round.now - round_at_, 0.0, 2 * round.interval);
    round_at_ = round.now;
    std::vector<double> since;
    for (const JobView& job : round.jobs) {
      Came& came = came_.try_emplace(job.id, Came{known_service_, 0}).first->second;
      came.seen = round.now;
      since.push_back(known_service_ - came.at);
    }
    std::erase_if(came_,
                  [&](const auto& entry) { return round.now - entry.second.seen > kRemembers; });
    return since;
  }
  void note_known(const Round& round, const std::vector<Allocation>& next) {
    known_devices_ = 0;
    for (size_t i = 0; i < next.size(); ++i)
      if (remaining_seconds(round.jobs[i])) known_devices_ += device_count(next[i]);
  }

  bool shortest_first_;
  double known_service_ = 0, known_devices_ = 0;  // device-seconds; held now
  double round_at_ = 0;
  std::unordered_map<JobId, Came> came_;
};

}  // namespace

std::unique_ptr<Policy> make_fifo(const PolicyOptions&) {
  return std::make_unique<QueuePolicy>(false);
}

std::unique_ptr<Policy> make_srtf(const PolicyOptions&) {
  return std::make_unique<QueuePolicy>(true);
}

}  // namespace ductile::sched
