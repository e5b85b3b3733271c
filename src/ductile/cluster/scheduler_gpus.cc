// What policies know nothing of: GPUs, and jobs that have to be on one node. Who waits for these,
// and on which nodes they are.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/cluster/scheduler_impl.h"

namespace ductile::cluster {

void Scheduler::has_gpus(int32_t node, int32_t usable, int32_t lost) {
  gpus_.at(static_cast<size_t>(node)) = usable + lost;
  lost_gpus_.at(static_cast<size_t>(node)) = lost;
}

Scheduler::NodeCounts Scheduler::gpus_after(std::span<const sched::JobView> views,
                                            const sched::Decisions& decisions) const {
  std::map<JobId, const sched::Allocation*> after;
  for (const sched::JobView& view : views) after[view.id] = &view.allocation;
  for (const sched::Decision& change : decisions.changes) after[change.job] = &change.allocation;
  NodeCounts out;
  for (const auto& [id, allocation] : after)
    if (!allocation->empty()) out[allocation->front().node] += jobs_.at(id).gpus;
  return out;
}

// Adds those of a job that stays there to what is held of the node, if there is room for them. One
// that is alone has room, whichever GPUs have failed since it came.
bool Scheduler::takes_gpus(JobId id, int32_t node, NodeCounts& held) const {
  const int32_t wanted = jobs_.at(id).gpus;
  if (wanted == 0) return true;
  if (held[node] + wanted > std::max(wanted, gpus_[static_cast<size_t>(node)])) return false;
  held[node] += wanted;
  return true;
}

// Whoever finds no GPUs is nothing that a policy could weigh. `at_once`: all of them, as their
// tiers and ages say, so that nobody is granted devices for GPUs that another one gets.
std::vector<sched::JobView> Scheduler::that_find_gpus(std::vector<sched::JobView> views,
                                                      bool at_once) {
  std::vector<const sched::JobView*> waiting;
  for (const sched::JobView& view : views)
    if (jobs_.at(view.id).gpus > 0 && view.allocation.empty()) waiting.push_back(&view);
  if (waiting.empty()) return views;
  std::ranges::stable_sort(waiting, {}, [](const sched::JobView* view) { return turn_of(*view); });
  NodeCounts held = gpus_after(views, {});
  for (const sched::JobView* view : waiting) {
    const int32_t wanted = jobs_.at(view->id).gpus;
    int32_t best = -1, least = 0;
    for (int32_t node = 0; node < static_cast<int32_t>(gpus_.size()); ++node) {
      const int32_t left =
          gpus_[static_cast<size_t>(node)] - held[node] - wanted - kept_gpus(*view, node);
      if (left < 0 || cluster_.usable(node) < view->min_devices) continue;
      if (best < 0 || left < least) best = node, least = left;
    }
    if (best < 0) without_gpus_.insert(view->id);
    if (best >= 0 && at_once) held[best] += wanted;
  }
  std::erase_if(views, [&](const sched::JobView& view) { return without_gpus_.contains(view.id); });
  return views;
}

// The one on which the least is left, of devices and then of GPUs; -1: none has room.
int32_t Scheduler::best_node(const sched::Round& round, const Job& job, int32_t devices,
                             int32_t region, const NodeCounts& used, const NodeCounts& gpus) const {
  const auto at = [](const NodeCounts& counts, int32_t node) {
    const auto found = counts.find(node);
    return found == counts.end() ? 0 : found->second;
  };
  int32_t best = -1;
  std::pair<int32_t, int32_t> least;
  for (int32_t node = 0; node < static_cast<int32_t>(cluster_.node_up.size()); ++node) {
    std::pair<int32_t, int32_t> left = {
        round.cluster.usable(node) - at(used, node) - devices,
        gpus_[static_cast<size_t>(node)] - at(gpus, node) - job.gpus - kept_gpus(job.view, node)};
    if (yields(job.view, node)) left.first -= jobs_.at(claim_->job).view.min_devices;
    if (left.first < 0 || (job.gpus > 0 && left.second < 0)) continue;
    if (policy_->traits().sees_regions && region_of(node) != region) continue;
    if (best < 0 || left < least) best = node, least = left;
  }
  return best;
}

// A job that has to be on one node is overtaken by smaller ones for as long as they come: what one
// of them gives up, the next one takes. So the first of those that have waited for long keeps the
// node where the least is missing for it, and stays with that one.
void Scheduler::choose_claim(std::span<const sched::JobView> views, double now) {
  const std::optional<Claim> before = std::exchange(claim_, std::nullopt);
  const auto held_by_team = held_by_teams(views);
  const sched::JobView* first = nullptr;
  for (const sched::JobView& view : views) {
    const Job& job = jobs_.at(view.id);
    if (!job.lacks_since || now - *job.lacks_since < kOvertaken || !view.allocation.empty() ||
        !fits_quota(view, held_by_team))
      continue;
    if (first == nullptr || turn_of(view) < turn_of(*first)) first = &view;
  }
  if (first == nullptr) return;
  const int32_t gpus = jobs_.at(first->id).gpus;
  NodeCounts held = gpus_after(views, {});
  int32_t least = 0;
  bool may_stay = false;
  for (int32_t node = 0; node < static_cast<int32_t>(gpus_.size()); ++node) {
    const int32_t devices = cluster_.usable(node), all = gpus_[static_cast<size_t>(node)];
    // Those that have failed are none when the jobs that still hold them have gone.
    const int32_t lasting = all - lost_gpus_[static_cast<size_t>(node)];
    if (devices < first->min_devices || lasting < gpus || is_elsewhere(*first, node)) continue;
    int32_t free = devices;
    for (const sched::JobView& view : views) free -= devices_on(view.allocation, node);
    const int32_t missing = std::max(0, first->min_devices - free) +
                            (gpus == 0 ? 0 : std::max(0, gpus - (all - held[node])));
    may_stay = may_stay || (before && before->job == first->id && before->node == node);
    if (claim_ && missing >= least) continue;
    least = missing;
    claim_ = Claim{first->id, node, now};
  }
  // It stays where it is, so that what became free there was kept for something, unless another
  // node has all of it now.
  if (may_stay && (least > 0 || claim_->node == before->node)) claim_ = before;
}

// It may not run there.
bool Scheduler::is_elsewhere(const sched::JobView& view, int32_t node) const {
  return policy_->traits().sees_regions && view.region >= 0 && !view.movable &&
         region_of(node) != view.region;
}

void Scheduler::take_from(sched::Allocation& allocation, int32_t node, int32_t devices) {
  for (sched::NodeShare& share : allocation)
    if (share.node == node) share.devices -= devices;
  std::erase_if(allocation, [](const sched::NodeShare& s) { return s.devices <= 0; });
}

// Whether it has to leave that node's room to the one that it is kept for.
bool Scheduler::yields(const sched::JobView& view, int32_t node) const {
  return claim_ && claim_->node == node && claim_->job != view.id &&
         turn_of(jobs_.at(claim_->job).view) < turn_of(view);
}

int32_t Scheduler::kept_gpus(const sched::JobView& view, int32_t node) const {
  return yields(view, node) ? jobs_.at(claim_->job).gpus : 0;
}

bool Scheduler::claim_has_devices(std::span<const sched::JobView> views) const {
  if (!claim_) return false;
  int32_t free = cluster_.usable(claim_->node);
  for (const sched::JobView& view : views) free -= devices_on(view.allocation, claim_->node);
  return free >= jobs_.at(claim_->job).view.min_devices;
}

// A start that leaves too little where room is kept: it takes less there, or all of it on another
// node of the same type; else nothing.
void Scheduler::give_way(const sched::Round& round, int32_t missing, sched::Decision& change,
                         NodeCounts& used, NodeCounts& gpus) const {
  const int32_t node = claim_->node;
  const Job& job = jobs_.at(change.job);
  const int32_t devices = sched::device_count(change.allocation);
  const int32_t cut = std::min(missing, devices_on(change.allocation, node));
  if (!job.one_node && devices - cut >= job.view.min_devices) {
    take_from(change.allocation, node, cut);
    used[node] -= cut;
    return;
  }
  for (const sched::NodeShare& share : change.allocation) used[share.node] -= share.devices;
  gpus[change.allocation.front().node] -= job.gpus;
  change.allocation.clear();
  const int32_t best = best_node(round, job, devices, region_of(node), used, gpus);
  const auto type = [&](int32_t n) { return cluster_.node_type[static_cast<size_t>(n)]; };
  if (best < 0 || type(best) != type(node)) return;
  change.allocation = {{best, devices}};
  used[best] += devices;
  gpus[best] += job.gpus;
}

// What runs there may go on, and grows no more: else it would take for ever what others give up.
// Services do, since nobody may take from them what their requests need.
void Scheduler::keep_from_growing(int32_t missing, const sched::Allocation& before,
                                  sched::Decision& change, NodeCounts& used) const {
  const int32_t node = claim_->node;
  const Job& job = jobs_.at(change.job);
  const int32_t more = devices_on(change.allocation, node) - devices_on(before, node);
  const int32_t cut = std::min(missing, more);
  if (cut <= 0 || job.one_node || job.view.service || job.view.scaling == sched::Scaling::rigid ||
      sched::device_count(change.allocation) - cut < job.view.min_devices)
    return;
  take_from(change.allocation, node, cut);
  used[node] -= cut;
}

// Who would start where room is kept gives way, and who would grow there does not, until enough is
// left; and that is given to the one that it is kept for, although the policy would choose others.
void Scheduler::keep_claim(const sched::Round& round, sched::Decisions& decisions) const {
  if (!claim_) return;
  const Claim claim = *claim_;
  const Job& job = jobs_.at(claim.job);
  const auto own = [&] {
    return std::ranges::find(decisions.changes, claim.job, &sched::Decision::job);
  };
  const bool placed = own() != decisions.changes.end() && !own()->allocation.empty();
  NodeCounts used, gpus = gpus_after(round.jobs, decisions);
  if (placed) {
    const sched::Allocation& where = own()->allocation;
    const int32_t node = where.front().node;
    if (where.size() == 1 && (job.gpus == 0 || gpus[node] <= gpus_[static_cast<size_t>(node)]))
      return;  // it is served; else a policy placed it that knows neither nodes nor GPUs
    gpus[node] -= job.gpus;
  }
  const int32_t least = job.view.min_devices, all = round.cluster.usable(claim.node);
  std::map<JobId, const sched::Allocation*> before, after;
  for (const sched::JobView& view : round.jobs) before[view.id] = after[view.id] = &view.allocation;
  for (const sched::Decision& change : decisions.changes) after[change.job] = &change.allocation;
  const bool shown = before.contains(claim.job);
  if (shown && !before[claim.job]->empty()) return;
  for (const auto& [id, allocation] : after)
    for (const sched::NodeShare& share : *allocation)
      if (id != claim.job) used[share.node] += share.devices;
  for (sched::Decision& change : decisions.changes) {
    const int32_t missing = least - (all - used[claim.node]);
    if (missing <= 0 || devices_on(change.allocation, claim.node) == 0 ||
        !yields(jobs_.at(change.job).view, claim.node))
      continue;
    const sched::Allocation& held = *before[change.job];
    if (held.empty())
      give_way(round, missing, change, used, gpus);
    else
      keep_from_growing(missing, held, change, used);
  }
  std::erase_if(decisions.changes, [&](const sched::Decision& change) {
    return change.allocation.empty() && before[change.job]->empty();
  });
  if (!shown || all - used[claim.node] < least) return;
  if (job.gpus > 0 && gpus[claim.node] + job.gpus > gpus_[static_cast<size_t>(claim.node)]) return;
  sched::Decision grant{
      claim.job, {{claim.node, least}}, "it has waited for long for room on one node"};
  if (placed)
    *own() = std::move(grant);
  else
    decisions.changes.push_back(std::move(grant));
}

// A job that policies cannot place is shown to them only now and then, and may get nothing for
// other reasons meanwhile; so what it lacks is forgotten after a while.
void Scheduler::note_lacks(double now) {
  for (auto& [id, job] : jobs_) {
    if (!job.granted.value_or(job.view.allocation).empty()) {
      job.lacks_since.reset();
    } else if (without_gpus_.contains(id) || scattered_.contains(id)) {
      job.lacked_at = now;
      if (!job.lacks_since) job.lacks_since = now;
    } else if (job.lacks_since && now - job.lacked_at > kOvertaken) {
      job.lacks_since.reset();
    }
  }
}

std::string Scheduler::lacks_on_a_node(const Job& job, int32_t devices) const {
  const auto counted = [](int32_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  return fmt::format(
      "waits for {}{} on one node", job.gpus == 0 ? "" : counted(job.gpus, "GPU") + " and ",
      job.gpus == 0 ? fmt::format("{} devices", devices) : counted(devices, "device"));
}

}  // namespace ductile::cluster
