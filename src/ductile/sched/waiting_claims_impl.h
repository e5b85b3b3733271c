#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace ductile::sched {

// What jobs that wait for devices of one pool claim, and how much of it comes before a given claim.
// Each waiting job is told so in each round, so that of many jobs none may look at all others.
class WaitingClaims {
 public:
  void add(double worth, int32_t devices) { claims_.emplace_back(worth, devices); }
  // After the last add().
  void sort() {
    std::sort(claims_.begin(), claims_.end(), std::greater<>());
    devices_.assign(1, 0);
    for (const auto& [worth, devices] : claims_) devices_.push_back(devices_.back() + devices);
  }

  struct Before {
    int64_t jobs = 0, devices = 0;
    bool operator==(const Before&) const = default;
  };
  // Those that are worth more, of which those of the same worth are none.
  Before before(double worth) const {
    const auto end = std::partition_point(claims_.begin(), claims_.end(),
                                          [&](const auto& claim) { return claim.first > worth; });
    const auto jobs = static_cast<size_t>(end - claims_.begin());
    return {static_cast<int64_t>(jobs), devices_[jobs]};
  }

 private:
  std::vector<std::pair<double, int32_t>> claims_;  // worth of a device, and how many
  std::vector<int64_t> devices_{0};                 // of so many claims, the first ones
};

}  // namespace ductile::sched
