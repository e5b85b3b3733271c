#include "ductile/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "ductile/base/error.h"
#include "ductile/plan/baselines.h"
#include "ductile/plan/cpu_clock_impl.h"
#include "ductile/plan/interval_search_impl.h"
#include "ductile/plan/schedule.h"
#include "ductile/plan/sequential_search_impl.h"

namespace ductile::plan {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kMaxChainStates = 1000;
constexpr double kPoorGap = 1.1;       // from here on a search was poor
constexpr double kNearlyAsGood = 1.1;  // of the best: plans worth judging
constexpr double kLessGood = 1.5;      // where the formula was a poor guide
constexpr size_t kJudged = 16;         // plans that the evaluator compares, and their tasks in all
constexpr int64_t kJudgedTasks = 15'000;
constexpr int64_t kMostTasks = 100'000;  // of a plan that is judged beside another
constexpr int64_t kOrders = 14;          // tried for a plan, all in all
constexpr size_t kManyStates = 300;      // of a space: it is searched with less effort
constexpr int kCoarseStates = 48;
constexpr double kSpaceShare = 0.3;      // of the time left, to make a space ...
constexpr double kSecondsPerCut = 1e-7;  // ... for each operator
constexpr double kCoarseTolerance = 0.02;
constexpr int kCoarseLabels = 8;
constexpr int64_t kCoarseSteps = 400'000;
constexpr int64_t kManySteps = 15'000'000;
constexpr int64_t kSteps = 60'000'000;  // stages priced

std::vector<int64_t> sizes_to_try(const PlannerOptions& options) {
  if (options.batch < 1) {
    fail(ErrorCode::invalid_argument, "batch: {} samples; at least 1", options.batch);
  }
  std::vector<int64_t> sizes = options.micro_batches;
  for (int64_t b : sizes) {
    if (b < 1 || options.batch % b != 0) {
      fail(ErrorCode::invalid_argument, "micro_batches: {} does not divide the batch of {}", b,
           options.batch);
    }
  }
  if (sizes.empty()) {
    for (int64_t b = 1; b * b <= options.batch; ++b) {
      if (options.batch % b != 0) continue;
      sizes.push_back(b);
      if (b * b != options.batch) sizes.push_back(options.batch / b);
    }
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// More samples in flight than the rule asks for shortens waits; as many as memory allows.
Plan with_room_used(const graph::Graph& graph, const Devices& devices, Plan plan) {
  const PlanCosts costs = plan_costs(graph, devices, plan);
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    Stage& stage = plan.stages[i];
    const double room = costs.memory_limit[i] - costs.fixed_memory[i];
    const double each = costs.held_per_sample[i] * static_cast<double>(stage.micro_batch);
    int64_t most = plan.batch / stage.micro_batch;
    if (each > 0) {
      most = std::min(most, static_cast<int64_t>(std::max(0.0, room * (1 - 1e-12)) / each));
    }
    const int64_t now = stage.in_flight / stage.micro_batch;
    // Twice the rule suffices to hide every wait (zero bubble, Qi et al., 2023, section 4).
    stage.in_flight = std::max(now, std::min(most, 2 * now)) * stage.micro_batch;
  }
  return plan;
}

void place_candidate(const graph::Graph& graph, const Devices& devices, Candidate& c) {
  if (c.fleets.empty()) {
    place(graph, devices, c.plan);
  } else {
    place_on_fleets(graph, devices, c.fleets, c.plan);
  }
}

int64_t tasks_of(const Plan& plan) {
  int64_t tasks = 0;
  for (const Stage& stage : plan.stages) tasks += 2 * (plan.batch / stage.micro_batch);
  return tasks;
}

// Several orders of the best plans by the formula, each plan as it is, with more in flight, and
// with zero bubbles. Where that is too much, the plans that do best in the plain order.
void judge(const graph::Graph& graph, const Devices& devices, const PlannerOptions& options,
           Clock::time_point deadline, std::vector<Candidate>& found, Planned& out) {
  out.simulated_seconds = kInfinity;
  const auto consider = [&](const Plan& plan, double formula) {
    if (out.feasible && Clock::now() > deadline) return;
    const Timeline line = evaluate(graph, devices, plan);
    if (!line.fits() || line.seconds >= out.simulated_seconds) return;
    out.simulated_seconds = line.seconds;
    out.plan = plan;
    out.formula_seconds = formula;
    out.feasible = true;
  };
  const auto consider_all = [&](const Candidate& c) {
    consider(c.plan, c.seconds);
    const Plan roomy = with_room_used(graph, devices, c.plan);
    if (!(roomy == c.plan)) consider(roomy, c.seconds);
    if (!options.zero_bubble) return;
    Plan zero = roomy;
    zero.schedule = ScheduleKind::zero_bubble;
    consider(zero, c.seconds);
  };
  int64_t tasks = 0;
  const size_t judged = std::min(found.size(), kJudged);
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < judged; ++i) {
    place_candidate(graph, devices, found[i]);
    tasks += kOrders * tasks_of(found[i].plan);
    order.emplace_back(0.0, i);
  }
  size_t num = judged;
  if (tasks > kJudgedTasks) {
    num = std::max<size_t>(
        2, static_cast<size_t>(kJudgedTasks * static_cast<int64_t>(judged) / tasks));
    num = std::min(num, judged);
    for (auto& [seconds, i] : order) {
      const Plan& plan = found[i].plan;
      if (i > 0 && (tasks_of(plan) > kMostTasks || Clock::now() > deadline)) {
        seconds = kInfinity;
        continue;
      }
      seconds = evaluate(plan, plan_costs(graph, devices, plan), kfkb_orders(plan)).seconds;
    }
    std::stable_sort(order.begin(), order.end());
  }
  for (size_t k = 0; k < num; ++k) {
    if (k > 0 && order[k].first == kInfinity) break;
    consider_all(found[order[k].second]);
  }
  // None of them fits: others.
  for (size_t i = 0; i < found.size() && !out.feasible; ++i) {
    if (i >= judged) place_candidate(graph, devices, found[i]);
    consider_all(found[i]);
  }
}

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
    int64_t r = std::min<int64_t>(b, devices.size());
    while (b % r != 0) --r;
    plan.stages[0].replicas = static_cast<int>(r);
    plan.stages[0].micro_batch = plan.stages[0].in_flight = b;
    const double seconds = formula_seconds(graph, devices, plan, options.objective);
    if (seconds >= best) continue;
    best = seconds;
    found.push_back({seconds, plan, {}});
  }
}

// The chains that a sequential planner would find, for the micro-batch sizes of the best plans: no
// plan of ours shall lose to one of them.
void add_chains(const graph::Graph& graph, const SearchSpace& space, const Fleet& fleet,
                const Devices& devices, const PlannerOptions& options, Clock::time_point deadline,
                double& best, std::vector<Candidate>& found) {
  const double size = static_cast<double>(space.transitions().size()) * fleet.devices;
  if (!space.is_chain() || size > 3e6 || found.empty()) return;
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  std::vector<int64_t> tried;
  for (size_t i = 0; i < found.size() && tried.size() < 2; ++i) {
    const int64_t b = found[i].plan.stages[0].micro_batch;
    if (std::find(tried.begin(), tried.end(), b) == tried.end()) tried.push_back(b);
  }
  for (int64_t b : tried) {
    SequentialResult r = sequential_search(space, fleet, options, b, false, deadline);
    if (!r.found) continue;
    r.plan.planner = "ductile";
    const std::vector<int64_t> w = in_flight_samples(stage_graph(graph, r.plan), r.plan);
    for (size_t i = 0; i < w.size(); ++i) r.plan.stages[i].in_flight = w[i];
    const double seconds = formula_seconds(graph, devices, r.plan, options.objective);
    if (seconds == kInfinity) continue;
    best = std::min(best, seconds);
    found.push_back({seconds, std::move(r.plan), {}});
  }
}

// First of all, the plan of a sequential planner with a search of its own: where ours was cut short
// it shall not lose to it.
void add_sequential_plan(const graph::Graph& graph, const Devices& devices,
                         const PlannerOptions& options, std::vector<Candidate>& found) {
  BaselineResult r = run_baseline("pipedream", graph, devices, options);
  if (!r.ok()) return;
  r.plan.planner = "ductile";
  const double seconds = formula_seconds(graph, devices, r.plan, options.objective);
  const double figure = seconds < kInfinity ? seconds : r.plan.predicted_seconds;
  found.insert(found.begin(), {figure, std::move(r.plan), {}});
}

// Where memory is so scarce that the search, cut short, found nothing: a plan of fewest devices.
void find_any(const SearchSpace& space, const Fleet& fleet, const PlannerOptions& options,
              std::span<const int64_t> sizes, Clock::time_point deadline, double& best,
              std::vector<Candidate>& found) {
  Effort effort;
  effort.labels = std::min(options.max_labels, 8);
  const std::vector<PathFlow> flows(2, PathFlow::round_trip(space));
  for (int64_t b : sizes) {
    LabelSearch search(space, {&fleet, 1}, flows, options, effort, b, deadline);
    const Solution s = search.fewest_devices();
    if (!s.found) continue;
    Candidate c = to_candidate(space, s, b, options.batch, false);
    c.seconds = search.factor() * s.tau + s.rest;
    best = std::min(best, c.seconds);
    found.push_back(std::move(c));
    return;
  }
}

// What would make an infeasible request feasible.
void diagnose(const SearchSpace& space, const Fleet& fleet, const PlannerOptions& options,
              std::span<const int64_t> sizes, Clock::time_point deadline, Planned& out) {
  PlannerOptions quick = options;
  quick.objective = Objective::throughput;
  Effort effort;
  effort.labels = std::min(options.max_labels, 8);
  const std::vector<PathFlow> flows(2, PathFlow::round_trip(space));
  const auto fewest = [&](const Fleet& f, int most) {
    int least = 0;
    for (int64_t b : sizes) {
      Fleet limited = f;
      limited.devices = least > 0 ? least - 1 : most;
      if (limited.devices == 0) break;
      LabelSearch search(space, {&limited, 1}, flows, quick, effort, b, deadline);
      const Solution s = search.fewest_devices();
      if (s.found && (least == 0 || s.devices < least)) least = s.devices;
      if (search.timed_out()) break;
    }
    return least;
  };
  out.devices_needed = fewest(fleet, std::max(4 * fleet.devices, 64));
  double low = fleet.memory;
  double high = low;
  Fleet larger = fleet;
  for (int i = 0; i < 40; ++i) {
    high *= 2;
    larger.memory = high;
    if (fewest(larger, fleet.devices) > 0) break;
    low = high;
    if (i == 39 || Clock::now() > deadline) return;
  }
  while (high - low > 0.01 * high && Clock::now() < deadline) {
    larger.memory = (low + high) / 2;
    (fewest(larger, fleet.devices) > 0 ? high : low) = larger.memory;
  }
  out.memory_needed = high;
}

}  // namespace

std::string_view to_string(Objective objective) {
  return objective == Objective::time ? "time" : "throughput";
}

Objective objective_from(std::string_view name) {
  if (name == "time") return Objective::time;
  if (name == "throughput") return Objective::throughput;
  fail(ErrorCode::invalid_argument, "objective \"{}\" is unknown; time or throughput", name);
}

Planned make_plan(const graph::Graph& graph, const Devices& devices,
                  const PlannerOptions& options) {
  const double cpu = cpu_now();
  const Clock::time_point deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(std::clamp(options.time_limit, 1e-3, 1e6)));
  graph::check(graph);
  const std::vector<int64_t> sizes = sizes_to_try(options);
  const Fleet fleet = fleet_of(devices);

  Planned out;
  out.lower_bound = kInfinity;
  double best = kInfinity;
  std::vector<Candidate> found;
  data_parallel(graph, devices, options, sizes, best, found);
  // All devices as the least of them; and, where groups differ, each stage on one group.
  std::vector<std::vector<Fleet>> fleets = {{fleet}};
  if (std::vector<Fleet> groups = fleets_of(devices); groups.size() > 1) fleets.push_back(groups);
  std::vector<std::unique_ptr<IntervalSearch>> searches;
  const auto search_all = [&](const std::vector<SearchSpace>& spaces, const PlannerOptions& how,
                              int64_t steps) {
    std::vector<std::unique_ptr<IntervalSearch>> before = std::move(searches);
    searches.clear();
    out.lower_bound = kInfinity;
    out.timed_out = false;
    for (size_t i = 0; i < fleets.size(); ++i) {
      searches.push_back(
          std::make_unique<IntervalSearch>(spaces, fleets[i], how, sizes, steps, deadline));
      if (!before.empty()) searches.back()->guess_prices(*before[i]);
      out.lower_bound = std::min(out.lower_bound, searches.back()->run(best, found));
      out.timed_out = out.timed_out || searches.back()->timed_out();
      out.labels += searches.back()->labels();
    }
  };
  std::vector<SearchSpace> spaces(1), coarse;
  std::vector<std::vector<OpId>> orders;
  const size_t num_ops = graph.ops.size();
  size_t states = std::clamp<size_t>(static_cast<size_t>(std::sqrt(2.0 * options.max_transitions)),
                                     16, kMaxChainStates);
  if (SearchSpace::all_downsets(graph, options.max_transitions, spaces[0])) {
    out.space = fmt::format("all {} downsets", spaces[0].states().size());
    if (spaces[0].is_chain())
      orders.emplace_back(spaces[0].chain().begin(), spaces[0].chain().end());
  } else {
    spaces.clear();
    orders.push_back(depth_first_order(graph));
    out.space = "cuts of the operators branch by branch";
    if (std::vector<OpId> level = level_order(graph); level != orders[0]) {
      orders.push_back(std::move(level));
      out.space += ", and of those in step";
    }
  }
  PlannerOptions own = options;
  int64_t steps = kSteps;
  // Of large spaces first coarse ones, for something to compare with.
  if (!orders.empty() && std::min(num_ops + 1, states) >= kManyStates) {
    const auto thousands = static_cast<int64_t>(num_ops / 1000);
    steps = kManySteps * std::clamp<int64_t>(thousands, 1, 5);
    if (options.tolerance > 0) own.tolerance = std::max(kCoarseTolerance, options.tolerance);
    PlannerOptions quick = own;
    quick.max_labels = std::min(options.max_labels, kCoarseLabels);
    for (const std::vector<OpId>& order : orders) {
      coarse.push_back(SearchSpace::of_order(graph, order, kCoarseStates));
    }
    search_all(coarse, quick, kCoarseSteps);
  }
  const bool is_large = !coarse.empty();
  if (spaces.empty()) {
    // Of a very large graph fewer cuts, where making them all would take the time there is.
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    const double most = kSpaceShare * std::max(left, 0.0) /
                        (kSecondsPerCut * static_cast<double>(num_ops * orders.size()));
    if (most < static_cast<double>(states)) states = static_cast<size_t>(most);
    if (is_large && states < 2 * kCoarseStates) {
      spaces = std::move(coarse);
      out.timed_out = true;
    } else {
      for (const std::vector<OpId>& order : orders) {
        spaces.push_back(SearchSpace::of_order(graph, order, static_cast<int>(states)));
      }
    }
    if (spaces[0].states().size() <= num_ops) {
      out.space += fmt::format(", {} cuts each", spaces[0].states().size() - 2);
    }
  }
  if (!is_large || !coarse.empty()) search_all(spaces, own, steps);
  const bool judge_more = !is_large && options.evaluate && options.tolerance > 0;
  for (auto& search : searches) {
    if (judge_more && best < kInfinity) search->add_others(best, kNearlyAsGood, found);
  }
  if (found.empty())
    find_any(spaces[0], fleet, options, sizes,
             std::max(deadline, Clock::now() + std::chrono::seconds(2)), best, found);
  if (found.empty()) {
    diagnose(spaces[0], fleet, options, sizes, Clock::now() + std::chrono::seconds(2), out);
    out.lower_bound = 0;
    out.cpu_seconds = cpu_now() - cpu;
    return out;
  }
  add_chains(graph, spaces[0], fleet, devices, options, deadline, best, found);
  out.lower_bound = std::min(out.lower_bound, best);
  const auto by_seconds = [](const Candidate& a, const Candidate& b) {
    return a.seconds < b.seconds;
  };
  std::stable_sort(found.begin(), found.end(), by_seconds);
  if (options.evaluate) {
    // Some were found more than once.
    found.erase(std::unique(found.begin(), found.end(),
                            [](const Candidate& a, const Candidate& b) {
                              return a.seconds == b.seconds && a.plan == b.plan;
                            }),
                found.end());
    const double size = static_cast<double>(graph.ops.size() * graph.ops.size());
    if (found.front().seconds > kPoorGap * out.lower_bound && size * fleet.devices < 1e8) {
      add_sequential_plan(graph, devices, options, found);
    }
    judge(graph, devices, options, deadline, found, out);
    if (judge_more && out.simulated_seconds > kPoorGap * best) {
      // Messages hold up more than the formula knows: it is a poor guide, so more is judged.
      std::vector<Candidate> more;
      for (auto& search : searches) search->add_others(best, kLessGood, more);
      std::stable_sort(more.begin(), more.end(), by_seconds);
      if (size * fleet.devices < 1e8) add_sequential_plan(graph, devices, options, more);
      Planned other;
      judge(graph, devices, options, deadline, more, other);
      if (other.feasible && other.simulated_seconds < out.simulated_seconds) {
        out.simulated_seconds = other.simulated_seconds;
        out.formula_seconds = other.formula_seconds;
        out.plan = std::move(other.plan);
      }
    }
  } else {
    out.feasible = true;
    place_candidate(graph, devices, found.front());
    out.plan = found.front().plan;
    out.formula_seconds = found.front().seconds;
  }
  out.best_formula_seconds = best;
  out.gap = out.lower_bound > 0 ? best / out.lower_bound - 1 : 0;
  if (options.evaluate) {
    out.schedule_bound = out.simulated_seconds;
    for (auto& search : searches) {
      out.schedule_bound =
          std::min(out.schedule_bound, search->schedule_bound(out.simulated_seconds));
    }
    out.schedule_gap = out.simulated_seconds / out.schedule_bound - 1;
  }
  out.plan.predicted_seconds = out.formula_seconds;
  out.plan.lower_bound = out.lower_bound;
  out.plan.bound_reason = "least value of the planner's formula over " + out.space;
  if (options.evaluate) {
    out.plan.bound_reason += fmt::format(
        "; under any schedule at least {:.6g} s, the busiest stage and its gradient sum alone",
        out.schedule_bound);
  }
  out.cpu_seconds = cpu_now() - cpu;
  return out;
}

double formula_seconds(const graph::Graph& graph, const Devices& devices, const Plan& plan,
                       Objective objective) {
  const Fleet all = fleet_of(devices);
  const std::vector<Fleet> fleets = fleets_of(devices);
  const std::vector<int> fleet_of_group = fleet_numbers(devices);
  // The fleet that a stage was placed on, if it is one.
  const auto fleet_of_stage = [&](const Stage& stage) -> const Fleet& {
    if (stage.devices.empty() || fleets.size() == 1) return all;
    const auto number = [&](int device) { return fleet_of_group[devices.group_index(device)]; };
    for (int d : stage.devices) {
      if (number(d) != number(stage.devices[0])) return all;
    }
    return fleets[number(stage.devices[0])];
  };
  const StageGraph stages = stage_graph(graph, plan);
  const std::vector<double> inputs = graph::input_bytes(graph);
  const int n = static_cast<int>(plan.stages.size());
  std::vector<double> r(n, 0), s(n, 0), x(n, 0);
  double tau = 0;
  double rest = 0;
  int64_t micro_batch = 1;
  const std::vector<int64_t> in_flight = in_flight_samples(stages, plan);
  for (auto it = stages.order.rbegin(); it != stages.order.rend(); ++it) {
    const int i = *it;
    const Stage& stage = plan.stages[i];
    micro_batch = stage.micro_batch;
    const Shape shape{stage.replicas, stage.tensor, 0, stage.shard_optimizer};
    const StageSums sums = stage_sums(graph, stage.ops, stage.tensor, stage.recompute, inputs);
    const StageCost c = stage_cost(sums, boundary(graph, stage.ops), shape, graph,
                                   fleet_of_stage(stage), micro_batch, plan.batch, objective);
    if (c.most < in_flight[i] / micro_batch) return kInfinity;
    tau = std::max(tau, c.tau);
    x[i] = c.transfer;
    double after = 0;
    for (int e : stages.successors[i]) {
      const int j = stages.edges[e].to;
      r[i] = std::max(r[i], r[j] + 2 * x[j]);
      after = std::max(after, s[j] + x[j]);
    }
    r[i] += c.tau;
    s[i] = std::max(r[i] + c.sync, c.forward + after);
    rest = std::max(rest, s[i]);
  }
  if (objective == Objective::throughput) return static_cast<double>(plan.batch) * tau;
  return static_cast<double>(plan.batch / micro_batch - 1) * tau + rest;
}

}  // namespace ductile::plan
