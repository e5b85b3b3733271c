#include "ductile/plan/evaluate.h"

#include "ductile/plan/execution_impl.h"

namespace ductile::plan {

bool Timeline::fits() const {
  for (size_t s = 0; s < peak_memory.size(); ++s) {
    if (peak_memory[s] > memory_limit[s]) return false;
  }
  return true;
}

Timeline evaluate(const Plan& plan, const PlanCosts& costs, const Orders& orders,
                  const EvaluateOptions& options) {
  const bool split = plan.schedule == ScheduleKind::zero_bubble;
  Execution execution(plan, costs, split, options.record);
  if (!execution.try_follow(orders)) execution.fail_stuck();
  return execution.take_result();
}

Timeline evaluate(const graph::Graph& graph, const Devices& devices, const Plan& plan,
                  const EvaluateOptions& options) {
  check(plan, graph, devices);
  const PlanCosts costs = plan_costs(graph, devices, plan);
  return evaluate(plan, costs, make_orders(plan, costs), options);
}

}  // namespace ductile::plan
