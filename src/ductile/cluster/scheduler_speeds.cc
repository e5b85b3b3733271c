// What policies that do not measure by themselves are told of the speed of jobs. The simulator
// tells them beforehand; here it is what jobs of the same kind were seen to take.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ductile/cluster/scheduler.h"

namespace ductile::cluster {
namespace {

constexpr int32_t kMostDevices = 64;  // of one job: as far as anybody looks

// A kind that never ran is a rough guess: the kinds that ran last tell enough of it, and batches
// that differ by less than a twentieth are one. So the guess costs the same however many kinds and
// batches there are.
constexpr size_t kAveraged = 16;
constexpr double kSameBatch = 1.05;

int64_t rough(int64_t batch) {
  const double step = std::log(kSameBatch);
  return std::max<int64_t>(
      1, std::llround(std::exp(step * std::round(std::log(static_cast<double>(batch)) / step))));
}

int32_t most_devices(const sched::JobView& view) {
  return std::clamp(std::max(view.max_devices, view.requested_devices), 1, kMostDevices);
}

}  // namespace

void Scheduler::note_of_kind(const Job& job, int32_t type, const sched::StepSample& sample) {
  const std::string& kind = job.agent->facts().application;
  if (policy_->traits().measures || kind.empty()) return;  // its agents share what they measure
  const auto at = static_cast<size_t>(type);
  if (job.of_kind[at]->add(sample, true) == sched::Observed::refused) return;
  shared_.keep(kind, cluster_.types[at]);
}

// Rises with what is known of the kind; nothing: it never ran.
std::optional<uint64_t> Scheduler::version_of_kind(const std::string& kind) {
  std::optional<uint64_t> version;
  for (const std::string& type : cluster_.types) {
    sched::Measurements* seen = shared_.find(kind, type);
    if (seen == nullptr || seen->samples().empty()) continue;
    seen->refresh(fits_, true);
    version = version.value_or(shared_.forgotten() << 32) + seen->version();
  }
  return version;
}

// By type: seconds of a step of this batch on 1, 2, ... devices, of a kind that ran and whose
// version was looked at.
Scheduler::KindSpeeds Scheduler::speeds_of_kind(const std::string& kind, int64_t batch,
                                                int32_t most) const {
  KindSpeeds out(cluster_.types.size());
  for (size_t type = 0; type < out.size(); ++type) {
    const sched::Measurements* seen = shared_.find(kind, cluster_.types[type]);
    if (seen == nullptr || seen->samples().empty()) continue;
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
Scheduler::KindSpeeds Scheduler::speeds_of_average(int64_t batch) const {
  if (averaged_.empty()) return {};
  KindSpeeds sum(cluster_.types.size(), std::vector<double>(static_cast<size_t>(average_devices_)));
  for (const auto& [kind, version] : averaged_) {
    const KindSpeeds one = speeds_of_kind(kind, batch, average_devices_);
    for (size_t type = 0; type < one.size(); ++type)
      for (size_t k = 0; k < one[type].size(); ++k) sum[type][k] += one[type][k];
  }
  for (std::vector<double>& list : sum)
    for (double& seconds : list) seconds /= static_cast<double>(averaged_.size());
  return sum;
}

// Whether it takes steps, of which the speed can be known: a command does not.
bool Scheduler::has_speed(const sched::JobView& view) const {
  const Job& job = jobs_.at(view.id);
  return !view.service && !job.staged && !job.one_node && job.batch >= 1;
}

void Scheduler::look_at_average(std::span<const sched::JobView> views) {
  std::vector<std::pair<std::string, uint64_t>> averaged;
  for (std::string& kind : shared_.newest(kAveraged)) {
    const std::optional<uint64_t> version = version_of_kind(kind);
    if (version) averaged.emplace_back(std::move(kind), *version);
  }
  int32_t devices = 0;
  for (const sched::JobView& view : views)
    if (has_speed(view)) devices = std::max(devices, most_devices(view));
  if (averaged == averaged_ && devices <= average_devices_) return;
  averaged_ = std::move(averaged);
  average_devices_ = devices;
  average_speeds_.clear();
}

const Scheduler::KindSpeeds& Scheduler::speeds_of(const Job& job, int32_t most) {
  const std::string& kind = job.agent->facts().application;
  const std::optional<uint64_t> version = version_of_kind(kind);
  if (version) {
    KnownSpeeds& known = kind_speeds_[{kind, job.batch, most}];
    if (known.speeds.empty() || known.version != *version)
      known.speeds = speeds_of_kind(kind, job.batch, most);
    known.version = *version;
    known.used = true;
    return known.speeds;
  }
  const int64_t batch = rough(job.batch);
  const auto [found, fresh] = average_speeds_.try_emplace(batch);
  if (fresh) found->second = speeds_of_average(batch);
  return found->second;
}

void Scheduler::tell_speeds(std::vector<sched::JobView>& views) {
  if (policy_->traits().measures) return;
  look_at_average(views);
  for (auto& [key, known] : kind_speeds_) known.used = false;
  for (sched::JobView& view : views) {
    // A batch that is fixed is worth its speed, whatever the noise of its gradients, which nobody
    // measures then.
    if (view.scaling == sched::Scaling::strong && !view.noise)
      view.noise = sched::GradientNoise{1, 1};
    if (!has_speed(view)) continue;
    const int32_t most = most_devices(view);
    const KindSpeeds& speeds = speeds_of(jobs_.at(view.id), most);
    if (speeds.empty()) continue;
    const int32_t held = view.allocation.empty() ? 0 : view.allocation.front().node;
    view.known_step_seconds =
        std::span(speeds[static_cast<size_t>(cluster_.node_type[static_cast<size_t>(held)])])
            .first(static_cast<size_t>(most));
    if (view.scaling != sched::Scaling::rigid) continue;
    const auto asked = static_cast<size_t>(std::clamp(view.requested_devices, 1, most));
    for (size_t type = 0; type < speeds.size(); ++type)
      view.types[type].requested_rate = view.requested_batch / speeds[type][asked - 1];
  }
  std::erase_if(kind_speeds_, [](const auto& one) { return !one.second.used; });
}

}  // namespace ductile::cluster
