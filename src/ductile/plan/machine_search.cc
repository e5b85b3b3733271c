#include <algorithm>

#include "ductile/plan/infinity_impl.h"
#include "ductile/plan/machine_search_impl.h"

namespace ductile::plan {

namespace {

constexpr double kCoarseTolerance = 0.02;
constexpr int kCoarseLabels = 8;
// Stages priced.
constexpr int64_t kCoarseSteps = 400'000;
constexpr int64_t kManySteps = 15'000'000;
constexpr int64_t kSteps = 5'000'000;
constexpr int64_t kStepsToTheEnd = 60'000'000;  // where a proof is asked for
constexpr int64_t kRoughly = 4;                 // as many times fewer where little is asked for
constexpr double kRoughTolerance = 0.005;

// One stage of everything, so that there is something to compare with from the start.
void data_parallel(const graph::Graph& graph, const Devices& devices, const PlannerOptions& options,
                   std::span<const int64_t> sizes, double& best, std::vector<Candidate>& found) {
  Plan plan;
  plan.graph = graph.name;
  plan.planner = "ductile";
  plan.batch = options.batch;
  Stage stage;
  for (OpId v = 0; v < static_cast<OpId>(graph.ops.size()); ++v) stage.ops.push_back(v);
  plan.stages.push_back(std::move(stage));
  for (int64_t b : sizes) {
    int64_t r = options.replicas > 0 ? options.replicas : std::min<int64_t>(b, devices.size());
    while (b % r != 0) --r;
    if (r > devices.size() || (options.replicas > 0 && r != options.replicas)) continue;
    plan.stages[0].replicas = static_cast<int>(r);
    plan.stages[0].micro_batch = plan.stages[0].in_flight = b;
    const double seconds = formula_seconds(graph, devices, plan, options.objective);
    if (seconds >= best) continue;
    best = seconds;
    found.push_back({seconds, plan, {}});
  }
}

}  // namespace

MachineSearch::MachineSearch(const Spaces& spaces, const Devices& devices,
                             const PlannerOptions& options, std::span<const int64_t> sizes,
                             Clock::time_point deadline)
    : spaces_(spaces),
      devices_(devices),
      options_(options),
      asked_(options.tolerance),
      sizes_(sizes),
      deadline_(deadline),
      best_(kInfinity),
      lower_bound_(kInfinity) {
  islands_.push_back({island_of(devices)});
  if (std::vector<Island> groups = islands_of(devices); groups.size() > 1)
    islands_.push_back(groups);
  if (!spaces.is_large()) return;
  if (options_.tolerance > 0) options_.tolerance = std::max(kCoarseTolerance, options.tolerance);
  coarse_options_ = options_;
  coarse_options_.max_labels = std::min(options_.max_labels, kCoarseLabels);
}

void MachineSearch::search(std::span<const SearchSpace> spaces, const PlannerOptions& how,
                           int64_t most_steps, std::vector<Candidate>& found) {
  std::vector<std::unique_ptr<IntervalSearch>> before = std::move(searches_);
  searches_.clear();
  lower_bound_ = kInfinity;
  timed_out_ = spaces_.cut_short;
  for (size_t i = 0; i < islands_.size(); ++i) {
    searches_.push_back(
        std::make_unique<IntervalSearch>(spaces, islands_[i], how, sizes_, most_steps, deadline_));
    IntervalSearch& now = *searches_.back();
    if (!before.empty()) now.guess_prices(*before[i]);
    lower_bound_ = std::min(lower_bound_, now.run(best_, found));
    timed_out_ = timed_out_ || now.timed_out();
    labels_ += now.labels();
    steps_ += now.steps();
  }
}

void MachineSearch::run(std::vector<Candidate>& found) {
  data_parallel(spaces_.full[0].graph(), devices_, options_, sizes_, best_, found);
  int64_t most_steps = asked_ == 0 ? kStepsToTheEnd : kSteps;
  if (spaces_.is_large()) {
    const auto thousands = static_cast<int64_t>(spaces_.full[0].graph().ops.size() / 1000);
    most_steps = kManySteps * std::clamp<int64_t>(thousands, 1, 5);
  }
  if (asked_ >= kRoughTolerance) most_steps /= kRoughly;
  most_steps = std::min(most_steps, limit_);
  if (!spaces_.coarse.empty()) search(spaces_.coarse, coarse_options_, kCoarseSteps, found);
  if (spaces_.cut_short) most_steps = kCoarseSteps;
  search(spaces_.full, spaces_.cut_short ? coarse_options_ : options_, most_steps, found);
}

void MachineSearch::add_others(double worth, std::vector<Candidate>& found) {
  if (spaces_.is_large() || best_ == kInfinity) return;
  for (auto& search : searches_) {
    const int64_t before = search->steps();
    search->add_others(best_, worth, found);
    other_steps_ += search->steps() - before;
  }
}

double MachineSearch::schedule_bound(double seconds) {
  double bound = seconds;
  for (auto& search : searches_) bound = std::min(bound, search->schedule_bound(seconds));
  return bound;
}

}  // namespace ductile::plan
