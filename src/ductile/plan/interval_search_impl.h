#pragma once

#include <memory>
#include <queue>
#include <vector>

#include "ductile/plan/label_search_impl.h"

namespace ductile::plan {

// A plan, by the formula. `islands`: of each stage; empty where there is one island.
struct Candidate {
  double seconds = std::numeric_limits<double>::infinity();
  Plan plan;
  std::vector<int> islands;
};

Candidate to_candidate(const SearchSpace& space, const Solution& solution, int64_t micro_batch,
                       int64_t batch, bool several_islands);

// Best first over all spaces, micro-batch sizes and bottlenecks. What is still to be looked at are
// intervals of the bottleneck tau of one space and size: no solution with tau in (low, high] has a
// smaller rest than `rest`, so none takes less than factor x low + rest. The interval with the
// least such bound is taken, and cut or done with; when that bound is no less than the best plan
// found (less the tolerance), nothing better is left.
class IntervalSearch {
 public:
  // The arguments must outlive this. `steps`: stages priced, all in all; then the search ends.
  IntervalSearch(std::span<const SearchSpace> spaces, std::span<const Island> islands,
                 const PlannerOptions& options, std::span<const int64_t> micro_batches,
                 int64_t steps, Clock::time_point deadline);

  // Improves `best` and appends to `found`; the bound of these spaces is returned.
  double run(double& best, std::vector<Candidate>& found);

  // Appends more plans that take at most `worth` times the best, of several sizes and bottlenecks:
  // what the formula leaves out may make one of them the better.
  void add_others(double best, double worth, std::vector<Candidate>& found);

  // No plan of these spaces takes less, whatever its schedule and whatever the formula says: each
  // stage waits for the first micro-batch, is busy with all of them and then sums its gradients
  // (wait_bound_impl.h), and there are only so many devices, each of so much memory. `seconds`:
  // what a plan is known to take.
  double schedule_bound(double seconds);

  // Takes what another search, of coarser spaces, found of the price of devices.
  void guess_prices(const IntervalSearch& other);

  bool timed_out() const { return timed_out_; }
  int64_t labels() const;
  int64_t steps() const;

 private:
  struct Item {
    double bound = 0;
    int size = 0;  // of sizes_
    double low = 0, high = 0, rest = 0;
    bool solved = false;  // looked at as a whole, to no end
    int labels = 0;       // to be kept per state
    bool operator<(const Item& other) const { return bound > other.bound; }
  };
  struct Size {
    const SearchSpace* space = nullptr;
    std::span<const PathFlow> flows;
    int64_t micro_batch = 0;
    double share = 0;  // seconds, if all devices shared all of the work
    double price = 0;  // a guess; 0: none
    double found = std::numeric_limits<double>::infinity();  // the best of this size
    double step = 1.25;  // most that the bottleneck grows within an interval
    std::unique_ptr<LabelSearch> search;
  };
  void make_search(Size& size);
  bool begin(Item& item, double best);
  double most_tau(const LabelSearch& search, double rest, double enough) const;
  void look_at(Item item, double& best, std::vector<Candidate>& found);
  void push(Item item);
  bool is_done(double least, double best) const { return least >= best * keep_ * (1 - 1e-11); }
  void settle(double bound) { bound_ = std::min(bound_, bound); }
  int most_labels(const SearchSpace& space) const;

  std::span<const Island> islands_;
  const PlannerOptions& options_;
  Clock::time_point deadline_;
  double keep_;
  bool latency_;
  int64_t steps_;
  std::vector<std::vector<PathFlow>> flows_;  // per space
  std::vector<Size> sizes_;
  std::priority_queue<Item> items_;
  double bound_ = std::numeric_limits<double>::infinity();
  bool timed_out_ = false;
};

}  // namespace ductile::plan
