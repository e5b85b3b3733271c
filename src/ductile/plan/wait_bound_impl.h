#pragma once

#include <cstdint>
#include <vector>

#include "ductile/plan/path_bound_impl.h"

namespace ductile::plan {

// What the stages of a space have to wait for, whatever their devices.
class Gates {
 public:
  explicit Gates(const SearchSpace& space);  // which must outlive this

  // Whether every path of the graph passes the stage between two states, so that all stages behind
  // it wait for it; and whether every path comes into it from the smaller rest.
  bool all_pass(int from, int to) const;
  bool all_enter(int from, int to) const { return !begins_behind_[to] && all_pass(from, to); }
  // Where each operator reads the one before: bytes of a sample between the two at the border of a
  // state. Else 0.
  double bytes(int state) const { return bytes_[state]; }

 private:
  void note_bytes();

  const SearchSpace& space_;
  std::vector<std::vector<OpId>> read_by_;  // per state: who reads the rest, without short cuts
  std::vector<bool> ends_, begins_behind_;  // per state: whether a path ends in the rest, or
                                            // begins outside it
  std::vector<double> bytes_;
};

// Whether a plan may end within so many seconds, under any schedule, for one micro-batch size.
// PathBound::fits_in_all() takes every stage as busy from the first instant to the last; here a
// stage also waits for its first micro-batch, the gradients of its last one still have to go back
// to the inputs of the model, and its network cards send one message at a time.
// docs/design/011-pipeline-planner.md says why no plan whose stages have devices of their own
// escapes that.
//
// A dynamic programme from the inputs of the model to its end. A label of a state says of the
// stages of the rest: the weight of their devices; how long the average path of a flow takes
// through them, forward and back; and how long it takes to the end of the last stage that every
// path passes, for which all stages behind it wait. Where a state has too many labels, two of them
// become one that is as good as either, so that the answer stays a bound.
class WaitBound {
 public:
  // `flow`: PathFlow::round_trip() of the space. `paths`: of the same table. All must outlive this.
  WaitBound(const SearchSpace& space, const StageTable& table, const PathFlow& flow,
            const Gates& gates, const PathBound& paths);

  // False: no plan of the space takes so little. True: there may be one, or `steps` were not enough
  // to tell. A step is a stage priced or a label extended; those taken are subtracted.
  bool fits(double seconds, int64_t& steps);

 private:
  struct Label {
    double weight = 0;
    // Seconds: of the first micro-batch forward, and of the last one back. By the flow; and of the
    // stages up to the one that every path passes.
    double head = 0, tail = 0;
    double gate_head = 0, gate_tail = 0;
    bool is_no_worse(const Label& other) const {  // in time
      return head <= other.head && tail <= other.tail && gate_head <= other.gate_head &&
             gate_tail <= other.gate_tail;
    }
  };
  struct Limits {
    double seconds = 0;
    double weight = 0;  // of all devices
    double behind = 0;  // that the stages behind the one at hand need at least, all at once
    double work = 0;    // of those stages
  };
  void extend(int state, int transition, const Cell& cell, const Limits& limits);
  void add(std::vector<Label>& labels, const Label& label, const Limits& limits) const;

  const SearchSpace& space_;
  const StageTable& table_;
  const PathFlow& flow_;
  const Gates& gates_;
  const PathBound& paths_;
  double num_micro_;
  std::vector<std::vector<Label>> labels_;  // per state, by weight
  int64_t taken_ = 0;                       // steps
};

}  // namespace ductile::plan
