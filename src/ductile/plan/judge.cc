#include <algorithm>
#include <set>

#include "ductile/plan/infinity_impl.h"
#include "ductile/plan/judge_impl.h"
#include "ductile/plan/schedule.h"

namespace ductile::plan {

namespace {

constexpr size_t kJudged = 16;  // plans that are compared, and their tasks in all
constexpr int64_t kJudgedTasks = 15'000;
constexpr int64_t kAllTasks = 300'000;   // the same where all are
constexpr int64_t kMostTasks = 100'000;  // of a plan that is judged in more than one order
constexpr int64_t kOrders = 14;          // tried for a plan, all in all

int64_t tasks_of(const Plan& plan) {
  int64_t tasks = 0;
  for (const Stage& stage : plan.stages) tasks += 2 * (plan.batch / stage.micro_batch);
  return tasks;
}

// More samples in flight than the rule asks for shortens waits; as many as memory allows.
Plan with_room_used(const PlanCosts& costs, Plan plan) {
  const bool split = plan.schedule == ScheduleKind::zero_bubble;
  plan.orders.clear();  // of the room there was
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    Stage& stage = plan.stages[i];
    const double room = costs.memory_limit[i] - costs.fixed_memory[i];
    double each = costs.held_per_sample[i] * static_cast<double>(stage.micro_batch);
    if (split) each = std::max(each, costs.memory[i].waiting);
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

// No schedule of the plan takes less: each stage begins when its first inputs can be there, and
// from its last backward task the gradients go back to the sources.
double least_seconds(const Plan& plan, const PlanCosts& costs) {
  const StageGraph& graph = costs.stages;
  const auto message = [&](int edge, int sender) {
    return costs.transfer_fixed[edge] +
           costs.transfer_per_sample[edge] * static_cast<double>(plan.stages[sender].micro_batch);
  };
  std::vector<double> begin(plan.stages.size(), 0), after(plan.stages.size(), 0);
  double least = 0;
  for (const int i : graph.order) {
    const StageTimes& own = costs.times[i];
    after[i] = own.backward_weight + own.sync;
    for (const int e : graph.predecessors[i]) {
      const int from = graph.edges[e].from;
      const StageTimes& before = costs.times[from];
      begin[i] = std::max(begin[i], begin[from] + before.forward + message(e, from));
      after[i] = std::max(after[i], message(e, i) + before.backward_input + after[from]);
    }
    const double m = static_cast<double>(plan.batch / plan.stages[i].micro_batch);
    least = std::max(least, begin[i] + m * own.micro_batch() + own.sync);
    least = std::max(least, begin[i] + m * (own.forward + own.backward_input) + after[i]);
  }
  return least;
}

}  // namespace

bool is_runnable(const Plan& plan) {
  const Stage& first = plan.stages[0];
  std::set<int> taken;
  for (const Stage& stage : plan.stages) {
    if (stage.micro_batch != first.micro_batch) return false;
    if (stage.tensor != 1 || stage.shard_optimizer) return false;
    for (const int device : stage.devices) {
      if (!taken.insert(device).second) return false;
    }
  }
  return true;
}

Judge::Judge(const graph::Graph& graph, const PlannerOptions& options, int64_t most_tasks,
             Clock::time_point deadline)
    : graph_(graph),
      options_(options),
      most_tasks_(most_tasks),
      deadline_(deadline),
      seconds_(kInfinity) {}

bool Judge::is_asked_for(const Plan& plan) const {
  const PlannerOptions& o = options_;
  if (o.runnable && !is_runnable(plan)) return false;
  if (!o.zero_bubble && plan.schedule == ScheduleKind::zero_bubble) return false;
  return std::ranges::all_of(plan.stages, [&o](const Stage& stage) {
    if (o.replicas > 0 && stage.replicas != o.replicas) return false;
    if (!o.micro_batches.empty() &&
        std::ranges::find(o.micro_batches, stage.micro_batch) == o.micro_batches.end()) {
      return false;
    }
    return (o.split || stage.tensor == 1) && (o.recompute || stage.recompute.empty()) &&
           (o.shard_optimizer || !stage.shard_optimizer);
  });
}

void Judge::place(Candidate& c) const {
  if (!c.plan.stages[0].devices.empty()) return;
  const graph::Graph& graph = other_ != nullptr ? *other_ : graph_;
  if (c.islands.empty()) {
    plan::place(graph, machine_->devices, c.plan);
  } else {
    place_on_islands(graph, machine_->devices, c.islands, c.plan);
  }
}

Plan Judge::plan() const {
  Plan plan = plan_;
  for (Stage& stage : plan.stages) {
    for (int& d : stage.devices) d = of_plan_->numbers[d];
  }
  return plan;
}

bool Judge::can_be_better(const Plan& plan, const PlanCosts& costs) {
  if (!is_asked_for(plan)) return false;
  if (least_seconds(plan, costs) < seconds_ * (1 - 1e-9)) return true;
  fitted_ = true;
  return false;
}

bool Judge::may_be_best(const Plan& plan) {
  return can_be_better(plan, plan_costs(graph_, machine_->devices, plan));
}

void Judge::keep(const Plan& plan, const Orders& orders, const Timeline& line) {
  if (!line.fits() || !is_asked_for(plan)) return;
  fitted_ = true;
  if (plan.schedule == ScheduleKind::kfkb) {  // as it is where no others are asked for
    least_of_call_ = std::min(least_of_call_, line.seconds);
  }
  if (line.seconds >= seconds_) return;
  any_ = true;
  seconds_ = line.seconds;
  of_plan_ = machine_;
  plan_ = plan;
  plan_.orders.clear();
  for (const auto& order : orders) plan_.orders.push_back(to_letters(order));
}

// Of sizes that somebody named, evaluate() says so.
bool Judge::has_too_many(const Plan& plan) {
  if (tasks_of(plan) / 2 <= kMaxTasks || !options_.micro_batches.empty()) return false;
  left_out_ = std::max(left_out_, plan.stages.front().micro_batch);
  return true;
}

void Judge::try_plan(const Plan& plan) {
  if (any_ && is_late()) return;
  const PlanCosts costs = plan_costs(graph_, machine_->devices, plan);
  if (!can_be_better(plan, costs)) return;
  if (has_too_many(plan)) return;
  const int64_t tasks = tasks_of(plan);
  const bool one_order = tasks > kMostTasks && plan.schedule == ScheduleKind::kfkb;
  if (tasks > kMostTasks && !one_order) return;
  const Orders orders = one_order ? kfkb_orders(plan) : make_orders(plan, costs);
  tasks_ += (one_order ? 1 : kOrders / 2) * tasks;
  keep(plan, orders, evaluate(plan, costs, orders));
  if (other_ == nullptr || one_order) return;
  const Orders as_other = make_orders(plan, plan_costs(*other_, machine_->devices, plan));
  if (as_other == orders) return;
  tasks_ += kOrders / 2 * tasks;
  keep(plan, as_other, evaluate(plan, costs, as_other));
}

// In the plain order.
double Judge::plain_seconds(const Plan& plan) {
  const PlanCosts costs = plan_costs(graph_, machine_->devices, plan);
  const Orders orders = kfkb_orders(plan);
  const Timeline line = evaluate(plan, costs, orders);
  tasks_ += tasks_of(plan);
  keep(plan, orders, line);
  if (other_ == nullptr) return line.seconds;
  return evaluate(plan, plan_costs(*other_, machine_->devices, plan), orders).seconds;
}

void Judge::try_ways(const Plan& plan) {
  try_plan(plan);
  const auto with_room = [this](const Plan& p) {
    return with_room_used(plan_costs(graph_, machine_->devices, p), p);
  };
  const Plan roomy = with_room(plan);
  const bool more = !(roomy == plan);
  if (more && tasks_of(plan) <= kMostTasks) try_plan(roomy);
  if (!options_.zero_bubble) return;
  Plan split = plan;
  split.schedule = ScheduleKind::zero_bubble;
  split.orders.clear();
  const Plan roomy_split = with_room(split);
  try_plan(roomy_split);
  if (!(roomy_split == split)) try_plan(split);
}

void Judge::consider(Candidate c) {
  place(c);
  try_ways(c.plan);
}

void Judge::consider_as(Plan plan, const graph::Graph& other) {
  if (any_ && is_late()) return;
  if (tasks_of(plan) > kMostTasks) return;
  if (plan.stages[0].devices.empty()) plan::place(graph_, machine_->devices, plan);
  const PlanCosts costs = plan_costs(graph_, machine_->devices, plan);
  if (!can_be_better(plan, costs)) return;
  const Orders orders = make_orders(plan, plan_costs(other, machine_->devices, plan));
  tasks_ += kOrders / 2 * tasks_of(plan);
  keep(plan, orders, evaluate(plan, costs, orders));
}

void Judge::judge_all(std::vector<Candidate>& found) {
  const int64_t limit = tasks_ + kAllTasks;
  for (Candidate& c : found) {
    if (any_ && (tasks_ > limit || is_past(deadline_))) break;
    place(c);
    if (can_be_better(c.plan, plan_costs(graph_, machine_->devices, c.plan))) try_ways(c.plan);
  }
}

double Judge::judge(std::vector<Candidate>& found) {
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  found.erase(std::unique(found.begin(), found.end(),
                          [](const Candidate& a, const Candidate& b) {
                            return a.seconds == b.seconds && a.plan == b.plan;
                          }),
              found.end());
  fitted_ = false;
  least_of_call_ = kInfinity;
  int64_t tasks = 0;
  const size_t judged = std::min(found.size(), kJudged);
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < judged; ++i) {
    place(found[i]);
    tasks += kOrders * tasks_of(found[i].plan);
    order.emplace_back(0.0, i);
  }
  size_t num = judged;
  if (tasks > kJudgedTasks) {
    num = std::max<size_t>(
        2, static_cast<size_t>(kJudgedTasks * static_cast<int64_t>(judged) / tasks));
    num = std::min(num, judged);
    bool is_first = true;  // one is carried out, whatever it takes
    for (auto& [seconds, i] : order) {
      const Plan& plan = found[i].plan;
      if (has_too_many(plan) || (!is_first && (tasks_of(plan) > kMostTasks || is_late()))) {
        seconds = kInfinity;
        continue;
      }
      is_first = false;
      seconds = plain_seconds(plan);
    }
    std::stable_sort(order.begin(), order.end());
  }
  for (size_t k = 0; k < num; ++k) {
    if (k > 0 && order[k].first == kInfinity) break;
    wanted_ += kOrders * tasks_of(found[order[k].second].plan);
    try_ways(found[order[k].second].plan);
  }
  // None of them fits: others.
  for (size_t i = judged; i < found.size() && !fitted_; ++i) {
    place(found[i]);
    try_ways(found[i].plan);
  }
  return least_of_call_;
}

}  // namespace ductile::plan
