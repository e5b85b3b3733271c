// Tiers, which most policies do not know, and none weighs without the promises of a simulation:
// what a policy has decided is changed where a job of a higher tier would wait beside one of a
// lower tier that holds, or is about to have, what it could start on.
#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/cluster/scheduler_impl.h"

namespace ductile::cluster {

// What all jobs hold once a round's decisions are carried out, and who gives how much of it to
// whom. Jobs are named by their places in the round.
class Scheduler::TierRound {
 public:
  TierRound(const Scheduler& scheduler, const sched::Round& round,
            const sched::Decisions& decisions);

  // To each job that waits, in order of tiers and then of age: what it needs to begin.
  void give();
  // In place of what was decided; `displaced`: those that wait for that, and for whom.
  void apply(sched::Decisions& decisions, std::map<JobId, std::string>& displaced) const;

 private:
  static constexpr size_t kTiers = 3;

  // Of one node, for one job: what is free, and what jobs of lower tiers would give up, by tier.
  struct Room {
    int32_t free = 0;
    std::array<int32_t, kTiers> held{};
    int32_t all() const { return free + held[0] + held[1] + held[2]; }
  };
  struct Place {
    int32_t node = -1;
    Room room;
  };
  // Where a job could begin, and what that takes from tiers: from the highest, and so on.
  struct Choice {
    sched::Allocation allocation;
    std::array<int32_t, kTiers> taken{};
  };

  const sched::JobView& view(size_t job) const { return round_.jobs[job]; }
  const Job& job_of(size_t job) const { return scheduler_.jobs_.at(view(job).id); }
  static size_t tier_of(const sched::JobView& job) { return static_cast<size_t>(job.tier); }
  bool gives_to(size_t other, size_t taker) const;
  Room room_on(int32_t node, size_t taker) const;
  static std::optional<Choice> spread(std::vector<Place> places, int32_t wanted);
  std::optional<Choice> as_before(size_t taker) const;
  std::optional<Choice> choose(size_t taker) const;
  void take(int32_t node, int32_t wanted, size_t taker);
  void stop(size_t job);
  void begin(size_t job, sched::Allocation allocation);

  const Scheduler& scheduler_;
  const sched::Round& round_;
  std::vector<sched::Allocation> next_;    // by job
  std::vector<int32_t> free_, free_gpus_;  // by node
  std::vector<std::vector<size_t>> here_;  // by node: jobs that hold, or held, some of it
  std::map<std::tuple<sched::Tier, double, JobId>, size_t> waiting_;  // by whose turn it is
  std::map<size_t, std::string> changed_;  // by job: why it has something else than was decided
  std::map<size_t, size_t> taken_for_;     // by job that gives: the last that takes
};

Scheduler::TierRound::TierRound(const Scheduler& scheduler, const sched::Round& round,
                                const sched::Decisions& decisions)
    : scheduler_(scheduler), round_(round), next_(round.jobs.size()) {
  std::map<JobId, const sched::Allocation*> decided;
  for (const sched::Decision& change : decisions.changes) decided[change.job] = &change.allocation;
  for (int32_t node = 0; node < round.cluster.nodes(); ++node) {
    free_.push_back(round.cluster.usable(node));
    free_gpus_.push_back(scheduler.gpus_[static_cast<size_t>(node)]);
  }
  here_.resize(free_.size());
  for (size_t i = 0; i < next_.size(); ++i) {
    const auto found = decided.find(view(i).id);
    begin(i, found == decided.end() ? view(i).allocation : *found->second);
    if (next_[i].empty() && !view(i).service) waiting_.emplace(turn_of(view(i)), i);
  }
}

void Scheduler::TierRound::begin(size_t job, sched::Allocation allocation) {
  for (const sched::NodeShare& share : allocation) {
    const auto node = static_cast<size_t>(share.node);
    free_[node] -= share.devices;
    if (std::ranges::find(here_[node], job) == here_[node].end()) here_[node].push_back(job);
  }
  if (!allocation.empty())
    free_gpus_[static_cast<size_t>(allocation.front().node)] -= job_of(job).gpus;
  next_[job] = std::move(allocation);
}

// Its GPUs, of which some may have failed, are found free in the next round.
void Scheduler::TierRound::stop(size_t job) {
  for (const sched::NodeShare& share : next_[job])
    free_[static_cast<size_t>(share.node)] += share.devices;
  next_[job].clear();
  waiting_.emplace(turn_of(view(job)), job);  // it may take from those of lower tiers itself
}

bool Scheduler::TierRound::gives_to(size_t other, size_t taker) const {
  const sched::JobView& from = view(other);
  return view(taker).tier < from.tier && from.preemptible && !from.service && !from.granted;
}

// None where it may not run, or would not stay.
Scheduler::TierRound::Room Scheduler::TierRound::room_on(int32_t node, size_t taker) const {
  const auto n = static_cast<size_t>(node);
  const sched::JobView& job = view(taker);
  const sched::Cluster& cluster = round_.cluster;
  if (cluster.usable(node) == 0 || scheduler_.away_.contains(node)) return {};
  if (cluster.node_leaves_at[n] < round_.now + kSoonGone) return {};
  if (!job.types[static_cast<size_t>(cluster.node_type[n])].allowed) return {};
  if (scheduler_.is_elsewhere(job, node) || scheduler_.yields(job, node)) return {};
  const int32_t gpus = job_of(taker).gpus;
  if (gpus > 0 && free_gpus_[n] - scheduler_.kept_gpus(job, node) < gpus) return {};
  Room out{std::max(0, free_[n]), {}};
  for (const size_t other : here_[n])
    if (gives_to(other, taker)) out.held[tier_of(view(other))] += devices_on(next_[other], node);
  return out;
}

// What is free comes first, then what the lowest tier holds; on nodes with most that is free.
std::optional<Scheduler::TierRound::Choice> Scheduler::TierRound::spread(std::vector<Place> places,
                                                                         int32_t wanted) {
  std::ranges::stable_sort(
      places, [](const Place& a, const Place& b) { return a.room.free > b.room.free; });
  std::vector<int32_t> shares(places.size());
  Choice out;
  const auto use = [&](const auto& room_of, int32_t& sum) {
    for (size_t i = 0; i < places.size() && wanted > 0; ++i) {
      const int32_t here = std::min(wanted, room_of(places[i].room));
      shares[i] += here;
      sum += here;
      wanted -= here;
    }
  };
  int32_t free = 0;
  use([](const Room& room) { return room.free; }, free);
  for (size_t tier = kTiers; tier-- > 0;)
    use([tier](const Room& room) { return room.held[tier]; }, out.taken[tier]);
  if (wanted > 0) return std::nullopt;
  for (size_t i = 0; i < places.size(); ++i)
    if (shares[i] > 0) out.allocation.push_back({places[i].node, shares[i]});
  return out;
}

// Of a job that is to be stopped: what it has, so that it goes on.
std::optional<Scheduler::TierRound::Choice> Scheduler::TierRound::as_before(size_t taker) const {
  const sched::Allocation& held = view(taker).allocation;
  for (const sched::NodeShare& share : held)
    if (room_on(share.node, taker).all() < share.devices) return std::nullopt;
  // Its user may have said meanwhile that it is to have fewer.
  if (held.empty() || sched::device_count(held) > view(taker).max_devices) return std::nullopt;
  return Choice{held, {}};
}

// Where least is taken from whom: on one node, or on nodes of one type and region.
std::optional<Scheduler::TierRound::Choice> Scheduler::TierRound::choose(size_t taker) const {
  const sched::JobView& job = view(taker);
  const bool one_node = job_of(taker).one_node;
  const bool regions = scheduler_.policy_->traits().sees_regions;
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::vector<Place>> pools;
  for (int32_t node = 0; node < round_.cluster.nodes(); ++node) {
    const Room room = room_on(node, taker);
    if (room.all() == 0) continue;
    const int32_t type = round_.cluster.node_type[static_cast<size_t>(node)];
    pools[{one_node ? node : -1, type, regions ? scheduler_.region_of(node) : 0}].push_back(
        {node, room});
  }
  std::optional<Choice> best;
  std::tuple<std::array<int32_t, kTiers>, bool, double> least;
  for (auto& [key, places] : pools) {
    const auto& [node, type, region] = key;
    auto choice = spread(std::move(places), job.min_devices);
    if (!choice) continue;
    const bool away = regions && job.region >= 0 && region != job.region;
    const std::tuple cost(choice->taken, away, -job.types[static_cast<size_t>(type)].unit_rate);
    if (best && !(cost < least)) continue;
    best = std::move(choice);
    least = cost;
  }
  return best;
}

// Until so many devices are free there. Of the lowest tier first; those that can do with fewer
// shrink, then those that have not begun wait, and then the last to begin are stopped.
void Scheduler::TierRound::take(int32_t node, int32_t wanted, size_t taker) {
  const auto missing = [&] { return wanted - free_[static_cast<size_t>(node)]; };
  const auto note = [&](size_t other) {
    changed_[other] = fmt::format("it makes room for job {} ({}), whose tier is {}", view(taker).id,
                                  view(taker).name, sched::to_string(view(taker).tier));
    taken_for_[other] = taker;
  };
  for (size_t tier = kTiers; tier-- > 0 && missing() > 0;) {
    std::vector<size_t> others;
    for (const size_t other : here_[static_cast<size_t>(node)])
      if (tier_of(view(other)) == tier && gives_to(other, taker) &&
          devices_on(next_[other], node) > 0)
        others.push_back(other);
    std::ranges::stable_sort(others, {}, [&](size_t other) {
      const sched::JobView& job = view(other);
      return std::tuple(!job.allocation.empty(), -job.last_change, -job.id);
    });
    for (const size_t other : others) {
      const sched::JobView& job = view(other);
      const int32_t spare = sched::device_count(next_[other]) - job.min_devices;
      const int32_t less = std::min({missing(), spare, devices_on(next_[other], node)});
      if (less <= 0 || job.scaling == sched::Scaling::rigid || job_of(other).one_node) continue;
      take_from(next_[other], node, less);
      free_[static_cast<size_t>(node)] += less;
      note(other);
    }
    for (const size_t other : others) {
      if (missing() <= 0) break;
      stop(other);
      note(other);
    }
  }
}

void Scheduler::TierRound::give() {
  size_t lowest = 0;
  for (const sched::JobView& job : round_.jobs) lowest = std::max(lowest, tier_of(job));
  // Whoever asks for as much as one before it that found nothing finds nothing either.
  std::map<std::tuple<size_t, bool, int32_t>, int32_t> in_vain;
  while (!waiting_.empty()) {
    const size_t i = waiting_.begin()->second;
    waiting_.erase(waiting_.begin());
    const sched::JobView& job = view(i);
    if (tier_of(job) >= lowest) break;
    const bool plain = job_of(i).gpus == 0 && job.allocation.empty();
    int32_t& least =
        in_vain
            .try_emplace({tier_of(job), job_of(i).one_node, job.movable ? -1 : job.region},
                         std::numeric_limits<int32_t>::max())
            .first->second;
    if (plain && job.min_devices >= least) continue;
    auto choice = as_before(i);
    if (!choice) choice = choose(i);
    if (!choice) {
      if (plain) least = std::min(least, job.min_devices);
      continue;
    }
    for (const sched::NodeShare& share : choice->allocation) take(share.node, share.devices, i);
    begin(i, std::move(choice->allocation));
    changed_[i] =
        fmt::format("its tier is {}, which comes before others", sched::to_string(job.tier));
    taken_for_.erase(i);
  }
}

void Scheduler::TierRound::apply(sched::Decisions& decisions,
                                 std::map<JobId, std::string>& displaced) const {
  std::map<JobId, size_t> changed;
  for (const auto& [i, why] : changed_) changed[view(i).id] = i;
  std::erase_if(decisions.changes,
                [&](const sched::Decision& change) { return changed.contains(change.job); });
  for (const auto& [i, why] : changed_)
    if (next_[i] != view(i).allocation) decisions.changes.push_back({view(i).id, next_[i], why});
  for (const auto& [i, taker] : taken_for_)
    if (next_[i].empty())
      displaced[view(i).id] =
          fmt::format("waits: job {} ({}) comes first, since its tier is {}", view(taker).id,
                      view(taker).name, sched::to_string(view(taker).tier));
}

void Scheduler::keep_tiers(const sched::Round& round, sched::Decisions& decisions) {
  displaced_.clear();
  const bool alike = std::ranges::all_of(
      round.jobs, [&](const sched::JobView& view) { return view.tier == round.jobs.front().tier; });
  if (alike) return;
  TierRound tiers(*this, round, decisions);
  tiers.give();
  tiers.apply(decisions, displaced_);
  for (const sched::Decision& change : decisions.changes)
    if (!change.allocation.empty()) scattered_.erase(change.job);
}

std::string Scheduler::why(JobId id) const {
  if (const auto found = jobs_.find(id); found != jobs_.end())
    if (std::string text = lacks_nodes(found->second); !text.empty()) return text;
  if (without_gpus_.contains(id)) {
    const int32_t gpus = jobs_.at(id).gpus;
    return fmt::format("waits for {} GPU{} on one node", gpus, gpus == 1 ? "" : "s");
  }
  if (const auto found = displaced_.find(id); found != displaced_.end()) return found->second;
  if (scattered_.contains(id)) return lacks_on_a_node(jobs_.at(id), jobs_.at(id).view.min_devices);
  const auto over = over_quota_.find(id);
  if (over != over_quota_.end()) return over->second;
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return policy_->explain(id);
  const Job& job = found->second;
  return policy_->explain(id) + room_for_pipelines(job, job.granted.value_or(job.view.allocation));
}

}  // namespace ductile::cluster
