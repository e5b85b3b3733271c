#pragma once

#include <cstdint>
#include <span>
#include <vector>

// A multiple-choice knapsack over several capacities: the integer programme of a scheduling round.
namespace ductile::sched {

// Taking it yields `value` and uses `size` of capacity `kind`.
struct Choice {
  double value = 0;
  int32_t kind = 0;
  int32_t size = 1;
};

struct ChoiceResult {
  std::vector<int32_t> chosen;  // one a group: index of its choice, -1: none
  double value = 0;
  double bound = 0;  // no choice is worth more; equal to value where it was solved exactly
};

// At most one choice of each group, capacities kept, the sum of values greatest. Exact by dynamic
// programming where groups x choices x states (product of capacities + 1) is at most `most_work`;
// else by Lagrangian prices, a greedy completion and improvement, with the dual's bound. Earlier
// choices win ties. Values may be negative: none is then better.
ChoiceResult solve_choices(std::span<const std::vector<Choice>> groups,
                           std::span<const int32_t> capacities, double most_work = 1e8);

}  // namespace ductile::sched
