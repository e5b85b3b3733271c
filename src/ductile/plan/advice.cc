#include <algorithm>

#include "ductile/plan/advice_impl.h"

namespace ductile::plan {

// Where memory is so scarce that the search, cut short, found nothing: a plan of fewest devices.
void find_any(const SearchSpace& space, const Island& island, const PlannerOptions& options,
              std::span<const int64_t> sizes, Clock::time_point deadline,
              std::vector<Candidate>& found) {
  Effort effort;
  effort.labels = std::min(options.max_labels, 8);
  const std::vector<PathFlow> flows(2, PathFlow::round_trip(space));
  for (int64_t b : sizes) {
    LabelSearch search(space, {&island, 1}, flows, options, effort, b, deadline);
    const Solution s = search.fewest_devices();
    if (!s.found) continue;
    Candidate c = to_candidate(space, s, b, options.batch, false);
    c.seconds = search.factor() * s.tau + s.rest;
    found.push_back(std::move(c));
    return;
  }
}

// What would make an infeasible request feasible.
void diagnose(const SearchSpace& space, const Island& island, const PlannerOptions& options,
              std::span<const int64_t> sizes, Clock::time_point deadline, Planned& out) {
  PlannerOptions quick = options;
  quick.objective = Objective::throughput;
  Effort effort;
  effort.labels = std::min(options.max_labels, 8);
  const std::vector<PathFlow> flows(2, PathFlow::round_trip(space));
  const auto fewest = [&](const Island& f, int most) {
    int least = 0;
    for (int64_t b : sizes) {
      Island limited = f;
      limited.devices = least > 0 ? least - 1 : most;
      if (limited.devices == 0) break;
      LabelSearch search(space, {&limited, 1}, flows, quick, effort, b, deadline);
      const Solution s = search.fewest_devices();
      if (s.found && (least == 0 || s.devices < least)) least = s.devices;
      if (search.timed_out()) break;
    }
    return least;
  };
  out.devices_needed = fewest(island, std::max(4 * island.devices, 64));
  double low = island.memory;
  double high = low;
  Island larger = island;
  for (int i = 0; i < 40; ++i) {
    high *= 2;
    larger.memory = high;
    if (fewest(larger, island.devices) > 0) break;
    low = high;
    if (i == 39 || is_past(deadline)) return;
  }
  while (high - low > 0.01 * high && !is_past(deadline)) {
    larger.memory = (low + high) / 2;
    (fewest(larger, island.devices) > 0 ? high : low) = larger.memory;
  }
  out.memory_needed = high;
}

Devices with_memory(const Devices& devices, double least) {
  std::vector<DeviceGroup> groups = devices.groups();
  for (DeviceGroup& group : groups) group.memory = std::max(group.memory, least);
  return Devices(std::move(groups));
}

void settle_memory(const Devices& devices, const std::function<std::optional<bool>(double)>& fits,
                   Planned& out) {
  if (out.memory_needed == 0) return;
  constexpr int kMostRaises = 6;
  double high = out.memory_needed;
  double low = high;  // what is too little; the least group's is
  for (const DeviceGroup& group : devices.groups()) low = std::min(low, group.memory);
  // Of equal devices less would be too little by the formula, which the search goes by.
  bool less_may_do = !devices.is_uniform();
  std::optional<bool> enough = fits(high);
  for (int i = 0; enough == false && i < kMostRaises; ++i) {
    less_may_do = true;
    low = high;
    high *= 2;
    enough = fits(high);
  }
  if (!enough.value_or(high == out.memory_needed)) {
    out.memory_needed = 0;
    return;
  }
  while (enough && less_may_do && high - low > 0.01 * high) {
    const double memory = (low + high) / 2;
    enough = fits(memory);
    if (enough) (*enough ? high : low) = memory;
  }
  out.memory_needed = high;
}

}  // namespace ductile::plan
