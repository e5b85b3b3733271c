#include <algorithm>
#include <cmath>
#include <limits>

#include "ductile/base/error.h"
#include "ductile/plan/baselines/piper_problem_impl.h"
#include "ductile/plan/cpu_clock_impl.h"

namespace ductile::plan {

using graph::OpId;
using graph::OpSet;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kMemoryLimit = 300'000'000;  // entries of its table

}  // namespace

PiperResult piper_search(const graph::Graph& graph, const PiperProblem& problem) {
  const double start = cpu_now();
  PiperResult result;
  result.seconds = kInfinity;
  PiperModel model(graph, problem);
  if (!model.make_upsets(kPiperLimit)) {
    result.failure = "more than 40,000 downsets";
    result.cpu_seconds = cpu_now() - start;
    return result;
  }
  result.downsets = static_cast<int64_t>(model.upsets().size());
  const int num_k = problem.devices + 1;
  const int num_s = static_cast<int>(std::min<int64_t>(problem.micro_batches, problem.devices)) + 1;
  const size_t table = static_cast<size_t>(num_k) * num_s;
  if (table * model.upsets().size() > kMemoryLimit) {
    result.failure = "its table takes more than 1.2 GB";
    result.cpu_seconds = cpu_now() - start;
    return result;
  }
  model.make_below();
  const std::vector<int> replicas = model.replica_counts();
  std::vector<float> dp(table * model.upsets().size(), std::numeric_limits<float>::infinity());
  std::fill(dp.begin(), dp.begin() + static_cast<int64_t>(table), 0.0f);
  std::vector<float> time(num_s);
  PiperModel::StageModel stage;
  const auto times = [&](int d) {  // of each s
    size_t step = 0;
    for (int s = 0; s < num_s; ++s) {
      const int y = std::max(1, (s + d - 1) / d);
      while (step < stage.steps.size() && stage.steps[step].most < y) ++step;
      time[s] = step < stage.steps.size()
                    ? static_cast<float>(model.seconds(stage, stage.steps[step].time, d))
                    : std::numeric_limits<float>::infinity();
    }
  };
  for (int i = 1; i < static_cast<int>(model.upsets().size()); ++i) {
    float* row = dp.data() + table * i;
    for (int j : model.below(i)) {
      const OpSet set = model.upsets()[i] - model.upsets()[j];
      const std::vector<OpId> ops = set.to_vector();
      const float* before = dp.data() + table * j;
      for (int k = 0; k < static_cast<int>(model.degrees().size()); ++k) {
        const int t = model.degrees()[k];
        if (t > problem.devices) break;
        model.stage(ops, set, k, num_s, stage);
        if (!stage.allowed) continue;
        for (int d : replicas) {
          if (d * t >= num_k || d >= num_s) break;
          times(d);
          for (int n = d * t; n < num_k; ++n) {
            float* out = row + static_cast<size_t>(n) * num_s;
            const float* in = before + static_cast<size_t>(n - d * t) * num_s;
            for (int s = d; s < num_s; ++s) {
              out[s] = std::min(out[s], std::max(in[s - d], time[s]));
            }
          }
        }
      }
    }
    for (int n = 0; n < num_k; ++n) {  // "at most" in both
      for (int s = 0; s < num_s; ++s) {
        float& v = row[static_cast<size_t>(n) * num_s + s];
        if (n > 0) v = std::min(v, row[static_cast<size_t>(n - 1) * num_s + s]);
        if (s > 0) v = std::min(v, row[static_cast<size_t>(n) * num_s + s - 1]);
      }
    }
  }
  int i = static_cast<int>(model.upsets().size()) - 1;
  int n = num_k - 1;
  int s = num_s - 1;
  const float best = dp[table * i + static_cast<size_t>(n) * num_s + s];
  if (std::isfinite(best)) {
    result.feasible = true;
    const auto at = [&](int u, int a, int b) {
      return dp[table * u + static_cast<size_t>(a) * num_s + b];
    };
    while (i != 0) {
      // Entries hold for "at most": the stage is found at the smallest that are as good.
      while (n > 0 && at(i, n - 1, s) <= at(i, n, s)) --n;
      while (s > 0 && at(i, n, s - 1) <= at(i, n, s)) --s;
      bool found = false;
      for (int j : model.below(i)) {
        const OpSet set = model.upsets()[i] - model.upsets()[j];
        const std::vector<OpId> ops = set.to_vector();
        for (int k = 0; k < static_cast<int>(model.degrees().size()) && !found; ++k) {
          const int t = model.degrees()[k];
          model.stage(ops, set, k, num_s, stage);
          if (!stage.allowed) continue;
          for (int d : replicas) {
            if (d * t > n || d > s) break;
            // At least one stage of every optimum reaches the time; the others stay below.
            times(d);
            if (std::max(at(j, n - d * t, s - d), time[s]) <= at(i, n, s)) {
              result.stages.push_back(make_piper_stage(model, i, j, k, d, s));
              i = j;
              n -= d * t;
              s -= d;
              found = true;
              break;
            }
          }
        }
        if (found) break;
      }
      DUCTILE_CHECK(found, "an entry of Piper's table that no stage explains");
    }
    result.seconds = piper_seconds(graph, problem, result.stages);
  } else {
    result.failure = "memory does not suffice";
  }
  result.cpu_seconds = cpu_now() - start;
  return result;
}

}  // namespace ductile::plan
