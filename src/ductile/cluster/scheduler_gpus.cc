// GPUs, of which policies know nothing: who waits for some, and on which nodes they are.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/cluster/scheduler.h"

namespace ductile::cluster {

void Scheduler::has_gpus(int32_t node, int32_t count) {
  gpus_.at(static_cast<size_t>(node)) = count;
}

std::map<int32_t, int32_t> Scheduler::gpus_after(std::span<const sched::JobView> views,
                                                 const sched::Decisions& decisions) const {
  std::map<JobId, const sched::Allocation*> after;
  for (const sched::JobView& view : views) after[view.id] = &view.allocation;
  for (const sched::Decision& change : decisions.changes) after[change.job] = &change.allocation;
  std::map<int32_t, int32_t> out;
  for (const auto& [id, allocation] : after)
    if (!allocation->empty()) out[allocation->front().node] += jobs_.at(id).gpus;
  return out;
}

// Adds those of a job that stays there to what is held of the node, if there is room for them. One
// that is alone has room, whichever GPUs have failed since it came.
bool Scheduler::takes_gpus(JobId id, int32_t node, std::map<int32_t, int32_t>& held) const {
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
  std::ranges::stable_sort(waiting, [](const sched::JobView* a, const sched::JobView* b) {
    return std::pair(a->tier, a->arrival) < std::pair(b->tier, b->arrival);
  });
  std::map<int32_t, int32_t> held = gpus_after(views, {});
  for (const sched::JobView* view : waiting) {
    const int32_t wanted = jobs_.at(view->id).gpus;
    int32_t best = -1, least = 0;
    for (int32_t node = 0; node < static_cast<int32_t>(gpus_.size()); ++node) {
      const int32_t left = gpus_[static_cast<size_t>(node)] - held[node] - wanted;
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
                             int32_t region, const std::map<int32_t, int32_t>& used,
                             const std::map<int32_t, int32_t>& gpus) const {
  const auto at = [](const std::map<int32_t, int32_t>& counts, int32_t node) {
    const auto found = counts.find(node);
    return found == counts.end() ? 0 : found->second;
  };
  int32_t best = -1;
  std::pair<int32_t, int32_t> least;
  for (int32_t node = 0; node < static_cast<int32_t>(cluster_.node_up.size()); ++node) {
    const std::pair<int32_t, int32_t> left = {
        round.cluster.usable(node) - at(used, node) - devices,
        gpus_[static_cast<size_t>(node)] - at(gpus, node) - job.gpus};
    if (left.first < 0 || (job.gpus > 0 && left.second < 0)) continue;
    if (policy_->traits().sees_regions && region_of(node) != region) continue;
    if (best < 0 || left < least) best = node, least = left;
  }
  return best;
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
