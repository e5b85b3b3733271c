#include <algorithm>
#include <array>
#include <cmath>

#include "ductile/sched/allocator.h"

namespace ductile::sched {

namespace {

// A partial solution: what the jobs decided so far use (one mixed-radix digit a type) and how much
// of the bound it gives away.
struct Label {
  uint64_t key = 0;
  double regret = 0;
  uint32_t parent = 0;
  int32_t choice = -1;
};

void merge_into(std::vector<Label>& into, const std::vector<Label>& more,
                std::vector<Label>& scratch) {
  scratch.clear();
  size_t a = 0, b = 0;
  while (a < into.size() || b < more.size()) {
    if (b == more.size() || (a < into.size() && into[a].key < more[b].key)) {
      scratch.push_back(into[a++]);
    } else if (a == into.size() || more[b].key < into[a].key) {
      scratch.push_back(more[b++]);
    } else {
      scratch.push_back(more[b].regret < into[a].regret ? more[b] : into[a]);
      ++a, ++b;
    }
  }
  into.swap(scratch);
}

}  // namespace

struct Allocator::Regret {
  int job = 0;
  std::vector<std::pair<int32_t, double>> options;  // choice, regret
  double second = 0;                                // the least but the present choice's
};

// Objective = bound - regrets of the choices made - price of what is left over, for any feasible
// solution. So only choices whose regret is below the present gap can be part of a better one.
void Allocator::improve_exactly() {
  const double gap = result_.bound - result_.objective;
  const double noise = 1e-10 * result_.bound;
  if (gap <= noise) {
    result_.exact = true;
    return;
  }
  const int n = num_types();
  std::vector<Regret> open;
  std::array<int64_t, kMaxTypes> room{};
  for (int t = 0; t < n; ++t)
    room[static_cast<size_t>(t)] =
        capacity_[static_cast<size_t>(t)] - used_[static_cast<size_t>(t)];
  for (int i = 0; i < num_jobs(); ++i) {
    const Job& j = jobs_[static_cast<size_t>(i)];
    if (j.num_choices == 0) continue;
    Regret r{i, {}};
    for (int c = -1; c < j.num_choices; ++c) {
      if (c >= 0 && !allowed(j, c)) continue;
      const double regret = j.surplus - reduced_value(j, c, prices_.data());
      if (regret < gap || c == j.chosen) r.options.push_back({c, std::max(regret, 0.0)});
    }
    if (r.options.size() < 2) continue;
    r.second = HUGE_VAL;
    for (auto [c, regret] : r.options)
      if (c != j.chosen) r.second = std::min(r.second, regret);
    if (j.chosen >= 0) {
      const Option& c = choices_[j.choice_begin + static_cast<size_t>(j.chosen)];
      room[static_cast<size_t>(c.type)] += c.gpus;
    }
    open.push_back(std::move(r));
  }
  if (open.empty()) {
    result_.exact = true;
    result_.bound = result_.objective;
    return;
  }
  bool complete = true;
  if (open.size() > static_cast<size_t>(options_.exact_jobs)) {
    // The jobs whose second thoughts cost least are those worth thinking about.
    complete = false;
    std::nth_element(open.begin(), open.begin() + options_.exact_jobs, open.end(),
                     [](const Regret& a, const Regret& b) { return a.second < b.second; });
    for (size_t k = static_cast<size_t>(options_.exact_jobs); k < open.size(); ++k) {
      const Job& j = jobs_[static_cast<size_t>(open[k].job)];
      if (j.chosen < 0) continue;
      const Option& c = choices_[j.choice_begin + static_cast<size_t>(j.chosen)];
      room[static_cast<size_t>(c.type)] -= c.gpus;
    }
    open.resize(static_cast<size_t>(options_.exact_jobs));
  }

  std::array<uint64_t, kMaxTypes> stride{};
  uint64_t space = 1;
  for (int t = 0; t < n; ++t) {
    stride[static_cast<size_t>(t)] = space;
    const auto radix = static_cast<uint64_t>(room[static_cast<size_t>(t)]) + 1;
    if (space > UINT64_MAX / 4 / radix) return;
    space *= radix;
  }
  // What the jobs after this one can still use, at most.
  std::vector<std::array<int64_t, kMaxTypes>> later(open.size() + 1);
  for (size_t k = open.size(); k-- > 0;) {
    later[k] = later[k + 1];
    const Option* all = choices_.data() + jobs_[static_cast<size_t>(open[k].job)].choice_begin;
    std::array<int64_t, kMaxTypes> most{};
    for (auto [c, regret] : open[k].options)
      if (c >= 0) {
        auto& m = most[static_cast<size_t>(all[c].type)];
        m = std::max<int64_t>(m, all[c].gpus);
      }
    for (size_t t = 0; t < static_cast<size_t>(n); ++t) later[k][t] += most[t];
  }
  double fixed = 0;  // regret of the jobs not in question
  {
    double all = 0;
    for (const Job& j : jobs_) all += j.surplus - reduced_value(j, j.chosen, prices_.data());
    for (const Regret& r : open) {
      const Job& j = jobs_[static_cast<size_t>(r.job)];
      all -= j.surplus - reduced_value(j, j.chosen, prices_.data());
    }
    fixed = std::max(all, 0.0);
  }
  const auto idle_cost = [&](uint64_t key, const std::array<int64_t, kMaxTypes>& more) {
    double cost = 0;
    for (size_t t = 0; t < static_cast<size_t>(n); ++t) {
      const auto used =
          static_cast<int64_t>(key / stride[t] % (static_cast<uint64_t>(room[t]) + 1));
      cost += prices_[t] * static_cast<double>(std::max<int64_t>(room[t] - used - more[t], 0));
    }
    return cost;
  };

  std::vector<std::vector<Label>> levels(1, {Label{}});
  std::vector<Label> more;
  std::vector<Label> scratch;
  for (size_t k = 0; k < open.size(); ++k) {
    const std::vector<Label>& from = levels.back();
    const Option* all = choices_.data() + jobs_[static_cast<size_t>(open[k].job)].choice_begin;
    std::vector<Label> next;
    for (auto [c, regret] : open[k].options) {
      more.clear();
      for (size_t l = 0; l < from.size(); ++l) {
        uint64_t key = from[l].key;
        if (c >= 0) {
          const auto t = static_cast<size_t>(all[c].type);
          const auto used =
              static_cast<int64_t>(key / stride[t] % (static_cast<uint64_t>(room[t]) + 1));
          if (used + all[c].gpus > room[t]) continue;
          key += stride[t] * static_cast<uint64_t>(all[c].gpus);
        }
        const double sum = from[l].regret + regret;
        if (sum + fixed + idle_cost(key, later[k + 1]) >= gap - noise) continue;
        more.push_back({key, sum, static_cast<uint32_t>(l), c});
      }
      merge_into(next, more, scratch);
    }
    if (next.size() > static_cast<size_t>(options_.exact_labels)) {
      complete = false;
      const auto keep = static_cast<ptrdiff_t>(options_.exact_labels);
      std::nth_element(next.begin(), next.begin() + keep, next.end(),
                       [](const Label& a, const Label& b) { return a.regret < b.regret; });
      next.resize(static_cast<size_t>(keep));
      std::sort(next.begin(), next.end(),
                [](const Label& a, const Label& b) { return a.key < b.key; });
    }
    levels.push_back(std::move(next));
    if (levels.back().empty()) break;
  }

  if (levels.size() == open.size() + 1 && !levels.back().empty()) {
    const std::vector<Label>& last = levels.back();
    size_t best = 0;
    double least = HUGE_VAL;
    for (size_t l = 0; l < last.size(); ++l) {
      const double cost = last[l].regret + idle_cost(last[l].key, {});
      if (cost < least) least = cost, best = l;
    }
    for (const Regret& r : open) choose(jobs_[static_cast<size_t>(r.job)], -1);
    for (size_t k = open.size(); k > 0; --k) {
      const Label& label = levels[k][best];
      choose(jobs_[static_cast<size_t>(open[k - 1].job)], label.choice);
      best = label.parent;
    }
    summarise();
  }
  if (complete) {
    result_.exact = true;
    result_.bound = result_.objective;
  }
}

}  // namespace ductile::sched
