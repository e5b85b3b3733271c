#include <algorithm>
#include <cmath>
#include <limits>

#include "ductile/base/error.h"
#include "ductile/plan/baselines/piper_problem_impl.h"
#include "ductile/plan/cpu_clock_impl.h"
#include "ductile/plan/infinity_impl.h"

namespace ductile::plan {

using graph::OpId;
using graph::OpSet;

namespace {

constexpr size_t kMemoryLimit = 300'000'000;  // entries of its table

// best[upset][n][s]: the least bottleneck of the upset's operators on at most n devices, degrees
// summing to at most s.
class PiperTable {
 public:
  explicit PiperTable(PiperModel& model)
      : model_(model),
        num_k_(model.problem().devices + 1),
        num_s_(static_cast<int>(
                   std::min<int64_t>(model.problem().micro_batches, model.problem().devices)) +
               1),
        row_(static_cast<size_t>(num_k_) * num_s_),
        replicas_(model.replica_counts()),
        time_(num_s_) {}

  size_t entries() const { return row_ * model_.upsets().size(); }

  void fill() {
    best_.assign(entries(), std::numeric_limits<float>::infinity());
    std::fill(best_.begin(), best_.begin() + static_cast<int64_t>(row_), 0.0f);
    for (int i = 1; i < static_cast<int>(model_.upsets().size()); ++i) {
      for (int j : model_.below(i)) take_stage(i, j);
      float* row = best_.data() + row_ * i;
      for (int n = 0; n < num_k_; ++n) {  // "at most" in both
        for (int s = 0; s < num_s_; ++s) {
          float& v = row[static_cast<size_t>(n) * num_s_ + s];
          if (n > 0) v = std::min(v, row[static_cast<size_t>(n - 1) * num_s_ + s]);
          if (s > 0) v = std::min(v, row[static_cast<size_t>(n) * num_s_ + s - 1]);
        }
      }
    }
  }

  bool feasible() const { return std::isfinite(best_.back()); }

  // The stages of an optimum, the first ones first.
  std::vector<PiperStage> stages() {
    std::vector<PiperStage> out;
    int i = static_cast<int>(model_.upsets().size()) - 1;
    int n = num_k_ - 1;
    int s = num_s_ - 1;
    while (i != 0) {
      // Entries hold for "at most": the stage is found at the smallest that are as good.
      while (n > 0 && at(i, n - 1, s) <= at(i, n, s)) --n;
      while (s > 0 && at(i, n, s - 1) <= at(i, n, s)) --s;
      out.push_back(stage_before(i, n, s));
    }
    return out;
  }

 private:
  float at(int i, int n, int s) const {
    return best_[row_ * i + static_cast<size_t>(n) * num_s_ + s];
  }

  // time_[s] of the stage at hand with d replicas.
  void set_times(int d) {
    size_t step = 0;
    for (int s = 0; s < num_s_; ++s) {
      const int y = std::max(1, (s + d - 1) / d);
      while (step < stage_.steps.size() && stage_.steps[step].most < y) ++step;
      time_[s] = step < stage_.steps.size()
                     ? static_cast<float>(model_.seconds(stage_, stage_.steps[step].time, d))
                     : std::numeric_limits<float>::infinity();
    }
  }

  // The row of upset i with the stage of what is not in upset j.
  void take_stage(int i, int j) {
    const OpSet set = model_.upsets()[i] - model_.upsets()[j];
    const std::vector<OpId> ops = set.to_vector();
    float* row = best_.data() + row_ * i;
    const float* before = best_.data() + row_ * j;
    const float* time = time_.data();
    for (int k = 0; k < static_cast<int>(model_.degrees().size()); ++k) {
      const int t = model_.degrees()[k];
      if (t > model_.problem().devices) break;
      model_.stage(ops, set, k, num_s_, stage_);
      if (!stage_.allowed) continue;
      for (int d : replicas_) {
        if (d * t >= num_k_ || d >= num_s_) break;
        set_times(d);
        for (int n = d * t; n < num_k_; ++n) {
          float* out = row + static_cast<size_t>(n) * num_s_;
          const float* in = before + static_cast<size_t>(n - d * t) * num_s_;
          for (int s = d, end = num_s_; s < end; ++s) {
            out[s] = std::min(out[s], std::max(in[s - d], time[s]));
          }
        }
      }
    }
  }

  // The stage that explains an entry; i, n and s become those of the entry before it.
  PiperStage stage_before(int& i, int& n, int& s) {
    for (int j : model_.below(i)) {
      const OpSet set = model_.upsets()[i] - model_.upsets()[j];
      const std::vector<OpId> ops = set.to_vector();
      for (int k = 0; k < static_cast<int>(model_.degrees().size()); ++k) {
        const int t = model_.degrees()[k];
        model_.stage(ops, set, k, num_s_, stage_);
        if (!stage_.allowed) continue;
        for (int d : replicas_) {
          if (d * t > n || d > s) break;
          // At least one stage of every optimum reaches the time; the others stay below.
          set_times(d);
          if (std::max(at(j, n - d * t, s - d), time_[s]) > at(i, n, s)) continue;
          PiperStage stage = make_piper_stage(model_, i, j, k, d, s);
          i = j;
          n -= d * t;
          s -= d;
          return stage;
        }
      }
    }
    fail(ErrorCode::internal, "an entry of Piper's table that no stage explains");
  }

  PiperModel& model_;
  const int num_k_, num_s_;
  const size_t row_;  // entries of an upset
  const std::vector<int> replicas_;
  std::vector<float> best_;
  PiperModel::StageModel stage_;  // the one at hand
  std::vector<float> time_;       // of it, by s
};

}  // namespace

PiperResult piper_search(const graph::Graph& graph, const PiperProblem& problem) {
  const double start = cpu_now();
  PiperResult result;
  result.seconds = kInfinity;
  PiperModel model(graph, problem);
  if (!model.make_upsets(kPiperLimit)) {
    result.failure = "more than 40,000 downsets";
  } else {
    result.downsets = static_cast<int64_t>(model.upsets().size());
    PiperTable table(model);
    if (table.entries() > kMemoryLimit) {
      result.failure = "its table takes more than 1.2 GB";
    } else {
      model.make_below();
      table.fill();
      result.feasible = table.feasible();
      if (result.feasible) {
        result.stages = table.stages();
        result.seconds = piper_seconds(graph, problem, result.stages);
      } else {
        result.failure = "memory does not suffice";
      }
    }
  }
  result.cpu_seconds = cpu_now() - start;
  return result;
}

}  // namespace ductile::plan
