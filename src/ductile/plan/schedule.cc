#include "ductile/plan/schedule.h"

#include <algorithm>
#include <limits>

#include "ductile/base/error.h"
#include "ductile/plan/execution_impl.h"

namespace ductile::plan {
namespace {

// Ranks: the lowest goes first. W frees memory, so it comes first wherever the cap holds F back.
struct Rule {
  Priority priority;
  Execution::Rank rank;
};

int by_order(Task task, int f, int b, int w) {
  return task == Task::forward ? f : task == Task::backward ? b : w;
}

constexpr Rule kRules[] = {
    {{"backward_forward_weight", "gradients first, weights when nothing else can be done"},
     [](Task t, const Execution::State&) { return by_order(t, 1, 0, 2); }},
    {{"forward_backward_weight", "inputs first, so that later stages begin early"},
     [](Task t, const Execution::State&) { return by_order(t, 0, 1, 2); }},
    {{"backward_weight_forward", "memory first: what is begun is ended"},
     [](Task t, const Execution::State&) { return by_order(t, 2, 0, 1); }},
    {{"weight_when_full", "weights only where the activations held reach the cap"},
     [](Task t, const Execution::State& s) {
       return by_order(t, 1, 0, s.in_flight >= s.cap ? 0 : 2);
     }},
    {{"one_forward_one_backward", "F and B in turn, weights when neither can be done"},
     [](Task t, const Execution::State& s) {
       return s.last == Task::forward ? by_order(t, 1, 0, 2) : by_order(t, 0, 1, 2);
     }},
    {{"weight_lag_one", "at most one weight part is left for later"},
     [](Task t, const Execution::State& s) { return by_order(t, 2, 1, s.waiting > 1 ? 0 : 3); }},
};

// Without the split: what list scheduling may do better than the fixed order where stages differ.
constexpr Rule kWholeRules[] = {
    {{"backward_first", "gradients as early as possible"},
     [](Task t, const Execution::State&) { return by_order(t, 1, 0, 2); }},
    {{"forward_first", "inputs as early as the cap allows"},
     [](Task t, const Execution::State&) { return by_order(t, 0, 1, 2); }},
};

// kFkB with the weight part right behind the input part.
Orders joined_backward(Orders orders) {
  for (auto& order : orders) {
    std::vector<Task> out;
    for (Task t : order) {
      out.push_back(t);
      if (t == Task::backward) out.push_back(Task::backward_weight);
    }
    order = std::move(out);
  }
  return orders;
}

}  // namespace

Orders kfkb_orders(const Plan& plan) {
  check_size(plan);
  Orders orders;
  for (const Stage& s : plan.stages) {
    const int64_t num = plan.batch / s.micro_batch;
    std::vector<Task>& order = orders.emplace_back();
    int64_t forward = std::min(num, s.in_flight / s.micro_batch), backward = 0;
    order.assign(static_cast<size_t>(forward), Task::forward);
    while (backward < num) {
      for (int64_t i = 0; i < s.k && backward < forward; ++i, ++backward) {
        order.push_back(Task::backward);
      }
      for (int64_t i = 0; i < s.k && forward < num; ++i, ++forward) order.push_back(Task::forward);
    }
  }
  return orders;
}

std::span<const Priority> zero_bubble_priorities() {
  static const std::vector<Priority> all = [] {
    std::vector<Priority> out;
    for (const Rule& r : kRules) out.push_back(r.priority);
    return out;
  }();
  return all;
}

Orders zero_bubble_orders(const Plan& plan, const PlanCosts& costs, size_t priority) {
  DUCTILE_CHECK(priority < std::size(kRules), "priority {}", priority);
  Orders orders;
  Execution execution(plan, costs, true, false);
  if (!execution.try_list(kRules[priority].rank, orders)) execution.fail_stuck();
  return orders;
}

Orders make_orders(const Plan& plan, const PlanCosts& costs) {
  if (!plan.orders.empty()) {
    check_size(plan);
    Orders orders;
    for (size_t s = 0; s < plan.orders.size(); ++s) {
      const int64_t tasks = 3 * (plan.batch / plan.stages[s].micro_batch);
      orders.push_back(order_from_letters(plan.orders[s], static_cast<int>(s), tasks));
    }
    return orders;
  }
  const bool split = plan.schedule == ScheduleKind::zero_bubble;
  Orders best = kfkb_orders(plan);
  if (split) best = joined_backward(std::move(best));
  // Where in_flight was raised for one stage and not for those before it, the fixed order cannot
  // be carried out: its warm-up would wait for inputs that are held back.
  Execution fixed(plan, costs, split, false);
  double seconds =
      fixed.try_follow(best) ? fixed.result().seconds : std::numeric_limits<double>::infinity();
  for (const Rule& rule : split ? std::span<const Rule>(kRules) : kWholeRules) {
    Orders orders;
    Execution execution(plan, costs, split, false);
    if (!execution.try_list(rule.rank, orders)) continue;
    if (execution.result().seconds < seconds) {
      seconds = execution.result().seconds, best = std::move(orders);
    }
  }
  return best;
}

}  // namespace ductile::plan
