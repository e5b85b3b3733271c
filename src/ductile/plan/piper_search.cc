#include <algorithm>
#include <cmath>
#include <limits>

#include "ductile/plan/cpu_clock_impl.h"
#include "ductile/plan/piper_problem_impl.h"

namespace ductile::plan {

using graph::OpId;
using graph::OpSet;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kPiperLimit = 40'000;        // downsets, as in the published program
constexpr size_t kMemoryLimit = 200'000'000;  // entries of its table

PiperStage make_stage(const PiperModel& model, int from, int to, int k, int d, int s) {
  PiperStage stage;
  stage.ops = (model.upsets()[from] - model.upsets()[to]).to_vector();
  stage.tensor = model.degrees()[k];
  stage.replicas = d;
  stage.in_flight = (s + d - 1) / d;
  model.recomputed(stage.ops, k, stage.in_flight, stage.recompute);
  std::sort(stage.recompute.begin(), stage.recompute.end());
  return stage;
}

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
    result.failure = "its table takes more than 0.8 GB";
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
              result.stages.push_back(make_stage(model, i, j, k, d, s));
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
      if (!found) break;
    }
    result.seconds = piper_seconds(graph, problem, result.stages);
  } else {
    result.failure = "memory does not suffice";
  }
  result.cpu_seconds = cpu_now() - start;
  return result;
}

namespace {

// For a bottleneck time: the fewest devices of each (upset, sum of degrees).
class MinDevices {
 public:
  MinDevices(PiperModel& model)
      : model_(model),
        replicas_(model.replica_counts()),
        num_s_(static_cast<int>(
                   std::min<int64_t>(model.problem().micro_batches, model.problem().devices)) +
               1) {
    const auto& upsets = model_.upsets();
    // Work of each upset: device-seconds at the best degree, for bounds.
    const int num_degrees = static_cast<int>(model.degrees().size());
    std::vector<double> least(model.num_ops(), kInfinity);
    PiperModel::StageModel stage;
    for (OpId v = 0; v < model.num_ops(); ++v) {
      for (int k = 0; k < num_degrees; ++k) {
        OpSet one(model.num_ops());
        one.insert(v);
        const OpId ops[1] = {v};
        model_.stage(ops, one, k, 1, stage);
        if (stage.allowed) {
          least[v] = std::min(least[v], stage.steps[0].time * model.degrees()[k]);
        }
      }
    }
    work_.assign(upsets.size(), 0);
    for (size_t i = 0; i < upsets.size(); ++i) {
      upsets[i].for_each([&](OpId v) { work_[i] += least[v]; });
    }
    fewest_.resize(upsets.size() * static_cast<size_t>(num_s_));
    back_.resize(fewest_.size());
    cached_ = upsets.size() <= 2000;
    if (cached_) cache_.resize(upsets.size());
  }

  double total_work() const { return work_.back(); }

  struct Back {
    int32_t to = -1;
    int16_t degree = 0;
    int16_t replicas = 0;
  };

  bool feasible(double tau) {
    const auto& upsets = model_.upsets();
    const int devices = model_.problem().devices;
    const int16_t never = std::numeric_limits<int16_t>::max() / 2;
    std::fill(fewest_.begin(), fewest_.end(), never);
    std::fill(fewest_.begin(), fewest_.begin() + num_s_, int16_t{0});
    const double total = work_.back();
    const int num_degrees = static_cast<int>(model_.degrees().size());
    PiperModel::StageModel scratch;
    for (int i = 1; i < static_cast<int>(upsets.size()); ++i) {
      int16_t* row = fewest_.data() + static_cast<size_t>(i) * num_s_;
      Back* back = back_.data() + static_cast<size_t>(i) * num_s_;
      // What is left needs so many devices at least, so this much is too many.
      const int left = static_cast<int>(std::ceil((total - work_[i]) / tau - 1e-9));
      const int limit = devices - left;
      const std::vector<int>& below = model_.below(i);
      for (size_t b = below.size(); b-- > 0;) {  // the longest stages first
        const int j = below[b];
        const double work = work_[i] - work_[j];
        if (work > tau * devices * (1 + 1e-12)) continue;
        const int16_t* before = fewest_.data() + static_cast<size_t>(j) * num_s_;
        const int at_least = before[num_s_ - 1];
        if (at_least + static_cast<int>(std::ceil(work / tau - 1e-9)) > limit) continue;
        for (int k = 0; k < num_degrees; ++k) {
          const int t = model_.degrees()[k];
          if (t > devices) break;
          const PiperModel::StageModel& stage = stage_of(i, b, k, scratch);
          if (!stage.allowed) continue;
          int covered = 0;
          for (int d : replicas_) {
            const int n = d * t;
            if (at_least + n > limit || d >= num_s_) break;
            if (stage.steps[0].time > tau * d) continue;
            const double fixed = model_.seconds(stage, 0, d);
            const double room = (tau - fixed) * d;
            if (stage.steps[0].time > room * (1 + 1e-12)) continue;
            size_t s = 0;
            while (s + 1 < stage.steps.size() && stage.steps[s + 1].time <= room * (1 + 1e-12)) ++s;
            const int reach =
                static_cast<int>(std::min<int64_t>(num_s_ - 1, int64_t{d} * stage.steps[s].most));
            for (int q = std::max(covered + 1, d); q <= reach; ++q) {
              const int16_t v = static_cast<int16_t>(before[q - d] + n);
              if (v < row[q]) {
                row[q] = v;
                back[q] = {j, static_cast<int16_t>(k), static_cast<int16_t>(d)};
              }
            }
            covered = std::max(covered, reach);
            if (covered >= num_s_ - 1) break;
          }
        }
      }
      for (int q = 1; q < num_s_; ++q) {
        if (row[q - 1] <= row[q]) {
          row[q] = row[q - 1];
          back[q] = {-2, 0, 0};  // as with a smaller sum
        }
      }
    }
    return fewest_.back() <= devices;
  }

  std::vector<PiperStage> stages() const {
    std::vector<PiperStage> out;
    int i = static_cast<int>(model_.upsets().size()) - 1;
    int s = num_s_ - 1;
    while (i != 0) {
      const Back& b = back_[static_cast<size_t>(i) * num_s_ + s];
      if (b.to == -2) {
        --s;
        continue;
      }
      out.push_back(make_stage(model_, i, b.to, b.degree, b.replicas, s));
      i = b.to;
      s -= b.replicas;
    }
    return out;
  }

 private:
  const PiperModel::StageModel& stage_of(int i, size_t b, int k, PiperModel::StageModel& scratch) {
    const size_t num_degrees = model_.degrees().size();
    PiperModel::StageModel* out = &scratch;
    if (cached_) {
      if (cache_[i].empty()) cache_[i].resize(model_.below(i).size() * num_degrees);
      Known& known = cache_[i][b * num_degrees + k];
      if (known.made) return known.stage;
      known.made = true;
      out = &known.stage;
    }
    const OpSet set = model_.upsets()[i] - model_.upsets()[model_.below(i)[b]];
    model_.stage(set.to_vector(), set, k, num_s_, *out);
    return *out;
  }

  struct Known {
    bool made = false;
    PiperModel::StageModel stage;
  };
  PiperModel& model_;
  std::vector<int> replicas_;
  int num_s_;
  std::vector<double> work_;
  std::vector<int16_t> fewest_;  // [upset][sum of degrees]
  std::vector<Back> back_;
  std::vector<std::vector<Known>> cache_;
  bool cached_ = false;
};

}  // namespace

PiperResult min_devices_search(const graph::Graph& graph, const PiperProblem& problem,
                               double precision) {
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
  model.make_below();
  MinDevices search(model);
  double low = search.total_work() / problem.devices * (1 - 1e-9);
  double high = low;
  // Upwards in growing steps, then halving; the time of what is found is exact, so few are needed.
  double step = 0.05;
  bool found = false;
  while (!found && step < 1e9) {
    high = low * (1 + step);
    found = search.feasible(high);
    if (!found) low = high;
    step *= 2;
  }
  if (!found) {
    result.failure = "memory does not suffice";
    result.cpu_seconds = cpu_now() - start;
    return result;
  }
  const auto take = [&] {
    std::vector<PiperStage> stages = search.stages();
    const double seconds = piper_seconds(graph, problem, stages);
    if (seconds < result.seconds) {
      result.seconds = seconds;
      result.stages = std::move(stages);
    }
    high = std::min(high, result.seconds);
  };
  take();
  while (high - low > precision * high) {
    const double middle = (low + high) / 2;
    if (search.feasible(middle)) {
      take();
      high = std::min(high, middle);
    } else {
      low = middle;
    }
  }
  result.feasible = true;
  result.lower_bound = low;
  result.cpu_seconds = cpu_now() - start;
  return result;
}

}  // namespace ductile::plan
