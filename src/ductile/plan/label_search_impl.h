#pragma once

#include <limits>
#include <vector>

#include "ductile/plan/path_bound_impl.h"

namespace ductile::plan {

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
  // Of all solutions with these limits, found or not: the rest is no smaller than ..., and the
  // seconds (factor tau + rest) no fewer than ...; infinite: there is none.
  double rest_bound = 0;
  double bound = 0;
  double bound_above = 0;  // seconds of those whose bottleneck is above this one's
};

// What a search may take; what is left out for it lowers the bound.
struct Effort {
  int labels = 400;                  // kept per state
  int64_t steps = int64_t{1} << 62;  // stages priced, all in all
};

// The dynamic programme for one micro-batch size: with every tau at most a given one, and so many
// devices of each group, the least S (or, where `fewest`, the fewest devices). A label of a state
// says what the stages taken off so far need: devices, and for each group of readers the samples in
// flight, R and S; a label that is worse in all of them is dropped, and so is one that PathBound
// shows to lead nowhere. Exact unless a state has more labels than kept; then those dropped lower
// the bound.
class LabelSearch {
 public:
  // `flows`: two, of this space. All arguments must outlive this.
  LabelSearch(const SearchSpace& space, std::span<const Island> islands,
              std::span<const PathFlow> flows, const PlannerOptions& options, const Effort& effort,
              int64_t micro_batch, Clock::time_point deadline);

  int64_t micro_batches() const { return table_.micro_batches(); }
  // (m - 1) of the formula, or the batch for throughput: seconds = factor() tau + rest.
  double factor() const { return factor_; }
  // No solution has a smaller rest: the longest path, each operator at its best.
  double least_rest() const { return least_rest_; }
  PathBound& bound() { return bound_; }
  const StageTable& table() const { return table_; }

  // `path_bound`: a lower bound on the rest at this tau, from bound().solve(tau), called just
  // before. `tau_low`: a bottleneck known to be passed by all; labels that cannot lead to
  // factor x max(tau, tau_low) + rest < enough are dropped. `labels`: kept per state.
  Solution solve(double tau, double path_bound, double tau_low, double enough, int labels);
  // Fewest devices, whatever the times. One island only.
  Solution fewest_devices();

  bool timed_out() const { return timed_out_; }
  int64_t labels() const { return num_labels_; }
  // A label costs as much as thirty stages priced.
  int64_t steps() const { return steps_ + bound_.pairs() + 30 * num_labels_; }

 private:
  struct Value {  // of a group
    double r = 0;
    double s = 0;
    int64_t w = 0;
  };
  struct Label {
    std::array<int32_t, kMaxIslands> devices{};
    double weight = 0;  // of those
    int32_t parent = -1;
    int32_t state = 0;
    int32_t transition = -1;
    int32_t cell = 0;
    int32_t variant = 0;
    int32_t values = 0;
    int64_t in_flight = 0;
    double done = 0;
    double tau = 0;
  };
  using Prices = PathBound::Values;
  // What a run keeps to.
  struct Limits {
    double tau = 0;              // of any stage
    double work_per_weight = 0;  // that devices of weight 1 do in it
    double capacity = 0;         // weight of all devices
    double enough = 0;
    bool fewest = false;
    bool looks_ahead = false;  // PathBound tells what leads nowhere
  };
  // The least of what the labels of a state need.
  struct Front {
    double weight = 0, tau = 0;
    Prices paths{}, per_begin{};
  };
  // A stage, about to be put before those of each label of its state.
  struct Trial {
    int state = 0, transition = 0, cell = 0;
    CellCost keep, again;      // without and with recomputation
    bool knows_again = false;  // `again` was priced
  };
  void make_heads(bool zero_bubble);
  Solution run(double tau, double tau_low, double enough, bool fewest);
  Front front_of(int state) const;
  void take_stages(int state, int cell, const Front& front, const Limits& limits);
  bool leads_nowhere(const Front& front, const Cell& cell, const Prices& after,
                     const Limits& limits);
  bool leads_nowhere(const Front& front, const Cell& cell, const Trial& trial,
                     const Limits& limits);
  static Value most_of(const Value* values, uint64_t groups);
  const CellCost* recomputed(Trial& trial, int64_t in_flight, const Limits& limits) const;
  void extend(Trial& trial, const Limits& limits);
  void pass_on(const SearchSpace::Transition& transition, const Value* old, const Value& stage,
               const CellCost& cost);
  Solution best_of(std::span<const int32_t> labels, const Limits& limits) const;
  bool insert(int state, const Label& label, const Value* values, double reach);
  double reach_of(int state, const Label& label, const Value* values) const;
  Prices paths_of(int state, const Label& label, const Value* values) const;
  bool out_of_time();
  // `tau`: of what is dropped, at least.
  void drop(double tau, double reach) {
    dropped_rest_ = std::min(dropped_rest_, reach);
    dropped_ = std::min(dropped_, total(tau, reach));
  }
  double total(double tau, double rest) const { return factor_ * std::max(tau, tau_low_) + rest; }

  const SearchSpace& space_;
  std::span<const Island> islands_;
  Effort effort_;
  int64_t num_micro_;
  double factor_ = 0, least_rest_ = 0;
  bool latency_;
  bool compare_tau_;  // of labels; else one with a larger tau may stand for one with a smaller
  Clock::time_point deadline_;
  StageTable table_;
  PathBound bound_;
  bool timed_out_ = false;
  int64_t num_labels_ = 0, steps_ = 0;

  std::vector<double> head_;              // per group: least R upstream of its operators
  std::vector<std::vector<int32_t>> at_;  // labels per state
  std::vector<Label> pool_;
  std::vector<Value> values_, made_;
  std::vector<double> reach_;  // per label of the pool, on the rest
  double tau_low_ = 0;
  int most_labels_ = 0;
  double dropped_rest_ = 0, dropped_ = 0;  // least of what was dropped
};

}  // namespace ductile::plan
