#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ductile/plan/interval_search_impl.h"
#include "ductile/plan/spaces_impl.h"

namespace ductile::plan {

// All spaces of a graph on one machine: all devices as the least of them; and, where groups differ,
// each stage on one group. Coarse spaces first, for something to compare with.
class MachineSearch {
 public:
  // `spaces`, `devices` and `sizes` must outlive this.
  MachineSearch(const Spaces& spaces, const Devices& devices, const PlannerOptions& options,
                std::span<const int64_t> sizes, Clock::time_point deadline);

  // Before run(): it is cut short at so many stages priced, besides what is too little to matter.
  void limit_steps(int64_t most) { limit_ = most; }
  // Appends what is found. By the formula: best() and lower_bound(), of the plans of these spaces.
  void run(std::vector<Candidate>& found);
  // More plans that take up to `worth` times the best; none of large spaces.
  void add_others(double worth, std::vector<Candidate>& found);
  // No plan takes less under any schedule; `seconds`: what one is known to take.
  double schedule_bound(double seconds);

  double best() const { return best_; }
  double lower_bound() const { return lower_bound_; }
  bool timed_out() const { return timed_out_; }
  int64_t labels() const { return labels_; }
  int64_t steps() const { return steps_; }  // of run()
  int64_t all_steps() const { return steps_ + other_steps_; }

 private:
  void search(std::span<const SearchSpace> spaces, const PlannerOptions& how, int64_t most_steps,
              std::vector<Candidate>& found);

  const Spaces& spaces_;
  const Devices& devices_;
  PlannerOptions options_, coarse_options_;
  double asked_;  // tolerance
  std::span<const int64_t> sizes_;
  Clock::time_point deadline_;
  std::vector<std::vector<Island>> islands_;
  std::vector<std::unique_ptr<IntervalSearch>>
      searches_;  // of the last spaces, for each set of islands
  double best_, lower_bound_;
  bool timed_out_ = false;
  int64_t labels_ = 0, steps_ = 0, other_steps_ = 0;
  int64_t limit_ = int64_t{1} << 62;
};

}  // namespace ductile::plan
