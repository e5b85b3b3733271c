#include "ductile/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "ductile/base/error.h"
#include "ductile/plan/advice_impl.h"
#include "ductile/plan/baselines/baselines.h"
#include "ductile/plan/baselines/equal_cuts_impl.h"
#include "ductile/plan/baselines/sequential_search_impl.h"
#include "ductile/plan/baselines/uniform_plans_impl.h"
#include "ductile/plan/cpu_clock_impl.h"
#include "ductile/plan/infinity_impl.h"
#include "ductile/plan/judge_impl.h"
#include "ductile/plan/machine_search_impl.h"
#include "ductile/plan/schedule.h"

namespace ductile::plan {

namespace {

constexpr double kPoorGap = 1.1;              // from here on the formula was a poor guide
constexpr double kNearlyAsGood = 1.1;         // of the best: plans worth judging
constexpr double kLessGood = 1.5;             // where the formula was a poor guide
constexpr double kOtherTolerance = 0.005;     // of the searches beside the one asked for
constexpr double kSearchShare = 0.8;          // of the time; the rest is the judge's
constexpr double kCutsWork = 3e7;             // operators that equal cuts look at
constexpr double kChainWork = 3e6;            // of a table of chains: transitions x devices
constexpr double kBaselineWork = 1e6;         // operators^2 x devices^2 x sizes
constexpr int64_t kPartSteps = 30'000'000;    // stages priced for parts of the machine, all in all
constexpr int64_t kFurtherSteps = 5'000'000;  // of these, for the further ones ...
constexpr int kMostFurther = 8;               // ... which are that many at most
constexpr double kTasksASecond = 1e6;         // that the judge carries out at least
// For sizes of micro-batches one by one: so much of the stages priced and the tasks carried out
// before, or so many.
constexpr double kSizesShare = 0.4;
constexpr int64_t kSizesSteps = 200'000;
constexpr int64_t kSizesTasks = 50'000;

std::vector<int64_t> sizes_to_try(const PlannerOptions& options) {
  if (options.batch < 1) {
    fail(ErrorCode::invalid_argument, "batch: {} samples; at least 1", options.batch);
  }
  if (options.replicas > 0 && options.batch % options.replicas != 0) {
    fail(ErrorCode::invalid_argument, "replicas: {} do not divide the batch of {}",
         options.replicas, options.batch);
  }
  std::vector<int64_t> sizes = options.micro_batches;
  for (int64_t b : sizes) {
    if (b < 1 || options.batch % b != 0) {
      fail(ErrorCode::invalid_argument, "micro_batches: {} does not divide the batch of {}", b,
           options.batch);
    }
    if (options.replicas > 0 && b % options.replicas != 0) {
      fail(
          ErrorCode::invalid_argument,
          "replicas: {} do not divide a micro-batch of {} samples, of which each has an equal part",
          options.replicas, b);
    }
  }
  if (sizes.empty()) {
    for (int64_t b = 1; b * b <= options.batch; ++b) {
      if (options.batch % b != 0) continue;
      sizes.push_back(b);
      if (b * b != options.batch) sizes.push_back(options.batch / b);
    }
  }
  if (options.replicas > 0)
    std::erase_if(sizes, [&](int64_t b) { return b % options.replicas != 0; });
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// Sizes whose iteration alone the judge could not carry out in the time there is are left out, as
// long as others remain.
std::vector<int64_t> sizes_in_time(std::vector<int64_t> sizes, int64_t batch, int64_t most_tasks) {
  std::vector<int64_t> few;
  for (int64_t b : sizes) {
    if (2 * (batch / b) <= most_tasks / 8) few.push_back(b);
  }
  return few.empty() ? std::vector<int64_t>{sizes.back()} : few;
}

// The work of an iteration, each operator where it costs least: seconds of a device of speed 1.
double least_work(const SearchSpace& space, std::span<const int64_t> sizes, int64_t batch) {
  double least = kInfinity;
  for (int64_t b : sizes) {
    const double samples = static_cast<double>(b);
    double work = 0;
    for (OpId v = 0; v < static_cast<OpId>(space.graph().ops.size()); ++v) {
      double own = kInfinity;
      for (int k = 0; k < static_cast<int>(space.variants().size()); ++k) {
        const graph::OpCost& c = space.op_cost(v, k);
        own = std::min(own, space.variants()[k].tensor *
                                (c.forward.at(samples) + c.backward_input.at(samples) +
                                 c.backward_weight.at(samples)));
      }
      work += own;
    }
    least = std::min(least, work * static_cast<double>(batch / b));
  }
  return least * (1 - 1e-6);
}

double capacity_of(const Devices& devices) {
  double sum = 0;
  for (const DeviceGroup& group : devices.groups()) sum += group.size() * group.speed;
  return sum;
}

int64_t and_a_share(int64_t spent, int64_t least) {
  return spent + std::max(least, static_cast<int64_t>(kSizesShare * static_cast<double>(spent)));
}

// The operators as one chain: an edge of no bytes from each to the next.
graph::Graph in_a_row(const graph::Graph& graph, const std::vector<OpId>& order) {
  graph::Graph out = graph;
  int output = 0;
  for (const graph::Edge& e : graph.edges) output = std::max(output, e.output + 1);
  for (size_t i = 1; i < order.size(); ++i) {
    out.edges.push_back({order[i - 1], order[i], output, 0});
  }
  return out;
}

// The least by the formula.
std::vector<Candidate>::iterator best_of(std::vector<Candidate>& found) {
  return std::ranges::min_element(found, {}, &Candidate::seconds);
}

// A request being worked on. The best plan is sought on all devices and on parts of them; on each
// by the formula asked for, by the other, without splits, with one device per stage, as a chain,
// among equal cuts and by the rules of others. All go to the judge, so more freedom never
// gives a slower plan.
class Planning {
 public:
  Planning(const graph::Graph& graph, const Devices& devices, const PlannerOptions& options)
      : graph_(graph),
        devices_(devices),
        options_(options),
        start_(Clock::now()),
        limit_(std::clamp(options.time_limit, 1e-3, 1e6)),
        deadline_(after(1)),
        most_tasks_(static_cast<int64_t>(kTasksASecond * limit_)),
        all_sizes_(sizes_to_try(options)),
        sizes_(all_sizes_),
        judge_(graph, options, most_tasks_, deadline_) {
    if (options.evaluate && options.micro_batches.empty()) {
      std::erase_if(all_sizes_, [&](int64_t b) {
        if (options.batch / b <= kMaxTasks) return false;
        out_.left_out = std::max(out_.left_out, b);
        return true;
      });
      sizes_ = sizes_in_time(all_sizes_, options.batch, most_tasks_);
    }
    spaces_ = make_spaces(graph, options, after(kSearchShare));
    out_.space = spaces_.text;
  }

  Planned run() {
    if (options_.evaluate) {
      plan_by_judge();
    } else {
      plan_by_formula();
    }
    return std::move(out_);
  }

 private:
  Clock::time_point after(double share) const {
    return start_ + std::chrono::duration_cast<Clock::duration>(
                        std::chrono::duration<double>(share * limit_));
  }

  void plan_by_formula() {
    main_ = std::make_unique<MachineSearch>(spaces_, devices_, options_, sizes_, deadline_);
    std::vector<Candidate> found;
    main_->run(found);
    if (found.empty())
      find_any(spaces_.full[0], island_of(devices_), options_, sizes_, after(1), found);
    if (found.empty()) return give_up();
    Candidate& best = *best_of(found);
    if (best.islands.empty()) {
      place(graph_, devices_, best.plan);
    } else {
      place_on_islands(graph_, devices_, best.islands, best.plan);
    }
    out_.feasible = true;
    out_.plan = best.plan;
    out_.formula_seconds = best.seconds;
    fill();
  }

  void plan_by_judge() {
    const std::vector<MachinePart> parts = machine_parts(devices_);
    const double work = least_work(spaces_.full[0], sizes_, options_.batch);
    int64_t further_steps = 0;
    int further = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const MachinePart& part = parts[i];
      // A part that could not be faster with all of its devices busy all the time is left out.
      if (i > 0 && work / part.capacity >= judge_.seconds()) continue;
      if (i > 0 && (part_steps_ > kPartSteps || is_past(after(kSearchShare)))) break;
      if (part.further && (!judge_.any() || further_steps > kFurtherSteps)) break;
      if (part.further && ++further > kMostFurther) break;
      const int64_t before = part_steps_;
      plan_machine(std::make_shared<const Machine>(machine_of(devices_, part)), i == 0);
      if (part.further) further_steps += part_steps_ - before;
    }
    plan_each_size();
    if (!judge_.any() && sizes_.size() < all_sizes_.size()) plan_all_sizes();
    if (!judge_.any()) {
      judge_.set_machine(whole_);
      std::vector<Candidate> found;
      find_any(spaces_.full[0], island_of(devices_), options_, all_sizes_, deadline_, found);
      judge_.judge(found);
    }
    if (!judge_.any()) return give_up();
    out_.feasible = true;
    out_.plan = judge_.plan();
    out_.simulated_seconds = judge_.seconds();
    out_.formula_seconds =
        formula_seconds(graph_, judge_.devices(), judge_.local_plan(), options_.objective);
    if (out_.formula_seconds == kInfinity) out_.formula_seconds = judge_.seconds();
    out_.schedule_bound = main_->schedule_bound(out_.simulated_seconds);
    if (out_.schedule_bound > 0) {
      out_.schedule_gap = out_.simulated_seconds / out_.schedule_bound - 1;
    }
    fill();
  }

  // Where no size fits of which the judge can compare plans in the time there is: the best plan of
  // all by the formula, which is carried out once.
  void plan_all_sizes() {
    judge_.set_machine(whole_);
    main_ = std::make_unique<MachineSearch>(spaces_, whole_->devices, options_, all_sizes_,
                                            after(kSearchShare));
    std::vector<Candidate> found;
    main_->run(found);
    labels_ += main_->labels();
    if (!found.empty()) judge_.consider(*best_of(found));
  }

  void give_up() {
    out_.lower_bound = 0;
    out_.left_out = std::max(out_.left_out, judge_.left_out());
    out_.timed_out = main_->timed_out();
    diagnose(spaces_.full[0], island_of(devices_), options_, all_sizes_,
             std::max(deadline_, Clock::now() + std::chrono::milliseconds(
                                                    static_cast<int>(250 * std::min(limit_, 8.0)))),
             out_);
  }

  void fill() {
    out_.best_formula_seconds = std::min(main_->best(), out_.formula_seconds);
    out_.lower_bound = std::min(main_->lower_bound(), out_.best_formula_seconds);
    out_.gap = out_.lower_bound > 0 ? out_.best_formula_seconds / out_.lower_bound - 1 : 0;
    out_.timed_out = main_->timed_out();
    out_.labels = labels_ + (options_.evaluate ? 0 : main_->labels());
    out_.plan.predicted_seconds = out_.formula_seconds;
    out_.plan.lower_bound = out_.lower_bound;
    out_.plan.bound_reason = "least value of the planner's formula over " + out_.space;
    if (!options_.evaluate) return;
    out_.plan.bound_reason +=
        fmt::format("; under any schedule at least {:.6g} s", out_.schedule_bound);
  }

  // All there is to try on one machine.
  void plan_machine(std::shared_ptr<const Machine> machine, bool is_whole) {
    const Machine& m = *machine;
    judge_.set_machine(machine);
    if (is_whole) whole_ = machine;
    const Island island = island_of(m.devices);
    std::vector<Candidate> cuts;
    add_equal_cuts(graph_, spaces_.orders, island, options_, sizes_, kCutsWork, after(kSearchShare),
                   cuts);
    judge_.judge_all(cuts);
    const std::vector<PlannerOptions> ways = ways_to_search();
    for (size_t i = 0; i < ways.size(); ++i) {
      if (i > 0 && judge_.any() && is_past(after(kSearchShare))) break;
      auto search =
          std::make_unique<MachineSearch>(spaces_, m.devices, ways[i], sizes_, after(kSearchShare));
      search_one_way(*search, ways[i], island, m.devices, is_whole);
      if (is_whole && i == 0) main_ = std::move(search);
    }
    if (!spaces_.full[0].is_chain() || spaces_.orders.size() > 1) search_chain(m, is_whole);
    if (options_.objective == Objective::time) try_uniform_plans(island);
    try_baselines(m.devices, island);
  }

  // By the formula asked for first.
  std::vector<PlannerOptions> ways_to_search() const {
    std::vector<PlannerOptions> ways = {options_};
    if (options_.objective == Objective::time) {
      ways.push_back(options_);
      ways.back().objective = Objective::throughput;
      if (options_.tolerance > 0) {
        ways.back().tolerance = std::max(options_.tolerance, kOtherTolerance);
      }
    }
    const bool splits =
        std::any_of(spaces_.full[0].variants().begin(), spaces_.full[0].variants().end(),
                    [](const Variant& v) { return v.tensor > 1; });
    for (size_t i = 0, n = ways.size(); i < n && splits && options_.split; ++i) {
      ways.push_back(ways[i]);
      ways.back().split = false;
    }
    if (!options_.runnable && options_.replicas <= 1) {
      ways.push_back(options_);
      ways.back().split = ways.back().shard_optimizer = false;
      ways.back().replicas = 1;
    }
    return ways;
  }

  // Each size of micro-batches by itself, as if it alone were asked for: above, all sizes share the
  // few plans that the judge carries out, so that one of them alone might give a faster plan. The
  // sizes near that of the best plan come first, on its devices and on all; and a search and a
  // judge that took long take a share of that more.
  void plan_each_size() {
    if (!judge_.any() || sizes_.size() < 2 || spaces_.is_large()) return;
    std::vector<std::shared_ptr<const Machine>> machines = {judge_.machine()};
    if (whole_ != machines.front()) machines.push_back(whole_);
    const auto size = static_cast<double>(judge_.local_plan().stages.front().micro_batch);
    std::vector<int64_t> order = sizes_;
    std::ranges::stable_sort(
        order, {}, [size](int64_t b) { return std::abs(std::log(static_cast<double>(b) / size)); });
    const int64_t most_steps = and_a_share(steps_, kSizesSteps);
    const int64_t most_tasks = and_a_share(judge_.tasks(), kSizesTasks);
    const std::vector<PlannerOptions> ways = ways_to_search();
    for (const std::shared_ptr<const Machine>& machine : machines) {
      judge_.set_machine(machine);
      const Devices& devices = machine->devices;
      for (const int64_t b : order) {
        const std::vector<int64_t> one = {b};
        const double work = least_work(spaces_.full[0], one, options_.batch);
        if (work / capacity_of(devices) >= judge_.seconds()) continue;
        for (const PlannerOptions& way : ways) {
          if (steps_ >= most_steps || judge_.tasks() >= most_tasks) return;
          if (is_past(after(kSearchShare))) return;
          MachineSearch search(spaces_, devices, way, one, after(kSearchShare));
          search.limit_steps(most_steps - steps_);
          search_one_way(search, way, island_of(devices), devices, true);
        }
      }
    }
  }

  void search_one_way(MachineSearch& search, const PlannerOptions& how, const Island& island,
                      const Devices& devices, bool is_whole) {
    std::vector<Candidate> found;
    search.run(found);
    if (how.tolerance > 0) search.add_others(kNearlyAsGood, found);
    add_chains(how, island, devices, found);
    const double least = judge_.judge(found);
    if (how.tolerance > 0 && how.objective == Objective::time && least > kPoorGap * search.best()) {
      std::vector<Candidate> more;
      search.add_others(kLessGood, more);
      judge_.judge(more);
    }
    labels_ += search.labels();
    steps_ += search.all_steps();
    if (!is_whole) part_steps_ += search.steps();
  }

  // The chains that a sequential planner would find, for the micro-batch sizes of the best plans.
  void add_chains(const PlannerOptions& how, const Island& island, const Devices& devices,
                  std::vector<Candidate>& found) {
    const SearchSpace& space = spaces_.full[0];
    const double size = static_cast<double>(space.transitions().size()) * island.devices;
    if (!space.is_chain() || size > kChainWork || found.empty()) return;
    std::stable_sort(found.begin(), found.end(),
                     [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
    std::vector<int64_t> tried;
    for (size_t i = 0; i < found.size() && tried.size() < 2; ++i) {
      const int64_t b = found[i].plan.stages[0].micro_batch;
      if (std::find(tried.begin(), tried.end(), b) == tried.end()) tried.push_back(b);
    }
    for (int64_t b : tried) {
      SequentialResult r = sequential_search(space, island, how, b, false, after(kSearchShare));
      if (!r.found) continue;
      r.plan.planner = "ductile";
      const std::vector<int64_t> w = in_flight_samples(stage_graph(graph_, r.plan), r.plan);
      for (size_t i = 0; i < w.size(); ++i) r.plan.stages[i].in_flight = w[i];
      const double seconds = formula_seconds(graph_, devices, r.plan, how.objective);
      if (seconds < kInfinity) found.push_back({seconds, std::move(r.plan), {}});
    }
  }

  // As if the model were a chain: fewer plans, of which the formula knows more.
  void search_chain(const Machine& m, bool is_whole) {
    if (is_past(after(kSearchShare))) return;
    if (!chain_graph_) {
      chain_graph_ = std::make_unique<graph::Graph>(in_a_row(graph_, spaces_.orders[0]));
      chain_ = chain_spaces(*chain_graph_, spaces_.orders[0]);
    }
    PlannerOptions how = options_;
    if (how.tolerance > 0) how.tolerance = std::max(how.tolerance, kOtherTolerance);
    MachineSearch search(chain_, m.devices, how, sizes_, after(kSearchShare));
    std::vector<Candidate> found;
    search.run(found);
    std::stable_sort(found.begin(), found.end(),
                     [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
    if (found.size() > 4) found.resize(4);
    for (const Candidate& c : found) {
      if (c.islands.empty()) judge_.consider_as(c.plan, *chain_graph_);
    }
    judge_.judge(found);
    labels_ += search.labels();
    if (!is_whole) part_steps_ += search.steps();
  }

  // Equal degrees everywhere, several parts of the chain on a device: what the search, which gives
  // each stage devices of its own, does not know.
  void try_uniform_plans(const Island& island) {
    for (const std::string_view kind : {"interleaved", "zb-h1", "zb-v"}) {
      if (kind != "interleaved" && !options_.zero_bubble) continue;
      for_uniform_shapes(kind, graph_, island, options_, [&](const UniformShape& shape) {
        for (auto b = sizes_.rbegin(); b != sizes_.rend(); ++b) {
          if (judge_.is_late()) return;
          Plan plan = uniform_plan(kind, graph_, shape, options_, *b);
          if (plan.stages.empty() || !judge_.may_be_best(plan)) continue;
          plan.planner = "ductile";
          judge_.consider_as(plan, chained(graph_, plan));
        }
      });
    }
  }

  // The rules of others, where they take no time to speak of.
  void try_baselines(const Devices& devices, const Island& island) {
    const double n = static_cast<double>(graph_.ops.size());
    const double work =
        n * n * island.devices * island.devices * static_cast<double>(sizes_.size());
    if (work > kBaselineWork) return;
    PlannerOptions how = options_;
    how.micro_batches = sizes_;  // each of their plans is carried out
    for (const Baseline& b : baselines()) {
      how.time_limit = std::chrono::duration<double>(after(kSearchShare) - Clock::now()).count();
      if (how.time_limit <= 0) return;
      BaselineResult r = run_baseline(b.name, graph_, devices, how);
      if (!r.ok()) continue;
      r.plan.planner = "ductile";
      judge_.consider({r.plan.predicted_seconds, r.plan, {}});
      judge_.consider_as(r.plan, chained(graph_, r.plan));
    }
  }

  const graph::Graph& graph_;
  const Devices& devices_;
  const PlannerOptions& options_;
  Clock::time_point start_;
  double limit_;
  Clock::time_point deadline_;
  int64_t most_tasks_;
  std::vector<int64_t> all_sizes_, sizes_;  // these: those of which plans can be compared in time
  Spaces spaces_, chain_;
  std::unique_ptr<graph::Graph> chain_graph_;
  std::unique_ptr<MachineSearch> main_;  // all devices, by the formula asked for
  std::shared_ptr<const Machine> whole_;
  Judge judge_;
  Planned out_;
  int64_t labels_ = 0;
  int64_t steps_ = 0, part_steps_ = 0;  // of the searches of `spaces_`; of those of parts
};

// The numbers of replicas that all stages may have, where they have equal ones.
std::vector<int> equal_replicas(const Devices& devices, const PlannerOptions& options) {
  std::vector<int> out;
  const std::vector<int64_t> sizes = sizes_to_try(options);
  for (int r = 1; r <= devices.size(); ++r) {
    if (std::ranges::any_of(sizes, [r](int64_t b) { return b % r == 0; })) out.push_back(r);
  }
  return out;
}

double seconds_of(const Planned& planned) {
  if (!planned.feasible) return kInfinity;
  return planned.simulated_seconds > 0 ? planned.simulated_seconds : planned.formula_seconds;
}

// The least of two numbers of which 0 stands for none.
template <class Number>
Number least_known(Number a, Number b) {
  return a == 0 || (b != 0 && b < a) ? b : a;
}

// The plan of two spaces, of which each was searched by itself.
Planned better_of(Planned a, Planned b) {
  Planned out = seconds_of(b) < seconds_of(a) ? b : a;
  out.timed_out = a.timed_out || b.timed_out;
  out.labels = a.labels + b.labels;
  out.memory_needed = least_known(a.memory_needed, b.memory_needed);
  out.devices_needed = least_known(a.devices_needed, b.devices_needed);
  out.left_out = std::max(a.left_out, b.left_out);
  if (a.feasible && b.feasible) {
    out.best_formula_seconds = std::min(a.best_formula_seconds, b.best_formula_seconds);
    out.lower_bound = std::min(a.lower_bound, b.lower_bound);
    out.schedule_bound = std::min(a.schedule_bound, b.schedule_bound);
  } else if ((a.feasible ? b : a).timed_out) {  // nobody knows what it holds
    out.lower_bound = out.schedule_bound = 0;
  }  // else it is empty, and bounds nothing
  return out;
}

// Plans that can be run: of those with each equal number of replicas, as if they alone were asked
// for, and of those whose stages have any.
Planned plan_runnable(const graph::Graph& graph, const Devices& devices,
                      const PlannerOptions& options) {
  const auto start = Clock::now();
  std::vector<int> numbers = equal_replicas(devices, options);
  numbers.push_back(0);
  Planned out;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double spent = std::chrono::duration<double>(Clock::now() - start).count();
    if (out.feasible && spent >= options.time_limit) {  // of the others nothing is known
      out.timed_out = true;
      out.lower_bound = out.schedule_bound = out.schedule_gap = 0;
      break;
    }
    PlannerOptions one = options;
    one.replicas = numbers[i];
    if (one.replicas > 0) {  // of the sizes that were named, those that they divide
      std::erase_if(one.micro_batches, [&one](int64_t b) { return b % one.replicas != 0; });
    }
    one.time_limit =
        std::max(1e-3, (options.time_limit - spent) / static_cast<double>(numbers.size() - i));
    Planned found = Planning(graph, devices, one).run();
    out = i == 0 ? std::move(found) : better_of(std::move(out), std::move(found));
  }
  if (!out.feasible) return out;
  out.gap = out.lower_bound > 0 ? out.best_formula_seconds / out.lower_bound - 1 : 0;
  if (out.schedule_bound > 0) out.schedule_gap = out.simulated_seconds / out.schedule_bound - 1;
  out.plan.lower_bound = out.lower_bound;
  return out;
}

}  // namespace

Planned make_plan(const graph::Graph& graph, const Devices& devices,
                  const PlannerOptions& options) {
  const double cpu = cpu_now();
  if (!(options.time_limit > 0)) {
    fail(ErrorCode::invalid_argument, "time_limit is {}, it must be above 0", options.time_limit);
  }
  graph::check(graph);
  PlannerOptions asked = options;
  if (asked.runnable) asked.split = asked.shard_optimizer = false;
  Planned out = asked.runnable && asked.replicas == 0 ? plan_runnable(graph, devices, asked)
                                                      : Planning(graph, devices, asked).run();
  out.cpu_seconds = cpu_now() - cpu;
  return out;
}

}  // namespace ductile::plan
