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
#include "ductile/plan/sizes_impl.h"

namespace ductile::plan {

namespace {

constexpr double kPoorGap = 1.1;               // from here on the formula was a poor guide
constexpr double kNearlyAsGood = 1.1;          // of the best: plans worth judging
constexpr double kLessGood = 1.5;              // where the formula was a poor guide
constexpr double kOtherTolerance = 0.005;      // of the searches of large spaces beside the first
constexpr double kSearchShare = 0.8;           // of the time; the rest is the judge's
constexpr double kCutsWork = 3e7;              // operators that equal cuts look at
constexpr double kChainWork = 3e6;             // of a table of chains: transitions x devices
constexpr double kBaselineWork = 1e6;          // operators^2 x devices^2 x sizes
constexpr int64_t kPartSteps = 60'000'000;     // stages priced for parts of the machine, all in all
constexpr int64_t kFurtherSteps = 10'000'000;  // of these, for the further ones ...
constexpr int kMostFurther = 8;                // ... which are that many at most
constexpr double kTasksASecond = 1e6;          // that the judge carries out at least
// For sizes of micro-batches one by one: so much of the stages priced and the tasks carried out
// before, or so many.
constexpr double kSizesShare = 0.4;
constexpr int64_t kSizesSteps = 200'000;
constexpr int64_t kSizesTasks = 50'000;

double capacity_of(const Devices& devices) {
  double sum = 0;
  for (const DeviceGroup& group : devices.groups()) sum += group.size() * group.speed;
  return sum;
}

// To find what would help, beyond the time limit.
Clock::duration time_for_advice(double limit) {
  return std::chrono::milliseconds(static_cast<int>(250 * std::min(limit, 8.0)));
}

int64_t and_a_share(int64_t spent, int64_t least) {
  return spent + std::max(least, static_cast<int64_t>(kSizesShare * static_cast<double>(spent)));
}

// The least by the formula.
std::vector<Candidate>::iterator best_of(std::vector<Candidate>& found) {
  return std::ranges::min_element(found, {}, &Candidate::seconds);
}

// The operators as one chain.
struct Chain {
  graph::Graph graph;
  Spaces spaces;  // they point to the graph
};

// A request that is worked on as if it alone were made: that of the user, or a stricter one, on the
// graph or on its operators as one chain.
struct Quest {
  PlannerOptions options;
  const graph::Graph* graph = nullptr;
  const Spaces* spaces = nullptr;
  bool cuts = false, baselines = false;  // whether it differs from those before in these
  // What it took with all sizes of micro-batches together, and the size of its best plan by the
  // formula. Nothing here depends on what is known from elsewhere.
  int64_t steps = 0, tasks = 0, best_size = 0;
};

// A request being worked on. The best plan is sought on all devices and on parts of them; on each
// for the request and for stricter ones: by the other formulas, without splits, with one device
// per stage, as a chain, and each size of micro-batches alone. Each of these is worked on as if it
// alone were asked for. All go to the judge, so more freedom never gives a slower plan.
class Planning {
 public:
  // `whether`: only whether there is a plan is asked. The work is a beginning of that for the best.
  Planning(const graph::Graph& graph, const Devices& devices, const PlannerOptions& options,
           bool whether)
      : graph_(graph),
        devices_(devices),
        options_(options),
        whether_(whether),
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
    PlannerOptions any = options;
    any.micro_batches.clear(), any.replicas = 0;
    num_sizes_ = static_cast<double>(sizes_to_try(any).size());
    spaces_ = make_spaces(graph, options, after(kSearchShare));
    out_.space = spaces_.text;
    if (options.evaluate && (!spaces_.full[0].is_chain() || spaces_.orders.size() > 1)) {
      make_chains();
    }
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

  // The operators in a row, in each order; of a large space, which takes long, in the first.
  void make_chains() {
    const size_t num = spaces_.is_large() ? 1 : spaces_.orders.size();
    chains_.resize(num);
    for (size_t i = 0; i < num; ++i) {
      chains_[i].graph = in_a_row(graph_, spaces_.orders[i]);
      chains_[i].spaces = chain_spaces(chains_[i].graph, spaces_.orders[i]);
    }
  }

  void plan_by_formula() {
    main_ = std::make_unique<MachineSearch>(spaces_, devices_, options_, sizes_, deadline_);
    std::vector<Candidate> found;
    main_->run(found);
    if (found.empty())
      find_any(spaces_.full[0], island_of(devices_), options_, sizes_, after(1), found);
    if (found.empty()) return give_up();
    out_.feasible = true;
    if (whether_) return;
    Candidate& best = *best_of(found);
    if (best.islands.empty()) {
      place(graph_, devices_, best.plan);
    } else {
      place_on_islands(graph_, devices_, best.islands, best.plan);
    }
    out_.plan = best.plan;
    out_.formula_seconds = best.seconds;
    fill();
  }

  void plan_by_judge() {
    const std::vector<MachinePart> parts = machine_parts(devices_);
    const double work = least_work(spaces_.full[0], sizes_, options_.batch);
    int64_t further_steps = 0;
    int further = 0;
    for (size_t i = 0; i < (whether_ ? 1 : parts.size()); ++i) {
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
    if (!judge_.any() && sizes_.size() < all_sizes_.size()) plan_all_sizes();
    if (!judge_.any()) plan_any();
    if (!judge_.any()) return give_up();
    out_.feasible = true;
    if (whether_) return;
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

  // Some plan that fits: with the smallest micro-batches, of which least must fit, as long as they
  // are not more than can be carried out.
  void plan_any() {
    judge_.set_machine(whole_);
    std::span<const int64_t> sizes = all_sizes_;
    while (!judge_.any() && !sizes.empty()) {
      std::vector<Candidate> found;
      find_any(spaces_.full[0], island_of(devices_), options_, sizes, deadline_, found);
      if (found.empty()) return;
      const int64_t smallest = found[0].plan.stages[0].micro_batch;
      judge_.judge(found);
      sizes = sizes.last(static_cast<size_t>(
          std::ranges::count_if(sizes, [smallest](int64_t b) { return b > smallest; })));
    }
  }

  void give_up() {
    out_.lower_bound = 0;
    out_.left_out = std::max(out_.left_out, judge_.left_out());
    out_.timed_out = main_->timed_out();
    if (whether_) {  // what was not carried out may fit
      out_.timed_out = out_.timed_out || judge_.is_late();
      return;
    }
    diagnose(spaces_.full[0], island_of(devices_), options_, all_sizes_,
             std::max(deadline_, Clock::now() + time_for_advice(limit_)), out_);
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
    std::vector<Quest> quests = stricter_requests();
    for (size_t i = 0; i < quests.size(); ++i) {
      if (i > 0 && judge_.any() && is_past(after(kSearchShare))) break;
      Quest& quest = quests[i];
      if (quest.cuts) judge_cuts(quest, m, sizes_);
      auto search = std::make_unique<MachineSearch>(*quest.spaces, m.devices, quest.options, sizes_,
                                                    after(kSearchShare));
      search_one_way(*search, quest, m);
      if (!is_whole) part_steps_ += search->steps();
      if (is_whole && i == 0) main_ = std::move(search);
      if (whether_ && judge_.any()) return;
    }
    if (options_.objective == Objective::time) try_uniform_plans(island_of(m.devices), m.devices);
    for (const Quest& quest : quests) {
      if (quest.baselines) try_baselines(quest, m);
    }
    for (const Quest& quest : quests) plan_each_size(quest, m);
    judge_.set_other_graph(nullptr);
  }

  // The request, and where its formula asks for the least time of an iteration, by the others.
  std::vector<PlannerOptions> requests_by_formula() const {
    std::vector<PlannerOptions> requests = {options_};
    if (options_.objective != Objective::time) return requests;
    PlannerOptions other = options_;
    if (spaces_.is_large() && other.tolerance > 0) {
      other.tolerance = std::max(other.tolerance, kOtherTolerance);
    }
    other.objective = Objective::throughput;
    requests.push_back(other);
    other.objective = Objective::zero_bubble;
    if (options_.zero_bubble) requests.push_back(other);
    return requests;
  }

  // The request first.
  std::vector<Quest> stricter_requests() const {
    std::vector<PlannerOptions> requests = requests_by_formula();
    const auto also = [&requests](auto restrict) {
      for (size_t i = 0, n = requests.size(); i < n; ++i) {
        requests.push_back(requests[i]);
        restrict(requests.back());
      }
    };
    const bool is_large = spaces_.is_large();
    const bool splits =
        std::any_of(spaces_.full[0].variants().begin(), spaces_.full[0].variants().end(),
                    [](const Variant& v) { return v.tensor > 1; });
    if (splits && options_.split) also([](PlannerOptions& o) { o.split = false; });
    const auto one_each = [](PlannerOptions& o) { o.replicas = 1; };
    if (!options_.runnable && options_.replicas == 0 && !is_large) also(one_each);
    if (!options_.runnable && options_.replicas == 0 && is_large) {
      requests.push_back(options_);
      requests.back().split = false;
      one_each(requests.back());
    }
    std::vector<Quest> out;
    const auto add = [&](const PlannerOptions& o, const graph::Graph& graph, const Spaces& spaces) {
      const bool same = o.objective == options_.objective;
      out.push_back({o, &graph, &spaces, same, same && o.replicas == options_.replicas});
    };
    for (const PlannerOptions& o : requests) add(o, graph_, spaces_);
    if (is_large) requests.resize(1);
    if (is_large && options_.tolerance > 0) {
      requests[0].tolerance = std::max(options_.tolerance, kOtherTolerance);
    }
    for (const Chain& chain : chains_) {
      for (const PlannerOptions& o : requests) add(o, chain.graph, chain.spaces);
    }
    for (size_t i = 1; i < out.size() && is_large; ++i) out[i].cuts = out[i].baselines = false;
    return out;
  }

  // Each size of micro-batches by itself, as if it alone were asked for: above, all sizes share the
  // few plans that the judge carries out, so that one of them alone might give a faster plan. The
  // sizes near that of the best plan by the formula come first, and take a share of what all sizes
  // together took.
  void plan_each_size(const Quest& quest, const Machine& m) {
    if (sizes_.size() < 2 || spaces_.is_large() || quest.best_size == 0) return;
    const auto size = static_cast<double>(quest.best_size);
    std::vector<int64_t> order = sizes_;
    std::ranges::stable_sort(
        order, {}, [size](int64_t b) { return std::abs(std::log(static_cast<double>(b) / size)); });
    int64_t steps = and_a_share(quest.steps, kSizesSteps);
    const int64_t most_tasks = judge_.tasks() + and_a_share(quest.tasks, kSizesTasks);
    for (const int64_t b : order) {
      if (!may_win(b, m.devices)) continue;
      const std::vector<int64_t> one = {b};
      if (steps <= 0 || judge_.tasks() >= most_tasks || is_past(after(kSearchShare))) return;
      Quest alone = quest;
      alone.steps = 0;
      if (quest.cuts) judge_cuts(alone, m, one);
      MachineSearch search(*quest.spaces, m.devices, quest.options, one, after(kSearchShare));
      search.limit_steps(steps);
      search_one_way(search, alone, m);
      steps -= alone.steps;
    }
  }

  // From here on plans are judged for this quest.
  void begin(const Quest& quest) {
    judge_.set_other_graph(quest.graph == &graph_ ? nullptr : quest.graph);
  }

  void judge_cuts(const Quest& quest, const Machine& m, std::span<const int64_t> sizes) {
    begin(quest);
    std::vector<Candidate> cuts;
    add_equal_cuts(*quest.graph, quest.spaces->orders, island_of(m.devices), quest.options, sizes,
                   kCutsWork, after(kSearchShare), cuts);
    judge_.judge_all(cuts);
  }

  void search_one_way(MachineSearch& search, Quest& quest, const Machine& m) {
    begin(quest);
    const PlannerOptions& how = quest.options;
    const bool has_others = how.tolerance > 0 && !spaces_.is_large();
    std::vector<Candidate> found;
    search.run(found);
    if (has_others) search.add_others(kNearlyAsGood, found);
    quest.steps += search.all_steps();
    add_chains(quest, m.devices, found);
    if (!found.empty()) quest.best_size = best_of(found)->plan.stages[0].micro_batch;
    const int64_t before = judge_.wanted();
    const double least = judge_.judge(found);
    if (has_others && how.objective != Objective::throughput && least > kPoorGap * search.best()) {
      std::vector<Candidate> more;
      search.add_others(kLessGood, more);
      judge_.judge(more);
    }
    quest.tasks += judge_.wanted() - before;
    labels_ += search.labels();
  }

  // The chains that a sequential planner would find, for the micro-batch sizes of the best plans.
  void add_chains(const Quest& quest, const Devices& devices, std::vector<Candidate>& found) {
    const SearchSpace& space = quest.spaces->full[0];
    const Island island = island_of(devices);
    const double size = static_cast<double>(space.transitions().size()) * island.devices;
    if (!space.is_chain() || size > kChainWork || found.empty()) return;
    if (spaces_.is_large() && quest.graph != &graph_) return;
    std::stable_sort(found.begin(), found.end(),
                     [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
    std::vector<int64_t> tried;
    for (size_t i = 0; i < found.size() && tried.size() < 2; ++i) {
      const int64_t b = found[i].plan.stages[0].micro_batch;
      if (std::find(tried.begin(), tried.end(), b) == tried.end()) tried.push_back(b);
    }
    for (int64_t b : tried) {
      SequentialResult r =
          sequential_search(space, island, quest.options, b, false, after(kSearchShare));
      if (!r.found) continue;
      r.plan.planner = "ductile";
      const std::vector<int64_t> w = in_flight_samples(stage_graph(*quest.graph, r.plan), r.plan);
      for (size_t i = 0; i < w.size(); ++i) r.plan.stages[i].in_flight = w[i];
      const double seconds =
          formula_seconds(*quest.graph, devices, r.plan, quest.options.objective);
      if (seconds < kInfinity) found.push_back({seconds, std::move(r.plan), {}});
    }
  }

  // The largest first; without those that could not be faster with all devices busy all the time.
  std::vector<int64_t> sizes_worth_trying(const Devices& devices) const {
    std::vector<int64_t> sizes(sizes_.rbegin(), sizes_.rend());
    std::erase_if(sizes, [&](int64_t b) { return !may_win(b, devices); });
    return sizes;
  }
  bool may_win(int64_t size, const Devices& devices) const {
    const double work = least_work(spaces_.full[0], {&size, 1}, options_.batch);
    return work / capacity_of(devices) < judge_.seconds();
  }

  // Equal degrees everywhere, several parts of the chain on a device: what the search, which gives
  // each stage devices of its own, does not know.
  void try_uniform_plans(const Island& island, const Devices& devices) {
    const std::vector<int64_t> sizes = sizes_worth_trying(devices);
    for (const std::string_view kind : {"interleaved", "zb-h1", "zb-v"}) {
      if (kind != "interleaved" && !options_.zero_bubble) continue;
      for_uniform_shapes(kind, graph_, island, options_, [&](const UniformShape& shape) {
        for (const int64_t b : sizes) {
          if (judge_.is_late()) return;
          Plan plan = uniform_plan(kind, graph_, shape, options_, b);
          if (plan.stages.empty() || !judge_.may_be_best(plan)) continue;
          plan.planner = "ductile";
          judge_.consider_as(plan, chained(graph_, plan));
        }
      });
    }
  }

  // The rules of others, where they take no time to speak of; those that search, with each size of
  // micro-batches.
  void try_baselines(const Quest& quest, const Machine& m) {
    const double n = static_cast<double>(quest.graph->ops.size());
    const auto d = static_cast<double>(m.devices.size());
    if (n * n * d * d * num_sizes_ > kBaselineWork) return;
    begin(quest);
    for (const Baseline& b : baselines()) {
      const bool searches = b.name == "graphpipe" || b.name == "pipedream" || b.name == "piper";
      // Without splits only Piper's differs.
      if (quest.options.split != options_.split && b.name != "piper") continue;
      const std::vector<int64_t> sizes = sizes_worth_trying(m.devices);
      if (!searches && !sizes.empty()) try_baseline(b.name, quest, m, sizes);
      for (size_t i = 0; searches && i < sizes.size(); ++i) {
        try_baseline(b.name, quest, m, {sizes[i]});
      }
    }
  }

  void try_baseline(std::string_view name, const Quest& quest, const Machine& m,
                    std::vector<int64_t> sizes) {
    PlannerOptions how = quest.options;
    how.micro_batches = std::move(sizes);  // each of their plans is carried out
    how.time_limit = std::chrono::duration<double>(after(kSearchShare) - Clock::now()).count();
    if (how.time_limit <= 0) return;
    BaselineResult r = run_baseline(name, *quest.graph, m.devices, how);
    if (!r.ok()) return;
    r.plan.planner = "ductile";
    judge_.consider({r.plan.predicted_seconds, r.plan, {}});
    judge_.consider_as(r.plan, chained(*quest.graph, r.plan));
  }

  const graph::Graph& graph_;
  const Devices& devices_;
  const PlannerOptions& options_;
  bool whether_;
  Clock::time_point start_;
  double limit_;
  Clock::time_point deadline_;
  int64_t most_tasks_;
  std::vector<int64_t> all_sizes_, sizes_;  // these: those of which plans can be compared in time
  double num_sizes_ = 0;                    // that may be asked for
  Spaces spaces_;
  std::vector<Chain> chains_;            // none where `spaces_` are a chain
  std::unique_ptr<MachineSearch> main_;  // all devices, by the formula asked for
  std::shared_ptr<const Machine> whole_;
  Judge judge_;
  Planned out_;
  int64_t labels_ = 0;
  int64_t part_steps_ = 0;  // of the searches of parts of the machine
};

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
                      const PlannerOptions& options, bool whether) {
  const auto start = Clock::now();
  std::vector<int> numbers = equal_replicas(devices.size(), options);
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
    Planned found = Planning(graph, devices, one, whether).run();
    out = i == 0 ? std::move(found) : better_of(std::move(out), std::move(found));
    if (whether && out.feasible) return out;
  }
  if (!out.feasible) return out;
  out.gap = out.lower_bound > 0 ? out.best_formula_seconds / out.lower_bound - 1 : 0;
  if (out.schedule_bound > 0) out.schedule_gap = out.simulated_seconds / out.schedule_bound - 1;
  out.plan.lower_bound = out.lower_bound;
  return out;
}

Planned plan_as_asked(const graph::Graph& graph, const Devices& devices,
                      const PlannerOptions& options, bool whether) {
  return options.runnable && options.replicas == 0
             ? plan_runnable(graph, devices, options, whether)
             : Planning(graph, devices, options, whether).run();
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
  Planned out = plan_as_asked(graph, devices, asked, false);
  if (!out.feasible && !out.timed_out) {
    const Clock::time_point deadline = Clock::now() + time_for_advice(options.time_limit);
    const auto fits = [&](double memory) -> std::optional<bool> {
      PlannerOptions quick = asked;
      quick.time_limit = std::chrono::duration<double>(deadline - Clock::now()).count();
      if (quick.time_limit <= 0) return std::nullopt;
      const Devices more = with_memory(devices, memory);
      const Planned found = plan_as_asked(graph, more, quick, true);
      if (found.feasible) return true;
      return found.timed_out ? std::nullopt : std::optional(false);
    };
    settle_memory(devices, fits, out);
  }
  out.cpu_seconds = cpu_now() - cpu;
  return out;
}

}  // namespace ductile::plan
