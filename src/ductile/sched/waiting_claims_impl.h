#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "ductile/sched/job.h"

namespace ductile::sched {

// What jobs that wait for devices of one pool claim, and how much of it comes before a given claim.
// Each waiting job is told so in each round, so that of many jobs none may look at all others.
class WaitingClaims {
 public:
  // Whose turn it is: what is worth more comes first, then what came first.
  struct Turn {
    double worth = 0;  // of a device
    double arrival = 0;
    JobId job = 0;
    bool operator<(const Turn& other) const {
      return std::tuple(-worth, arrival, job) < std::tuple(-other.worth, other.arrival, other.job);
    }
  };
  void add(const Turn& turn, int32_t devices) { claims_.emplace_back(turn, devices); }
  // After the last add().
  void sort() {
    std::sort(claims_.begin(), claims_.end());
    devices_.assign(1, 0);
    for (const auto& [turn, devices] : claims_) devices_.push_back(devices_.back() + devices);
  }

  struct Before {
    int64_t jobs = 0, devices = 0;
    bool operator==(const Before&) const = default;
  };
  // Those whose turn is before this one.
  Before before(const Turn& turn) const {
    const auto end = std::partition_point(claims_.begin(), claims_.end(),
                                          [&](const auto& claim) { return claim.first < turn; });
    const auto jobs = static_cast<size_t>(end - claims_.begin());
    return {static_cast<int64_t>(jobs), devices_[jobs]};
  }

 private:
  std::vector<std::pair<Turn, int32_t>> claims_;  // and how many devices
  std::vector<int64_t> devices_{0};               // of so many claims, the first ones
};

}  // namespace ductile::sched
