#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

#include "ductile/plan/planner.h"
#include "ductile/plan/search_space_impl.h"

namespace ductile::plan {

using Clock = std::chrono::steady_clock;

// How a stage may be run: a degree, split, kept or recomputed, optimiser sharded or not.
struct Shape {
  int replicas = 1;
  int tensor = 1;
  int variant = 0;  // of the space: tensor degree and recompute
  bool shard = false;
  int devices() const { return replicas * tensor; }
};

// What the formula of planner.h needs of a stage in a shape.
struct StageCost {
  double forward = 0;   // f
  double tau = 0;       // per micro-batch; for throughput per sample, gradient sum included
  double transfer = 0;  // x
  double sync = 0;      // s
  int64_t most = 0;     // micro-batches in flight that memory allows
};

StageCost stage_cost(const StageSums& sums, const Boundary& boundary, const Shape& shape,
                     const graph::Graph& graph, const Fleet& fleet, int64_t micro_batch,
                     int64_t batch, Objective objective);

// A stage of a solution.
struct Choice {
  int from = 0;  // states
  int to = 0;
  Shape shape;
  int64_t in_flight = 1;  // micro-batches
};

struct Solution {
  bool found = false;
  double rest = 0;  // max S; 0 for throughput
  double tau = 0;   // max tau
  int devices = 0;
  std::vector<Choice> stages;  // from the end of the model to its start
  // No solution with these bounds has a smaller `rest` (found or not); infinite: there is none.
  double rest_bound = 0;
};

// How hard to try, by the size of the space: what is left out lowers the bound.
struct Effort {
  int labels = 400;         // kept per state
  int lengths = 1'000'000;  // of stages tried from a state in a shape, the longest first
  int solves = 40;          // per micro-batch size
};

// The dynamic programme for one micro-batch size: with every tau at most a given one, and so many
// devices, the least S (or, where `fewest`, the fewest devices). A label of a state says what the
// stages taken off so far need: devices, and for each group of readers the samples in flight, R and
// S; a label that is worse in all of them is dropped. Exact unless a state has more labels than
// kept; then the dropped ones lower the bound.
class LabelSearch {
 public:
  LabelSearch(const SearchSpace& space, const Fleet& fleet, const PlannerOptions& options,
              const Effort& effort, int64_t micro_batch, Clock::time_point deadline);
  // To be called before the others; until then least_tau() is the share of the work alone.
  void prepare();

  int64_t micro_batches() const { return num_micro_; }
  // (m - 1) of the formula, or the batch for throughput: seconds = factor() tau + rest.
  double factor() const { return factor_; }
  // Least tau for which the device count is not ruled out by a relaxation: no solution below it.
  double least_tau() const { return least_tau_; }
  // No solution has a smaller rest: the longest path, each operator at its best.
  double least_rest() const { return least_rest_; }

  // No solution takes less in all: busy time and gradient sum of any stage (0: not known).
  double least_total() const { return least_total_; }

  // `tau_low`: solutions with a lower bottleneck are not of interest to the caller (known not to
  // exist); with `enough`, labels that cannot lead to factor x tau_low + rest < enough are dropped.
  Solution solve(double tau, double tau_low, double enough);
  // Fewest devices, whatever the times. `found` false: no number up to `max_devices` does.
  Solution fewest_devices(int max_devices);

  bool timed_out() const { return timed_out_; }
  int64_t labels() const { return num_labels_; }
  StageCost cost(int from, int transition, int shape);
  const std::vector<Shape>& shapes() const { return shapes_; }

 private:
  struct Value {  // of a group
    double r = 0;
    double s = 0;
    int64_t w = 0;
  };
  struct Label {
    int32_t devices = 0;
    int32_t parent = -1;
    int32_t state = 0;
    int32_t transition = -1;
    int32_t shape = 0;
    int32_t values = 0;
    int64_t in_flight = 0;
    double done = 0;
    double tau = 0;
  };
  void make_shapes(int max_devices);
  void make_work();
  void make_heads();
  void make_prefixes();
  void relax(double tau);
  void relax_chain(const std::vector<double>& prefix, double most);
  bool relaxed_fits(double tau, int devices);
  Solution run(double tau, double tau_low, double enough, int devices, bool fewest);
  bool insert(int state, const Label& label, const Value* values, double reach);
  bool out_of_time();

  const SearchSpace& space_;
  const Fleet& fleet_;
  const PlannerOptions& options_;
  Effort effort_;
  int64_t micro_batch_, num_micro_;
  double factor_ = 0, least_tau_ = 0, least_rest_ = 0, least_total_ = 0;
  bool latency_ = true;
  Clock::time_point deadline_;
  bool timed_out_ = false;
  int64_t num_labels_ = 0;
  int tick_ = 0;

  std::vector<Shape> shapes_;             // by devices
  std::vector<double> work_;              // per state: least device-seconds of a micro-batch
  std::vector<int32_t> sorted_;           // transitions of each state by work, ascending
  std::vector<double> sorted_work_;       // their work
  std::vector<double> head_;              // per group: least R upstream of its operators
  std::vector<double> prefix_tau_;        // [shape][state], chains: of the rest, no boundaries
  std::vector<double> prefix_total_;      // ... of all micro-batches, and the gradient sum
  std::vector<double> prefix_memory_;     // ... with one micro-batch in flight
  std::vector<int> need_;                 // per state: fewest devices for its rest, at relaxed tau
  std::vector<StageCost> cache_;          // [transition][shape], most < 0: not known
  std::vector<std::vector<int32_t>> at_;  // labels per state
  std::vector<Label> pool_;
  std::vector<Value> values_;
  std::vector<double> reach_;  // per label of the pool
  double dropped_ = std::numeric_limits<double>::infinity();
};

}  // namespace ductile::plan
