#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "ductile/base/error.h"
#include "ductile/plan/baselines/piper_problem_impl.h"
#include "ductile/plan/cpu_clock_impl.h"
#include "ductile/plan/infinity_impl.h"
#include "ductile/plan/search_space_impl.h"

// Piper's problem the other way round: for a time that no stage may exceed, the fewest devices of
// each (upset, sum of degrees). Most of the upsets lie on no good plan, so a few of them are
// searched often and all of them seldom: the upsets of two orders of the operators, and those that
// plans over all upsets led through.
namespace ductile::plan {

using graph::OpId;
using graph::OpSet;

namespace {

constexpr int kMaxSearchDevices = 16'000;     // fewest_ holds 16 bits
constexpr size_t kMaxRemembered = 1'000'000;  // stages

class MinDevices {
 public:
  // Upsets to search among, ascending, and for each those below it. The whole space has neither.
  struct Space {
    std::vector<int> states;
    std::vector<std::vector<int>> below;
  };

  explicit MinDevices(PiperModel& model)
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
    ends_.resize(upsets.size());
  }

  // That such work needs at least, each for tau seconds; one more than there are where it is too
  // much.
  int devices_for(double work, double tau) const {
    const int devices = model_.problem().devices;
    const double needed = std::ceil(work / tau - 1e-9);
    return needed <= devices ? static_cast<int>(needed) : devices + 1;
  }

  double total_work() const { return work_.back(); }
  int last() const { return static_cast<int>(work_.size()) - 1; }

  bool feasible(double tau, const Space& space) {
    const int devices = model_.problem().devices;
    const bool whole = space.states.empty();
    const size_t num = whole ? work_.size() : space.states.size();
    std::fill(fewest_.begin(), fewest_.begin() + num_s_, int16_t{0});
    ends_[0] = {0, 0};
    for (size_t at = 1; at < num; ++at) {
      const int i = whole ? static_cast<int>(at) : space.states[at];
      int16_t* row = fewest_.data() + static_cast<size_t>(i) * num_s_;
      std::fill(row, row + num_s_, kNever);
      ends_[i] = {num_s_, num_s_ - 1};
      // What is left needs so many devices at least, so this much is too many.
      const int limit = devices - devices_for(work_.back() - work_[i], tau);
      const std::vector<int>& below = whole ? model_.below(i) : space.below[at];
      for (size_t b = below.size(); b-- > 0;) {  // the longest stages first
        const int j = below[b];
        const double work = work_[i] - work_[j];
        const int at_least = fewest_[static_cast<size_t>(j) * num_s_ + num_s_ - 1];
        if (at_least + devices_for(work, tau) > limit) continue;
        if (ends_[j].first == num_s_) continue;
        for (int k = 0; k < static_cast<int>(model_.degrees().size()); ++k) {
          if (model_.degrees()[k] > devices) break;
          extend(tau, limit, i, j, k);
        }
      }
    }
    return fewest_.back() <= devices;
  }

  // Of the last feasible() that was true; `through` is set to the upsets they lead through.
  std::vector<PiperStage> stages(std::vector<int>& through) const {
    std::vector<PiperStage> out;
    through = {last()};
    int i = last();
    int s = num_s_ - 1;
    while (i != 0) {
      const size_t row = static_cast<size_t>(i) * num_s_;
      while (fewest_[row + s - 1] == fewest_[row + s]) --s;  // a smaller sum does
      const Back& b = back_[row + s];
      out.push_back(make_piper_stage(model_, i, b.to, b.degree, b.replicas, s));
      i = b.to;
      s -= b.replicas;
      through.push_back(i);
    }
    return out;
  }

 private:
  static constexpr int16_t kNever = std::numeric_limits<int16_t>::max() / 2;
  struct Back {
    int32_t to = -1;
    int16_t degree = 0;
    int16_t replicas = 0;
  };

  // Takes the stage between upsets i and j, at one tensor degree, into the row of i.
  void extend(double tau, int limit, int i, int j, int k) {
    const int t = model_.degrees()[k];
    int16_t* row = fewest_.data() + static_cast<size_t>(i) * num_s_;
    const int16_t* before = fewest_.data() + static_cast<size_t>(j) * num_s_;
    const int at_least = before[num_s_ - 1];
    const auto first = std::lower_bound(replicas_.begin(), replicas_.end(),
                                        model_.least_time(i, j, k) / tau - 1e-9,
                                        [](int d, double x) { return d < x; });
    if (first == replicas_.end() || *first >= num_s_) return;
    if (at_least + *first * t > limit || row[*first] <= at_least + *first * t) return;
    // Is there anything to gain, were messages free and memory at its best?
    const int most = model_.most_in_flight(i, j, k, num_s_);
    bool gains = false;
    for (auto d = first; d != replicas_.end() && *d < num_s_ && !gains; ++d) {
      const int n = *d * t;
      if (at_least + n > limit) break;
      const int end = last_sum(*d, most, j);
      for (int q = *d + ends_[j].first; q <= end && !gains; ++q)
        gains = before[q - *d] + n < row[q];
    }
    if (!gains) return;

    const PiperModel::StageModel& stage = stage_of(i, j, k);
    if (!stage.allowed) return;
    Back* back = back_.data() + static_cast<size_t>(i) * num_s_;
    int covered = 0;  // up to this sum of degrees, fewer replicas do
    for (auto next = first; next != replicas_.end() && *next < num_s_; ++next) {
      const int d = *next;
      const int n = d * t;
      if (at_least + n > limit || covered >= num_s_ - 1) break;
      const double room = (tau - model_.seconds(stage, 0, d)) * d * (1 + 1e-12);
      if (stage.steps[0].time > room) continue;
      size_t s = 0;
      while (s + 1 < stage.steps.size() && stage.steps[s + 1].time <= room) ++s;
      const int end = last_sum(d, stage.steps[s].most, j);
      bool changed = false;
      const int16_t least = row[num_s_ - 1];
      for (int q = std::max(covered + 1, d + ends_[j].first); q <= end; ++q) {
        const int16_t v = static_cast<int16_t>(before[q - d] + n);
        if (v >= row[q]) continue;
        row[q] = v;
        back[q] = {j, static_cast<int16_t>(k), static_cast<int16_t>(d)};
        ends_[i].first = std::min(ends_[i].first, q);
        changed = true;
      }
      if (changed) {  // larger sums do as well
        for (int q = end + 1; q < num_s_ && row[q] > row[end]; ++q) row[q] = row[end];
        int& floor = ends_[i].floor;
        if (row[num_s_ - 1] < least) floor = end;
        while (floor > 0 && row[floor - 1] == row[floor]) --floor;
      }
      covered = std::max(covered, static_cast<int>(std::min<int64_t>(
                                      num_s_ - 1, int64_t{d} * stage.steps[s].most)));
    }
  }

  // Of the sums of degrees that a stage of d replicas above upset j is worth trying with: as many
  // as memory allows, and as have fewer devices than those before.
  int last_sum(int d, int most_in_flight, int j) const {
    const int64_t reach = std::min<int64_t>(num_s_ - 1, int64_t{d} * most_in_flight);
    return static_cast<int>(std::min<int64_t>(reach, d + ends_[j].floor));
  }

  const PiperModel::StageModel& stage_of(int i, int j, int k) {
    const uint64_t num_degrees = model_.degrees().size();
    const uint64_t key = (static_cast<uint64_t>(i) * work_.size() + j) * num_degrees + k;
    const auto known = remembered_.find(key);
    if (known != remembered_.end()) return known->second;
    PiperModel::StageModel* out =
        remembered_.size() < kMaxRemembered ? &remembered_[key] : &scratch_;
    model_.stage_between(i, j, k, num_s_, *out);
    return *out;
  }

  PiperModel& model_;
  std::vector<int> replicas_;
  int num_s_;
  std::vector<double> work_;
  std::vector<int16_t> fewest_;  // [upset][sum of degrees], falling
  struct Ends {
    int first = 0;  // sum of degrees with a plan
    int floor = 0;  // the first with the fewest devices of the row
  };
  std::vector<Ends> ends_;
  std::vector<Back> back_;
  std::unordered_map<uint64_t, PiperModel::StageModel> remembered_;
  PiperModel::StageModel scratch_;
};

// The upsets that are the rest of the operators after each of an order.
void add_order(const PiperModel& model, const std::vector<OpId>& order, std::vector<int>& states) {
  std::unordered_map<OpSet, int, graph::OpSetHash> number;
  OpSet rest(model.num_ops());
  number.emplace(rest, -1);
  for (size_t i = order.size(); i-- > 0;) {
    rest.insert(order[i]);
    number.emplace(rest, -1);
  }
  for (size_t i = 0; i < model.upsets().size(); ++i) {
    if (number.contains(model.upsets()[i])) states.push_back(static_cast<int>(i));
  }
}

}  // namespace

PiperResult min_devices_search(const graph::Graph& graph, const PiperProblem& problem,
                               double precision) {
  const double start = cpu_now();
  if (problem.devices > kMaxSearchDevices) {
    fail(ErrorCode::invalid_argument, "devices = {}: at most {}", problem.devices,
         kMaxSearchDevices);
  }
  PiperResult result;
  result.seconds = kInfinity;
  PiperModel model(graph, problem);
  if (!model.make_upsets(kPiperLimit)) {
    result.failure = "more than 40,000 downsets";
    result.cpu_seconds = cpu_now() - start;
    return result;
  }
  result.downsets = static_cast<int64_t>(model.upsets().size());
  model.make_sums();
  model.make_below();
  MinDevices search(model);
  const MinDevices::Space all;
  MinDevices::Space few;
  const auto order = model.topology().order();
  add_order(model, {order.begin(), order.end()}, few.states);
  add_order(model, depth_first_order(graph), few.states);
  const auto widen = [&](const std::vector<int>& states) {
    few.states.insert(few.states.end(), states.begin(), states.end());
    std::sort(few.states.begin(), few.states.end());
    few.states.erase(std::unique(few.states.begin(), few.states.end()), few.states.end());
    few.below = model.below_among(few.states);
  };
  widen({0, search.last()});

  // No plan is faster than `low`; result.seconds is the best found.
  double low = search.total_work() / problem.devices * (1 - 1e-9);
  const auto attempt = [&](double tau, const MinDevices::Space& space) {
    if (!search.feasible(tau, space)) return false;
    std::vector<int> through;
    std::vector<PiperStage> stages = search.stages(through);
    const double seconds = piper_seconds(graph, problem, stages);
    if (seconds < result.seconds) {
      result.seconds = seconds;
      result.stages = std::move(stages);
    }
    if (space.states.empty()) widen(through);
    return true;
  };
  // The least time among few: up in growing steps, then halving.
  const auto polish = [&] {
    double below = low;
    if (result.stages.empty()) {
      for (double step = 0.05; step < 1e6 && !attempt(below * (1 + step), few); step *= 2) {
        below *= 1 + step;
      }
    }
    while (result.seconds - below > precision * result.seconds && below < result.seconds) {
      const double middle = (below + result.seconds) / 2;
      if (!attempt(middle, few)) below = middle;
    }
  };
  polish();
  if (result.stages.empty() && !attempt(low * 1e9 + 1e9, all)) {
    result.failure = "memory does not suffice";
    result.cpu_seconds = cpu_now() - start;
    return result;
  }
  // Among all: just below what there is, in the hope that it fails; where it does not, halfway.
  bool hopeful = true;
  while (result.seconds - low > precision * result.seconds) {
    const double tau =
        hopeful ? result.seconds * (1 - 0.9 * precision) : (low + result.seconds) / 2;
    if (attempt(tau, all)) {
      polish();
      hopeful = !hopeful;
    } else {
      low = tau;
      hopeful = true;
    }
  }
  result.feasible = true;
  result.lower_bound = low;
  result.cpu_seconds = cpu_now() - start;
  return result;
}

}  // namespace ductile::plan
