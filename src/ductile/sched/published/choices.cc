#include "ductile/sched/published/choices.h"

#include <algorithm>
#include <cmath>

#include "ductile/base/error.h"

namespace ductile::sched {
namespace {

constexpr double kTie = 1e-12;

ChoiceResult solve_exactly(std::span<const std::vector<Choice>> groups,
                           std::span<const int32_t> capacities, size_t states) {
  // best[s]: the most that the groups so far yield with s of the capacities used up at most.
  std::vector<size_t> stride(capacities.size(), 1);
  for (size_t k = 1; k < capacities.size(); ++k)
    stride[k] = stride[k - 1] * static_cast<size_t>(capacities[k - 1] + 1);
  std::vector<double> best(states, 0), next(states);
  std::vector<int16_t> picked(groups.size() * states, -1);
  for (size_t g = 0; g < groups.size(); ++g) {
    next = best;
    int16_t* pick = picked.data() + g * states;
    for (size_t c = 0; c < groups[g].size(); ++c) {
      const Choice& choice = groups[g][c];
      const auto k = static_cast<size_t>(choice.kind);
      if (choice.size > capacities[k]) continue;
      const size_t run = stride[k], block = run * static_cast<size_t>(capacities[k] + 1),
                   shift = run * static_cast<size_t>(choice.size);
      for (size_t base = 0; base < states; base += block)
        for (size_t s = base + shift; s < base + block; ++s) {
          const double value = best[s - shift] + choice.value;
          if (value > next[s] + kTie) {
            next[s] = value;
            pick[s] = static_cast<int16_t>(c);
          }
        }
    }
    best.swap(next);
  }
  ChoiceResult result;
  result.chosen.assign(groups.size(), -1);
  size_t state = states - 1;
  result.value = result.bound = best[state];
  for (size_t g = groups.size(); g-- > 0;) {
    const int16_t c = picked[g * states + state];
    result.chosen[g] = c;
    if (c < 0) continue;
    const Choice& choice = groups[g][static_cast<size_t>(c)];
    state -= stride[static_cast<size_t>(choice.kind)] * static_cast<size_t>(choice.size);
  }
  return result;
}

// What exceeds a capacity gives up what is worth least a unit; what is left is filled. `left`: of
// each kind, negative where too much was chosen. The value of all choices then.
double repair(std::span<const std::vector<Choice>> groups, std::vector<int32_t>& chosen,
              std::vector<int64_t>& left) {
  const auto choice_of = [&](size_t g) -> const Choice& {
    return groups[g][static_cast<size_t>(chosen[g])];
  };
  const auto room_of = [&](const Choice& choice) -> int64_t& {
    return left[static_cast<size_t>(choice.kind)];
  };
  std::vector<size_t> order(groups.size());
  for (size_t g = 0; g < order.size(); ++g) order[g] = g;
  const auto worth = [&](size_t g) {
    if (chosen[g] < 0) return INFINITY;
    const Choice& c = choice_of(g);
    return static_cast<float>(c.value / c.size);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return worth(a) < worth(b); });
  for (const size_t g : order) {
    if (chosen[g] < 0 || room_of(choice_of(g)) >= 0) continue;
    room_of(choice_of(g)) += choice_of(g).size;
    chosen[g] = -1;
  }
  double value = 0;
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const size_t g = *at;
    int32_t better = chosen[g];
    double most = chosen[g] < 0 ? 0 : choice_of(g).value;
    for (size_t c = 0; c < groups[g].size(); ++c) {
      const Choice& choice = groups[g][c];
      int64_t room = room_of(choice);
      if (chosen[g] >= 0 && choice_of(g).kind == choice.kind) room += choice_of(g).size;
      if (choice.size > room || choice.value <= most + kTie) continue;
      most = choice.value;
      better = static_cast<int32_t>(c);
    }
    if (better != chosen[g]) {
      if (chosen[g] >= 0) room_of(choice_of(g)) += choice_of(g).size;
      chosen[g] = better;
      room_of(choice_of(g)) -= choice_of(g).size;
    }
    value += most;
  }
  return value;
}

ChoiceResult solve_by_prices(std::span<const std::vector<Choice>> groups,
                             std::span<const int32_t> capacities) {
  constexpr int kSteps = 300;
  const size_t kinds = capacities.size();
  std::vector<double> price(kinds, 0);
  const auto pick = [&](const std::vector<Choice>& group, const std::vector<double>& at) {
    int32_t best = -1;
    double most = kTie;
    for (size_t c = 0; c < group.size(); ++c) {
      const double value = group[c].value - at[static_cast<size_t>(group[c].kind)] * group[c].size;
      if (value <= most + kTie) continue;
      most = value;
      best = static_cast<int32_t>(c);
    }
    return best;
  };
  ChoiceResult result;
  result.bound = INFINITY;
  result.value = -INFINITY;
  double step = 0.05;
  int since = 0;
  for (int iteration = 0; iteration < kSteps; ++iteration) {
    std::vector<int32_t> chosen(groups.size());
    std::vector<int64_t> left(capacities.begin(), capacities.end());
    double dual = 0;
    for (size_t k = 0; k < kinds; ++k) dual += price[k] * capacities[k];
    for (size_t g = 0; g < groups.size(); ++g) {
      chosen[g] = pick(groups[g], price);
      if (chosen[g] < 0) continue;
      const Choice& choice = groups[g][static_cast<size_t>(chosen[g])];
      left[static_cast<size_t>(choice.kind)] -= choice.size;
      dual += choice.value - price[static_cast<size_t>(choice.kind)] * choice.size;
    }
    if (dual < result.bound) {
      result.bound = dual;
      since = 0;
    } else if (++since == 10) {
      step /= 2;
      since = 0;
    }
    const std::vector<int64_t> slope = left;
    const double value = repair(groups, chosen, left);
    if (value > result.value) {
      result.value = value;
      result.chosen = chosen;
    }
    for (size_t k = 0; k < kinds; ++k) {
      if (capacities[k] == 0) continue;
      price[k] = std::max(price[k] - step * static_cast<double>(slope[k]) / capacities[k], 0.0);
    }
  }
  result.bound = std::max(result.bound, result.value);
  return result;
}

}  // namespace

ChoiceResult solve_choices(std::span<const std::vector<Choice>> groups,
                           std::span<const int32_t> capacities, double most_work) {
  double states = 1, most = 1;
  for (const int32_t capacity : capacities) {
    DUCTILE_CHECK(capacity >= 0);
    states *= capacity + 1;
  }
  for (const auto& group : groups) {
    most = std::max(most, static_cast<double>(group.size()));
    for (const Choice& choice : group)
      DUCTILE_CHECK(choice.kind >= 0 && static_cast<size_t>(choice.kind) < capacities.size() &&
                    choice.size >= 1);
  }
  if (states * static_cast<double>(groups.size()) * most <= most_work)
    return solve_exactly(groups, capacities, static_cast<size_t>(states));
  return solve_by_prices(groups, capacities);
}

}  // namespace ductile::sched
