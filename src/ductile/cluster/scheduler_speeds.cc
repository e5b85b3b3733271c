// What policies that do not measure by themselves are told of the speed of jobs. The simulator
// tells them beforehand; here it is what jobs of the same kind were seen to take.
#include <algorithm>
#include <cmath>
#include <utility>

#include "ductile/cluster/scheduler.h"

namespace ductile::cluster {
namespace {

constexpr int32_t kMostDevices = 64;  // of one job: as far as anybody looks

int32_t most_devices(const sched::JobView& view) {
  return std::clamp(std::max(view.max_devices, view.requested_devices), 1, kMostDevices);
}

}  // namespace

void Scheduler::note_of_kind(const Job& job, int32_t type, const sched::StepSample& sample) {
  const std::string& kind = job.agent->facts().application;
  if (policy_->traits().measures || kind.empty()) return;  // its agents share what they measure
  shared_.of(kind, cluster_.types[static_cast<size_t>(type)])->add(sample, true);
}

// By type: seconds of a step of this batch on 1, 2, ... devices; empty where no job of the kind
// ran.
Scheduler::KindSpeeds Scheduler::speeds_of_kind(const std::string& kind, int64_t batch,
                                                int32_t most) {
  KindSpeeds out(cluster_.types.size());
  for (size_t type = 0; type < out.size(); ++type) {
    sched::Measurements* seen = shared_.find(kind, cluster_.types[type]);
    if (seen == nullptr || seen->samples().empty()) continue;
    seen->refresh(fits_, true);
    const int32_t per_node = std::max(cluster_.devices_per_node(static_cast<int32_t>(type)), 1);
    for (int32_t k = 1; k <= most; ++k)
      out[type].push_back(seen->steps()->step_seconds((k + per_node - 1) / per_node, k,
                                                      std::ceil(static_cast<double>(batch) / k)));
  }
  // Where it never ran, it is taken to be as fast as on the first type where it did.
  const auto first = std::ranges::find_if(out, [](const auto& list) { return !list.empty(); });
  if (first == out.end()) return {};
  for (std::vector<double>& list : out)
    if (list.empty()) list = *first;
  return out;
}

// A kind that never ran is taken for an average one: put last it might wait for ever, and put
// first it might hold up everybody. A batch that is fixed is worth its speed, whatever the noise of
// its gradients, which nobody measures then.
void Scheduler::tell_speeds(std::vector<sched::JobView>& views) {
  if (policy_->traits().measures) return;
  kind_speeds_.clear();
  std::vector<double> sum;  // of all kinds, on 1, 2, ... devices
  double kinds = 0;
  const auto speeds = [&](const sched::JobView& view) -> KindSpeeds& {
    const Job& job = jobs_.at(view.id);
    const std::string& kind = job.agent->facts().application;
    const auto [found, fresh] = kind_speeds_.try_emplace({kind, job.batch, most_devices(view)});
    if (!fresh) return found->second;
    found->second = speeds_of_kind(kind, job.batch, most_devices(view));
    if (found->second.empty()) return found->second;
    const std::vector<double>& list = found->second.front();
    while (sum.size() < kMostDevices) sum.push_back(0);
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += list[std::min(k, list.size() - 1)];
    ++kinds;
    return found->second;
  };
  const auto trains = [&](const sched::JobView& view) {
    const Job& job = jobs_.at(view.id);
    return !view.service && !job.staged && job.batch >= 1;
  };
  for (const sched::JobView& view : views)
    if (trains(view)) speeds(view);
  for (sched::JobView& view : views) {
    if (view.scaling == sched::Scaling::strong && !view.noise)
      view.noise = sched::GradientNoise{1, 1};
    if (!trains(view) || kinds == 0) continue;
    KindSpeeds& known = speeds(view);
    if (known.empty()) {
      known.resize(cluster_.types.size());
      for (std::vector<double>& list : known)
        for (int32_t k = 0; k < most_devices(view); ++k)
          list.push_back(sum[static_cast<size_t>(k)] / kinds);
    }
    const int32_t held = view.allocation.empty() ? 0 : view.allocation.front().node;
    view.known_step_seconds =
        known[static_cast<size_t>(cluster_.node_type[static_cast<size_t>(held)])];
    if (view.scaling != sched::Scaling::rigid) continue;
    for (size_t type = 0; type < known.size(); ++type)
      view.types[type].requested_rate =
          view.requested_batch /
          known[type]
               [static_cast<size_t>(std::clamp(view.requested_devices, 1, most_devices(view))) - 1];
  }
}

}  // namespace ductile::cluster
