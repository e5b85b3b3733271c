#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "ductile/plan/stage_cost_impl.h"

namespace ductile::plan {

// A degree of a stage on one group of devices. Sharding the optimiser costs no time, so it is used
// where memory asks for it and nowhere else; recomputation costs time and nothing else, so it comes
// after that. (Where a measured variant makes it cheaper in some way, it is a cell of its own.)
struct Cell {
  int replicas = 1;
  int tensor = 1;
  int group = 0;
  int keep = 0;    // variant of the space
  int again = -1;  // the same with recomputation; -1: none
  bool may_shard = false;
  double weight = 1;  // devices x speed
  int devices() const { return replicas * tensor; }

  // What the costs below need.
  double share = 1;               // samples of a micro-batch on each device
  double speed = 1, seconds = 1;  // of the reference's second
  double memory = 0;
  double tensor_per_byte = 0, tensor_latency = 0;
  double sync_per_byte = 0, sync_latency = 0;
  double stage_per_byte = 0, stage_latency = 0;  // a message of a whole micro-batch
  double least_per_byte = 0, least_latency = 0;  // the same over the best link there may be
};

// What a stage takes at least, whatever the schedule and wherever its devices are: seconds.
struct StageLeast {
  double forward = 0, backward_input = 0, backward_weight = 0;  // of one micro-batch
  double messages = 0;  // of one micro-batch, sent by all of its cards at once
  double sync = 0;
};

struct CellCost : StageCost {
  int64_t most_whole = 0;  // with the whole optimiser state on every device
};

// Costs of all stages of a space at one micro-batch size in a few operations each: stage_cost() of
// sums that are differences of two rests.
class StageTable {
 public:
  StageTable(const SearchSpace& space, std::span<const Island> islands,
             const PlannerOptions& options, int64_t micro_batch);

  const std::vector<Cell>& cells() const { return cells_; }  // by weight
  int64_t micro_batches() const { return num_micro_; }
  double capacity() const { return capacity_; }  // sum of weights of all devices

  // False where the split asked for does not apply to any operator of the stage.
  bool cost(int from, int transition, const Cell& cell, int variant, CellCost& out) const {
    double room = 0;
    double each = 0;
    if (!times(from, transition, cell, variant, out, room, each)) return false;
    const double param = param_of(from, transition, variant);
    out.most_whole = out.most = most(room - param * state_whole_, each);
    if (out.most < num_micro_ && cell.may_shard) {
      out.most = most(room - param * state_sharded(cell), each);
    }
    return true;
  }
  // The same, but of the figures in flight only whether there is one; false where there is not.
  bool cost_of_one(int from, int transition, const Cell& cell, int variant, StageCost& out) const {
    double room = 0;
    double each = 0;
    if (!times(from, transition, cell, variant, out, room, each)) return false;
    const double param = param_of(from, transition, variant);
    return room - param * (cell.may_shard ? state_sharded(cell) : state_whole_) >= each;
  }
  // The shape of a stage with w micro-batches in flight.
  Shape shape(int from, int transition, const Cell& cell, int variant, int64_t w) const;

  // Lower bounds that fall as `to` comes closer to `from`: busy seconds of a micro-batch, and
  // bytes of a device with one micro-batch in flight, the optimiser sharded, recomputed if it may.
  double least_tau(int from, int to, const Cell& cell) const {
    const Row& a = row(from, cell.keep);
    const Row& b = row(to, cell.keep);
    return time_of(a, b, cell);
  }
  // What such a stage adds to a round trip.
  double least_round(int from, int to, const Cell& cell) const {
    return zero_bubble_ ? forward_of(row(from, cell.keep), row(to, cell.keep), cell)
                        : least_tau(from, to, cell);
  }
  double least_sync(int from, int to, const Cell& cell) const {
    if (space_.has_ties()) return 0;
    return (row(from, cell.keep).param - row(to, cell.keep).param) * cell.sync_per_byte;
  }
  // Where nothing is recomputed; the operators must allow the cell's split.
  StageLeast least(int from, int transition, const Cell& cell) const {
    const SearchSpace::Transition& t = space_.transitions()[transition];
    const Row& a = row(from, cell.keep);
    const Row& b = row(t.to, cell.keep);
    StageLeast out;
    out.forward = forward_of(a, b, cell);
    out.backward_input = input_of(a, b, cell);
    out.backward_weight = std::max(0.0, time_of(a, b, cell) - out.forward - out.backward_input);
    out.messages = (t.in + t.out) * cell.least_per_byte;
    if (cell.replicas > 1) {
      const double param = param_of(from, transition, cell.keep);
      if (param > 0) out.sync = param * cell.sync_per_byte + cell.sync_latency;
    }
    return out;
  }
  double least_memory(int from, int to, const Cell& cell) const {
    const double keep = memory_of(from, to, cell, cell.keep);
    return cell.again < 0 ? keep : std::min(keep, memory_of(from, to, cell, cell.again));
  }

 private:
  struct Row {  // of the rest of a state
    double forward_fixed = 0, forward_each = 0, input_fixed = 0, input_each = 0, time_fixed = 0,
           time_each = 0;  // the second pair: of the backward pass to the inputs
    double param = 0, fixed = 0, activation = 0, activation_fixed = 0, tensor_forward = 0,
           tensor_backward = 0;
    double tensor_forward_rounds = 0, tensor_rounds = 0;  // the latter of both passes
    int splittable = 0;
  };
  const Row& row(int state, int variant) const {
    return rows_[static_cast<size_t>(variant) * num_states_ + state];
  }
  static double time_of(const Row& a, const Row& b, const Cell& c) {
    const double t = (a.time_fixed - b.time_fixed + (a.time_each - b.time_each) * c.share);
    if (c.tensor == 1) return t * c.seconds;
    return t * c.seconds +
           (a.tensor_forward - b.tensor_forward + a.tensor_backward - b.tensor_backward) *
               c.tensor_per_byte +
           (a.tensor_rounds - b.tensor_rounds) * c.tensor_latency;
  }
  // Seconds of the forward pass.
  static double forward_of(const Row& a, const Row& b, const Cell& c) {
    const double t =
        (a.forward_fixed - b.forward_fixed + (a.forward_each - b.forward_each) * c.share) *
        c.seconds;
    if (c.tensor == 1) return t;
    return t + (a.tensor_forward - b.tensor_forward) * c.tensor_per_byte +
           (a.tensor_forward_rounds - b.tensor_forward_rounds) * c.tensor_latency;
  }
  // Seconds of the backward pass to the inputs.
  static double input_of(const Row& a, const Row& b, const Cell& c) {
    const double t =
        (a.input_fixed - b.input_fixed + (a.input_each - b.input_each) * c.share) * c.seconds;
    if (c.tensor == 1) return t;
    const double rounds =
        a.tensor_rounds - b.tensor_rounds - (a.tensor_forward_rounds - b.tensor_forward_rounds);
    return t + (a.tensor_backward - b.tensor_backward) * c.tensor_per_byte +
           rounds * c.tensor_latency;
  }
  double memory_of(int from, int to, const Cell& c, int variant) const {
    const Row& a = row(from, variant);
    const Row& b = row(to, variant);
    const double param = space_.has_ties() ? 0 : a.param - b.param;
    return param * (c.may_shard ? state_sharded(c) : state_whole_) + a.fixed - b.fixed +
           (a.activation - b.activation) * c.share + a.activation_fixed - b.activation_fixed;
  }
  double param_of(int from, int transition, int variant) const {
    const double p =
        row(from, variant).param - row(space_.transitions()[transition].to, variant).param;
    return space_.has_ties() ? p - space_.tied(transition, variant) : p;
  }
  // Seconds; bytes left for activations and weights, and what a micro-batch takes of them.
  bool times(int from, int transition, const Cell& cell, int variant, StageCost& out, double& room,
             double& each) const {
    const SearchSpace::Transition& t = space_.transitions()[transition];
    const Row& a = row(from, variant);
    const Row& b = row(t.to, variant);
    if (cell.tensor > 1 && a.splittable <= b.splittable) return false;
    const double forward = forward_of(a, b, cell);
    const double busy = time_of(a, b, cell);
    out.forward = forward;
    out.transfer = t.in > 0 ? cell.stage_latency + t.in * cell.stage_per_byte : 0;
    const double sending =
        out.transfer + (t.out > 0 ? cell.stage_latency + t.out * cell.stage_per_byte : 0);
    out.tau = out.round = std::max(busy, sending);
    out.sync = 0;
    if (cell.replicas > 1) {
      const double param = param_of(from, transition, variant);
      if (param > 0) out.sync = param * cell.sync_per_byte + cell.sync_latency;
    }
    if (zero_bubble_) {
      const double input = input_of(a, b, cell);
      out.round = std::max(
          round_without_weights(forward, input, std::max(0.0, busy - forward - input)), sending);
      out.sync += out.tau - out.round;
    }
    if (!latency_) {
      out.tau = out.tau / micro_batch_ + out.sync / batch_;
      out.forward = out.transfer = out.sync = 0;
    }
    const double messages = 3 * t.in + (counted_ ? 2 * t.out : 0);
    room = cell.memory - (a.fixed - b.fixed) - messages * cell.share;
    if (space_.has_workspace()) room -= space_.workspace(transition, variant).at(cell.share);
    each = (a.activation - b.activation + (counted_ ? t.in : t.out)) * cell.share +
           a.activation_fixed - b.activation_fixed;
    return true;
  }
  int64_t most(double room, double each) const {
    if (room < 0) return 0;
    return each * static_cast<double>(num_micro_) <= room ? num_micro_
                                                          : static_cast<int64_t>(room / each);
  }
  double state_sharded(const Cell& c) const {
    return state_factor_ + (state_whole_ - state_factor_) / c.replicas;
  }

  const SearchSpace& space_;
  size_t num_states_;
  int64_t num_micro_;
  double batch_, micro_batch_, state_factor_, state_whole_, capacity_ = 0;
  bool latency_;
  bool counted_;      // bytes, as Graph::counted
  bool zero_bubble_;  // is the objective
  std::vector<Cell> cells_;
  std::vector<Row> rows_;  // [variant][state]
};

}  // namespace ductile::plan
