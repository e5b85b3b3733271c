// Two plain policies over regions, to compare with: jobs run on the devices that they asked for, or
// wait, by tier and then in order of arrival; who does not fit is overtaken. With `queue` a job
// that runs is never stopped. With `priority` a job that does not fit stops the last to come of
// lower tiers in the first pool where that makes room for it. Neither heeds announced losses.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "ductile/sched/policies_impl.h"
#include "ductile/sched/pool_round_impl.h"

namespace ductile::sched {
namespace {

constexpr size_t kTiers = 3;

class TierRound {
 public:
  TierRound(const Round& round, bool preempts)
      : round_(round),
        preempts_(preempts),
        plan_(round, round.now, preempts ? ServicesTake::preemptible : ServicesTake::free_devices),
        left_(plan_.devices()),
        running_(plan_.pools().size()),
        pool_(round.jobs.size(), -1) {
    for (size_t i = 0; i < round.jobs.size(); ++i) {
      const int32_t pool = plan_.held_pool(i);
      if (plan_.set_aside(i) || pool < 0 || !stays(round.jobs[i].allocation)) continue;
      pool_[i] = pool;
      left_[static_cast<size_t>(pool)] -= device_count(round.jobs[i].allocation);
      running_[static_cast<size_t>(pool)][tier(i)].push_back(i);
    }
  }

  void decide() {
    // Where services have grown, or nodes are gone, the last to come of the lowest tier stops.
    for (size_t p = 0; p < left_.size(); ++p)
      for (size_t t = kTiers; t-- > 0;) stop_last(p, t, 0);
    std::vector<size_t> order;
    for (size_t i = 0; i < round_.jobs.size(); ++i)
      if (!plan_.set_aside(i)) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return tier(a) < tier(b); });
    for (const size_t i : order)
      if (pool_[i] < 0) start(i);
  }

  std::vector<Allocation> place() {
    for (size_t i = 0; i < pool_.size(); ++i)
      if (pool_[i] >= 0) plan_.choose(i, pool_[i], devices_of(i), preempts_);
    return plan_.place();
  }

  std::string reason(size_t i, const Allocation& next) const {
    const JobView& job = round_.jobs[i];
    if (plan_.set_aside(i)) return plan_.reason(i);
    if (!next.empty())
      return fmt::format("{} on the {} devices that it asked for",
                         job.allocation.empty() ? "starts" : "runs", device_count(next));
    return fmt::format("waits: no pool that it can use has {} devices {}", job.requested_devices,
                       preempts_ ? "that are free or held by jobs of lower tiers" : "free");
  }

 private:
  // Whether all of its nodes are there: one that is drained is not, though jobs still hold it.
  bool stays(const Allocation& held) const {
    return std::all_of(held.begin(), held.end(), [&](const NodeShare& share) {
      return usable_until(round_.cluster, share.node, round_.now);
    });
  }
  size_t tier(size_t i) const { return static_cast<size_t>(round_.jobs[i].tier); }
  int32_t devices_of(size_t i) const {
    const int32_t held = device_count(round_.jobs[i].allocation);
    return held > 0 && pool_[i] == plan_.held_pool(i) ? held : round_.jobs[i].requested_devices;
  }

  // Until `need` devices are left, or none of the tier runs there.
  void stop_last(size_t pool, size_t tier, int64_t need) {
    std::vector<size_t>& there = running_[pool][tier];
    while (left_[pool] < need && !there.empty()) {
      left_[pool] += devices_of(there.back());
      pool_[there.back()] = -1;
      there.pop_back();
    }
  }

  bool make_room(size_t pool, size_t i) {
    const int64_t need = round_.jobs[i].requested_devices;
    int64_t room = left_[pool];
    for (size_t t = tier(i) + 1; t < kTiers; ++t)
      for (const size_t other : running_[pool][t]) room += devices_of(other);
    if (room < need) return false;
    for (size_t t = kTiers; t-- > tier(i) + 1;) stop_last(pool, t, need);
    return true;
  }

  // In the region of its data first, on the fastest type first.
  void start(size_t i) {
    const JobView& job = round_.jobs[i];
    const std::vector<int32_t> types = types_by_speed(job);
    for (const bool home : {true, false}) {
      if (!home && (job.region < 0 || !job.movable)) return;
      for (const int32_t type : types)
        for (size_t p = 0; p < left_.size(); ++p) {
          if (plan_.pools()[p].type != type) continue;
          const bool here =
              job.region < 0 || plan_.region_of(static_cast<int32_t>(p)) == job.region;
          if (here != home) continue;
          if (left_[p] < job.requested_devices && !(preempts_ && make_room(p, i))) continue;
          left_[p] -= job.requested_devices;
          pool_[i] = static_cast<int32_t>(p);
          running_[p][tier(i)].push_back(i);
          return;
        }
    }
  }

  const Round& round_;
  bool preempts_;
  PoolRound plan_;
  std::vector<int64_t> left_;                                     // by pool
  std::vector<std::array<std::vector<size_t>, kTiers>> running_;  // by pool and tier
  std::vector<int32_t> pool_;                                     // by job; -1: it waits
};

class TierPolicy final : public ReasonedPolicy {
 public:
  explicit TierPolicy(bool preempts) : preempts_(preempts) {}
  std::string_view name() const override { return preempts_ ? "priority" : "queue"; }
  PolicyTraits traits() const override {
    return {.uses = Scaling::rigid, .serves = true, .keeps_fixed = true, .sees_regions = true};
  }
  Decisions decide(const Round& round) override {
    TierRound plan(round, preempts_);
    plan.decide();
    std::vector<Allocation> next = plan.place();
    std::vector<std::string> reasons;
    for (size_t i = 0; i < next.size(); ++i) reasons.push_back(plan.reason(i, next[i]));
    return decisions(round, std::move(next), std::move(reasons));
  }

 private:
  bool preempts_;
};

}  // namespace

std::unique_ptr<Policy> make_queue(const PolicyOptions&) {
  return std::make_unique<TierPolicy>(false);
}
std::unique_ptr<Policy> make_priority(const PolicyOptions&) {
  return std::make_unique<TierPolicy>(true);
}

}  // namespace ductile::sched
