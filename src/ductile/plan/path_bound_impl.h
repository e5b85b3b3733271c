#pragma once

#include <array>
#include <span>
#include <vector>

#include "ductile/plan/path_flow_impl.h"
#include "ductile/plan/stage_table_impl.h"

namespace ductile::plan {

// Lower bounds for one micro-batch size: what the stages still to be made take at least, when every
// bottleneck is at most a given tau and memory holds what is in flight. Each is a shortest path
// over the states.
//   need(s)       least weight of devices (devices x speed) for the rest of state s
//   least(s)[i]   least of (length of the average path of flow i) + price(i) x weight of devices
// The second is a Lagrangian relaxation of "no more devices than there are", the price being its
// multiplier: with D the weight used already and C that of all devices, the stages of the rest have
// a longest path of at least least(s)[i] - price(i) (C - D), for the share of the flow in it.
class PathBound {
 public:
  static constexpr int kPrices = 4;  // three for the first flow, one for the second
  using Values = std::array<double, kPrices>;

  PathBound(const SearchSpace& space, const StageTable& table, std::span<const PathFlow> flows,
            const PlannerOptions& options);

  // Least tau not ruled out: share of the work, one operator.
  double least_tau() const { return least_tau_; }
  // need() alone. False where there are too few devices.
  bool fits(double tau);
  // The same where a stage may take so much for all its micro-batches and its gradient sum.
  bool fits_in_all(double seconds);
  // need() and least() at this tau; then, where the devices suffice, prices are moved towards the
  // best bound on the rest (planner.h: max S), which is returned; infinite where they do not.
  double solve(double tau);

  double need(int state) const { return need_[state]; }
  const Values& least(int state) const { return least_[state]; }
  // Least of those of all states before and this one: for a chain, of a stage that ends nearer.
  const Values& least_near(int state) const { return near_[state]; }
  // The price that was best, or 0; and a guess at it, before the first solve().
  double best_price() const { return priced_ ? next_price_ : 0; }
  void guess_price(double price) {
    next_price_ = price;
    next_ratio_ = 1.5;
    guessed_ = true;
  }
  int num_prices() const { return active_; }
  // Of a chain: of the stages from `state` that end in a block of states, the one that ends with
  // state e, the least of (length in the stage + least() from its end on).
  static constexpr int kBlock = 16;
  Values least_of_block(int state, int e, const Cell& cell) const;
  double price(int i) const { return prices_[i]; }
  const PathFlow& flow(int i) const { return flows_[i == kPrices - 1 ? 1 : 0]; }

  // The stages from a state by work, ascending (as they are, for a chain); their work in seconds of
  // a device of speed 1.
  int transition(int state, int i) const {
    const int at = space_.states()[state].first_transition + i;
    return sorted_.empty() ? at : sorted_[at];
  }
  double work(int state) const { return work_[state]; }
  // Number of stages from a state with at most this work; those with less than this work.
  int count_up_to(int state, double work) const;
  int count_below(int state, double work) const;
  // Of a chain, in the last solve: no stage from `state` in this cell passes this state.
  int farthest(int state, int cell) const {
    return farthest_[static_cast<size_t>(state) * table_.cells().size() + cell];
  }
  int64_t pairs() const { return pairs_; }  // stages priced so far, all in all

 private:
  void make_work(int64_t micro_batch);
  void relax_chain(double most, bool in_all, bool keep);
  void relax(double most, bool in_all);
  void run(double tau);
  void price_stages(int state, double tau);
  double bound() const;

  const SearchSpace& space_;
  const StageTable& table_;
  std::span<const PathFlow> flows_;
  bool latency_;
  double per_tau_;  // seconds of a micro-batch in one of tau
  double least_tau_ = 0;
  std::vector<double> work_, sorted_work_;
  std::vector<int32_t> sorted_, farthest_;
  std::vector<double> need_;
  std::vector<Values> least_, near_, blocks_;
  Values prices_{};
  double next_price_ = 0, next_ratio_ = 0;
  bool priced_ = false, guessed_ = false;
  int best_cell_ = 0;
  int active_ = kPrices;  // prices in use
  int64_t pairs_ = 0;
};

}  // namespace ductile::plan
