// Jobs of a higher tier take GPUs from jobs of a lower one. Policies, which know nothing of GPUs,
// cannot weigh that; it is decided before they are asked, and they see what is left.
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/cluster/scheduler_impl.h"

namespace ductile::cluster {
namespace {

// Who is stopped first: one of the lowest tier, and of these the one that began last and so has
// least to lose.
std::tuple<int, double, JobId> price_of(const sched::JobView& view) {
  return {-static_cast<int>(view.tier), -view.last_change, -view.id};
}

bool may_take_from(const sched::JobView& taker, const sched::JobView& other) {
  return taker.tier < other.tier && other.preemptible && !other.service && !other.granted;
}

}  // namespace

std::map<int32_t, Scheduler::Held> Scheduler::held_by_teams(
    std::span<const sched::JobView> views) const {
  std::map<int32_t, Held> out;
  if (cluster_.teams.empty()) return out;
  for (const sched::JobView& view : views) {
    if (view.allocation.empty()) continue;
    Held& held = out[view.team];
    held.devices += sched::device_count(view.allocation);
    held.gpus += jobs_.at(view.id).gpus;
  }
  return out;
}

bool Scheduler::fits_quota(const sched::JobView& view, const std::map<int32_t, Held>& held) const {
  const auto found = held.find(view.team);
  const Held has = found == held.end() ? Held{} : found->second;
  const auto gpus = gpu_quotas_.find(view.team);
  if (gpus != gpu_quotas_.end() && has.gpus + jobs_.at(view.id).gpus > gpus->second) return false;
  return std::ranges::none_of(cluster_.teams, [&](const sched::Team& team) {
    return team.id == view.team && team.quota > 0 && has.devices + view.min_devices > team.quota;
  });
}

// Whom it would stop, or leave fewer devices, to have its GPUs and devices there; none: that does
// not help, or GPUs are free there, so that it is the policy's matter. GPUs that have failed are
// not given again when their job has gone.
std::optional<Scheduler::Takeover> Scheduler::takeover_on(int32_t node, const sched::JobView& taker,
                                                          std::span<const sched::JobView> views,
                                                          int32_t held_gpus) const {
  const auto n = static_cast<size_t>(node);
  const Job& job = jobs_.at(taker.id);
  const int32_t lasting = gpus_[n] - lost_gpus_[n];
  int32_t gpus = job.gpus - (lasting - held_gpus);  // that are missing; so are
  int32_t devices = taker.min_devices - cluster_.usable(node);
  if (devices > 0 || lasting < job.gpus || gpus <= 0 || yields(taker, node)) return std::nullopt;
  if (is_elsewhere(taker, node) || away_.contains(node)) return std::nullopt;
  std::vector<size_t> others;
  for (size_t i = 0; i < views.size(); ++i) {
    const int32_t here = devices_on(views[i].allocation, node);
    devices += here;
    if (here > 0 && may_take_from(taker, views[i])) others.push_back(i);
  }
  std::ranges::stable_sort(others, {}, [&](size_t i) { return price_of(views[i]); });
  const auto gpus_of = [&](size_t i) { return jobs_.at(views[i].id).gpus; };
  const auto here = [&](size_t i) { return devices_on(views[i].allocation, node); };
  Takeover out{node, {}, {}};
  const auto stop = [&](size_t i) {
    out.stopped.push_back(i);
    gpus -= gpus_of(i);
    devices -= here(i);
  };
  for (const size_t i : others)
    if (gpus > 0 && gpus_of(i) > 0) stop(i);
  if (gpus > 0) return std::nullopt;
  // Those that were stopped for little, before one that has many was.
  std::erase_if(out.stopped, [&](size_t i) {
    if (gpus + gpus_of(i) > 0) return false;
    gpus += gpus_of(i);
    devices += here(i);
    return true;
  });
  for (const size_t i : others) {
    if (devices <= 0) break;
    if (std::ranges::find(out.stopped, i) != out.stopped.end()) continue;
    const sched::JobView& other = views[i];
    const int32_t less = std::min(devices, here(i));
    const bool goes_on = !jobs_.at(other.id).one_node && other.scaling != sched::Scaling::rigid &&
                         sched::device_count(other.allocation) - less >= other.min_devices;
    if (!goes_on) {
      stop(i);
      continue;
    }
    out.shrunk.emplace_back(i, less);
    devices -= less;
  }
  if (devices > 0) return std::nullopt;
  return out;
}

// Where the least harm is done: to the lowest tier, and to few.
std::optional<Scheduler::Takeover> Scheduler::best_takeover(
    const sched::JobView& taker, std::span<const sched::JobView> views) const {
  const NodeCounts held = gpus_after(views, {});
  const auto harm = [&](const Takeover& takeover) {
    int first = static_cast<int>(sched::Tier::basic);  // tier that is hurt
    int64_t worth = 0;
    for (const size_t i : takeover.stopped) {
      first = std::min(first, static_cast<int>(views[i].tier));
      worth += 3 - static_cast<int>(views[i].tier);
    }
    return std::tuple(-first, worth, takeover.shrunk.size());
  };
  std::optional<Takeover> best;
  for (int32_t node = 0; node < static_cast<int32_t>(gpus_.size()); ++node) {
    const auto found = held.find(node);
    const int32_t held_gpus = found == held.end() ? 0 : found->second;
    if (gpus_[static_cast<size_t>(node)] - held_gpus >= jobs_.at(taker.id).gpus &&
        cluster_.usable(node) >= taker.min_devices && !yields(taker, node) &&
        !is_elsewhere(taker, node))
      return std::nullopt;  // it lacks no GPUs
    auto takeover = takeover_on(node, taker, views, held_gpus);
    if (takeover && (!best || harm(*takeover) < harm(*best))) best = std::move(takeover);
  }
  return best;
}

// One job a round takes what it lacks, and the node is kept for it from then on. Gives why the
// others have less.
std::map<JobId, std::string> Scheduler::take_gpus(std::vector<sched::JobView>& views, double now) {
  std::map<JobId, std::string> reasons;
  std::vector<size_t> takers;
  for (size_t i = 0; i < views.size(); ++i) {
    const Job& job = jobs_.at(views[i].id);
    if (job.gpus > 0 && views[i].allocation.empty() && job.lacks_since &&
        now - *job.lacks_since >= kTakes)
      takers.push_back(i);
  }
  if (takers.empty()) return reasons;
  std::ranges::stable_sort(takers, {}, [&](size_t i) { return turn_of(views[i]); });
  const auto held = held_by_teams(views);
  for (const size_t i : takers) {
    const sched::JobView& taker = views[i];
    if (!fits_quota(taker, held)) continue;
    const auto takeover = best_takeover(taker, views);
    if (!takeover) continue;
    Job& job = jobs_.at(taker.id);
    const bool kept = claim_ && claim_->job == taker.id && claim_->node == takeover->node;
    claim_ = Claim{taker.id, takeover->node, kept ? claim_->since : now};
    // What they give up is kept for it, even if the policy grants it nothing in this round.
    job.lacks_since = std::min(*job.lacks_since, now - kOvertaken);
    const std::string why = fmt::format("job {} ({}) of tier {} needs its ", taker.id, taker.name,
                                        sched::to_string(taker.tier));
    for (const size_t other : takeover->stopped) {
      reasons[views[other].id] = why + (jobs_.at(views[other].id).gpus > 0 ? "GPUs" : "devices");
      views[other].allocation.clear();
    }
    for (const auto& [other, less] : takeover->shrunk) {
      reasons[views[other].id] = why + "devices";
      take_from(views[other].allocation, takeover->node, less);
    }
    break;
  }
  return reasons;
}

}  // namespace ductile::cluster
