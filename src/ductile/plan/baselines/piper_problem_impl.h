#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ductile/graph/op_set.h"
#include "ductile/plan/baselines/piper.h"

namespace ductile::plan {

// Downsets, as in the published program.
inline constexpr size_t kPiperLimit = 40'000;

// Piper's problem as plain arrays: modes of operators, downsets by size, and stages between them.
class PiperModel {
 public:
  struct Mode {
    double time = 0, parameters = 0, a = 0, b = 0;
  };
  // Least time of a stage's operators (compute alone) with up to `most` micro-batches in flight.
  struct Step {
    double time = 0;
    int most = 0;
  };

  PiperModel(const graph::Graph& graph, const PiperProblem& problem);

  const PiperProblem& problem() const { return problem_; }
  int num_ops() const { return num_ops_; }
  std::span<const int> degrees() const { return degrees_; }
  const graph::Topology& topology() const { return topology_; }

  // Sets of operators closed under successors, by size; nothing beyond `cap`.
  bool make_upsets(size_t cap);
  const std::vector<graph::OpSet>& upsets() const { return upsets_; }
  // Proper subsets of upset i that are upsets, largest first. `of` lists the upsets that count,
  // ascending; the first form is for all of them.
  void make_below();
  const std::vector<int>& below(int i) const { return below_[i]; }
  std::vector<std::vector<int>> below_among(std::span<const int> of) const;

  // What a stage costs at one tensor degree.
  struct StageModel {
    bool allowed = false;
    double border = 0;        // 2 c(S, t), bytes
    double parameters = 0;    // of the kept modes
    std::vector<Step> steps;  // ascending time
  };
  // Steps up to `most` in flight.
  void stage(std::span<const graph::OpId> ops, const graph::OpSet& set, int degree_index, int most,
             StageModel& out) const;
  // The same for the operators of upset i that are not in upset j, of those below i, from sums kept
  // for each upset: O(edges over the two borders) where nothing needs to be recomputed. Times may
  // differ from stage()'s in the last bits. Precondition: make_sums().
  void stage_between(int i, int j, int degree_index, int most, StageModel& out) const;
  // A time that no step of that stage undercuts, at once; and a number of micro-batches in flight
  // that none exceeds.
  double least_time(int i, int j, int degree_index) const {
    const size_t k = static_cast<size_t>(degree_index) * upsets_.size();
    return sums_[k + i].least_time - sums_[k + j].least_time;
  }
  int most_in_flight(int i, int j, int degree_index, int most) const;
  void make_sums();
  // Seconds with d replicas, of a step.
  double seconds(const StageModel& stage, double time, int d) const {
    return stage.border / (d * problem_.bandwidth) +
           4.0 * (d - 1) * stage.parameters /
               (d * static_cast<double>(problem_.micro_batches) * problem_.bandwidth) +
           time / d;
  }
  // Which operators the greedy rule recomputes at y micro-batches in flight; false: does not fit.
  bool recomputed(std::span<const graph::OpId> ops, int degree_index, int y,
                  std::vector<graph::OpId>& out) const;
  std::vector<int> replica_counts() const;  // divisors of the batch, up to the devices

 private:
  // Over the operators of an upset, at one degree.
  struct Sums {
    double time = 0, parameters = 0, a = 0, b = 0;    // nothing recomputed
    double least_time = 0, least_a = 0, least_b = 0;  // each of an operator's best mode
    int refused = 0;                                  // operators that do not allow the degree
  };
  // An edge from outside an upset into it.
  struct Crossing {
    graph::OpId from, to;
    double bytes, tensor_from, tensor_to;
  };
  struct Saving {
    double ratio;
    graph::OpId op;
  };
  const Mode* modes(int degree_index, graph::OpId v, int& count) const {
    const size_t i = static_cast<size_t>(degree_index) * num_ops_ + v;
    count = count_[i];
    return modes_.data() + 2 * i;
  }

  PiperProblem problem_;
  graph::Topology topology_;
  int num_ops_ = 0;
  std::vector<int> degrees_;
  std::vector<Mode> modes_;  // [degree][op][2]
  std::vector<int> count_;   // [degree][op]: 0 not allowed, 1 kept only, 2
  struct HalfEdge {
    graph::OpId other;
    bool incoming;            // other -> this
    double bytes;             // 2 c at degree 1
    double tensor_bytes;      // 2 x what this end exchanges at higher degrees
    double far_tensor_bytes;  // the other end
  };
  std::vector<std::vector<HalfEdge>> edges_;  // of each operator, both ways
  std::vector<graph::OpSet> upsets_;
  std::vector<int> sizes_;
  std::vector<std::vector<int>> below_;
  std::vector<Sums> sums_;                        // [degree][upset]
  std::vector<std::vector<Crossing>> crossings_;  // of each upset
  mutable std::vector<Saving> savings_;           // scratch
};

// The stage of upset `from` without upset `to`, degrees k (an index) and d, with the sum s of
// degrees.
PiperStage make_piper_stage(const PiperModel& model, int from, int to, int k, int d, int s);

}  // namespace ductile::plan
