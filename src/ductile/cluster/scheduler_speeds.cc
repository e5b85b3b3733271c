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
// first it might hold up everybody.
Scheduler::KindSpeeds Scheduler::speeds_of_average(int64_t batch, int32_t most) {
  KindSpeeds sum;
  double kinds = 0;
  for (const std::string& kind : shared_.applications()) {
    const KindSpeeds one = speeds_of_kind(kind, batch, most);
    if (one.empty()) continue;
    if (kinds++ == 0) sum.assign(one.size(), std::vector<double>(one.front().size()));
    for (size_t type = 0; type < one.size(); ++type)
      for (size_t k = 0; k < one[type].size(); ++k) sum[type][k] += one[type][k];
  }
  for (std::vector<double>& list : sum)
    for (double& seconds : list) seconds /= kinds;
  return sum;
}

void Scheduler::tell_speeds(std::vector<sched::JobView>& views) {
  if (policy_->traits().measures) return;
  kind_speeds_.clear();
  for (sched::JobView& view : views) {
    // A batch that is fixed is worth its speed, whatever the noise of its gradients, which nobody
    // measures then.
    if (view.scaling == sched::Scaling::strong && !view.noise)
      view.noise = sched::GradientNoise{1, 1};
    const Job& job = jobs_.at(view.id);
    if (view.service || job.staged || job.batch < 1) continue;
    const int32_t most = most_devices(view);
    const auto known = [&](const std::string& kind, const auto& find) -> const KindSpeeds& {
      const auto [found, fresh] = kind_speeds_.try_emplace({kind, job.batch, most});
      if (fresh) found->second = find();
      return found->second;
    };
    const std::string& kind = job.agent->facts().application;
    const KindSpeeds* speeds = &known(kind, [&] { return speeds_of_kind(kind, job.batch, most); });
    if (speeds->empty()) speeds = &known("", [&] { return speeds_of_average(job.batch, most); });
    if (speeds->empty()) continue;
    const int32_t held = view.allocation.empty() ? 0 : view.allocation.front().node;
    view.known_step_seconds =
        (*speeds)[static_cast<size_t>(cluster_.node_type[static_cast<size_t>(held)])];
    if (view.scaling != sched::Scaling::rigid) continue;
    const auto asked = static_cast<size_t>(std::clamp(view.requested_devices, 1, most));
    for (size_t type = 0; type < speeds->size(); ++type)
      view.types[type].requested_rate = view.requested_batch / (*speeds)[type][asked - 1];
  }
}

}  // namespace ductile::cluster
