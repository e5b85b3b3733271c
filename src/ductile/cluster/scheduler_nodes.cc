// Nodes that are drained, lost or away: what policies see of them, and of the jobs there.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/scheduler_impl.h"

namespace ductile::cluster {

void Scheduler::drain(int32_t node, bool drained, std::string why) {
  mark(drained_, node, drained, std::move(why));
}

void Scheduler::away(int32_t node, bool is_away, std::string why) {
  mark(away_, node, is_away, std::move(why));
}

void Scheduler::mark(std::map<int32_t, std::string>& nodes, int32_t node, bool in,
                     std::string why) {
  const bool news = nodes.contains(node) != in;
  if (in)
    nodes[node] = std::move(why);
  else
    nodes.erase(node);
  if (news) see_nodes();
}

// What policies see of the nodes: one that is away has the devices that are held there.
void Scheduler::see_nodes() {
  std::vector<int32_t> held(devices_.size());
  if (!away_.empty())
    for (const auto& [id, job] : jobs_)
      for (const sched::NodeShare& share : job.view.allocation)
        held[static_cast<size_t>(share.node)] += share.devices;
  for (size_t n = 0; n < devices_.size(); ++n) {
    const auto node = static_cast<int32_t>(n);
    int32_t there = drained_.contains(node) ? 0 : devices_[n];
    if (away_.contains(node)) there = std::min(there, held[n]);
    cluster_.node_up[n] = there > 0 ? 1 : 0;
    cluster_.node_devices[n] = there > 0 ? static_cast<int16_t>(there) : devices_[n];
  }
}

void Scheduler::leaves(int32_t node, double at) {
  cluster_.node_leaves_at.at(static_cast<size_t>(node)) = at;
}

// What the job is to a policy: what it was granted counts as held, with all of the start before it,
// since its devices are nobody else's; what it has on a node that is not there any more is no
// device.
sched::JobView Scheduler::view_of(const Job& job, double now) const {
  sched::JobView view = job.view;
  view.restart_seconds = job.pause > 0 ? job.pause : pause_;
  view.resize_seconds = job.change ? job.change : change_;
  const double pause = job.view.allocation.empty() ? view.restart_seconds : view.change_seconds();
  if (job.granted) {
    view.allocation = *job.granted;
    view.granted = now - job.granted_at <= kPatience;
    view.pause_left = job.granted->empty() ? 0 : pause;
  } else if (!job.works && !view.allocation.empty()) {
    view.pause_left = std::max(0.0, view.restart_seconds - (now - view.last_change));
  }
  int32_t gone = 0;  // devices
  for (sched::NodeShare& share : view.allocation) {
    int32_t there = cluster_.usable(share.node) == 0 ? 0 : share.devices;
    if (there > 0 && away_.contains(share.node))
      there = std::min(there, devices_on(job.view.allocation, share.node));
    gone += share.devices - there;
    share.devices = there;
  }
  std::erase_if(view.allocation, [](const sched::NodeShare& share) { return share.devices == 0; });
  if (gone > 0)
    view.granted = false;
  else if (std::ranges::any_of(view.allocation, [&](const sched::NodeShare& share) {
             return away_.contains(share.node);
           }))
    view.granted = true;  // its devices there are of no use to anybody else
  if (sched::device_count(view.allocation) < view.min_devices) view.allocation.clear();
  if (!view.saves && !job.granted && !view.allocation.empty())
    view.unsaved_seconds = std::max(0.0, now - view.last_change);
  return view;
}

// Too few devices are left where nodes are drained, lost or away; empty: that is not so.
std::string Scheduler::lacks_nodes(const Job& job) const {
  int64_t all = 0, usable = 0;
  for (int32_t n = 0; n < cluster_.nodes(); ++n) {
    const int64_t here = devices_[static_cast<size_t>(n)];
    all = job.one_node ? std::max(all, here) : all + here;
    if (drained_.contains(n) || away_.contains(n)) continue;
    usable = job.one_node ? std::max(usable, here) : usable + here;
  }
  const int32_t asked = job.view.min_devices;
  if (!job.view.allocation.empty() || asked > all || asked <= usable) return "";
  std::string which;
  for (const auto* out : {&drained_, &away_})
    for (const auto& [node, why] : *out)
      if (!why.empty() && (out == &drained_ || !drained_.contains(node)))
        which += (which.empty() ? ": " : "; ") + why;
  return fmt::format(
      "waits: it asks for {} device{}{}, and too few are on nodes that are neither drained, lost "
      "nor away{}. It starts when they are back",
      asked, asked == 1 ? "" : "s", job.one_node ? " on one node" : "", which);
}

}  // namespace ductile::cluster
