#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "ductile/plan/schedule.h"
#include "ductile/plan/stage_cost_impl.h"

namespace ductile::plan {

// The time there is, and whether it suffices to carry out a plan, which cannot be stopped: by what
// plans took so far. Asked before a plan is made, since its orders alone may fill the memory.
class Pace {
 public:
  explicit Pace(double time_limit)
      : deadline_(Clock::now() +
                  std::chrono::duration_cast<Clock::duration>(
                      std::chrono::duration<double>(std::clamp(time_limit, 1e-3, 1e6)))) {}

  Clock::time_point deadline() const { return deadline_; }
  // Whether anything was left out for want of time.
  bool timed_out() const { return timed_out_ || refused_; }
  bool too_many() const { return too_many_; }  // what was refused has more tasks than anyone may

  bool is_late() {
    timed_out_ = timed_out_ || is_past(deadline_);
    return timed_out_;
  }

  // `stages` with so many micro-batches each.
  bool allows(size_t stages, int64_t micro_batches) {
    const double tasks = static_cast<double>(stages) * static_cast<double>(micro_batches);
    if (tasks > static_cast<double>(kMaxTasks)) {
      too_many_ = true;
      return false;
    }
    const std::chrono::duration<double> left = deadline_ - Clock::now();
    if (tasks * seconds_per_task_ <= left.count()) return true;
    refused_ = true;  // what has fewer tasks may still be in time
    return false;
  }

  // They were carried out, since then.
  void took(size_t stages, int64_t micro_batches, Clock::time_point begun) {
    const double tasks = static_cast<double>(stages) * static_cast<double>(micro_batches);
    if (tasks < kLeastTasks) return;  // what else it takes would count for tasks
    const std::chrono::duration<double> taken = Clock::now() - begun;
    seconds_per_task_ = taken.count() / tasks;
  }

 private:
  static constexpr double kLeastTasks = 1000;

  Clock::time_point deadline_;
  double seconds_per_task_ = 0;
  bool timed_out_ = false, refused_ = false, too_many_ = false;
};

}  // namespace ductile::plan
