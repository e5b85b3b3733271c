#include <algorithm>
#include <cmath>

#include "ductile/sched/allocator.h"

namespace ductile::sched {

struct Allocator::Move {
  double cost = 0;  // least first
  int job = 0;
  int choice = 0;
};

namespace {
// Where costs are equal, the first jobs are given devices first, and lose them last.
constexpr auto kDearer = [](const auto& a, const auto& b) {
  return a.cost != b.cost ? a.cost > b.cost : a.job > b.job;
};
constexpr auto kDearerToCut = [](const auto& a, const auto& b) {
  return a.cost != b.cost ? a.cost > b.cost : a.job < b.job;
};
}  // namespace

void Allocator::repair() {
  while (cut_overuse()) {
  }
  while (use_what_is_left()) {
  }
  summarise();
}

// One pass that takes accelerators away where more were chosen than there are, least loss (at the
// current prices) for each accelerator freed first. True if a type is still overused.
bool Allocator::cut_overuse() {
  std::vector<Move> moves;
  const auto over = [&](int t) {
    return used_[static_cast<size_t>(t)] - capacity_[static_cast<size_t>(t)];
  };
  bool any = false;
  for (int t = 0; t < num_types(); ++t) any = any || over(t) > 0;
  if (!any) return false;
  for (int i = 0; i < num_jobs(); ++i) {
    const Job& j = jobs_[static_cast<size_t>(i)];
    if (j.chosen < 0) continue;
    const Option* all = choices_.data() + j.choice_begin;
    const Option& now = all[j.chosen];
    const int64_t excess = over(now.type);
    if (excess <= 0) continue;
    const double held = reduced_value(j, j.chosen, prices_.data());
    Move best{held / static_cast<double>(std::min<int64_t>(excess, now.gpus)), i, -1};
    for (int c = 0; c < j.num_choices; ++c) {
      if (!allowed(j, c)) continue;
      const bool same = all[c].type == now.type;
      if (same ? all[c].gpus >= now.gpus : over(all[c].type) + all[c].gpus > 0) continue;
      const int64_t freed = now.gpus - (same ? all[c].gpus : 0);
      const double cost = (held - reduced_value(j, c, prices_.data())) /
                          static_cast<double>(std::min(excess, freed));
      if (cost < best.cost) best = {cost, i, c};
    }
    moves.push_back(best);
  }
  std::make_heap(moves.begin(), moves.end(), kDearerToCut);
  while (!moves.empty()) {
    std::pop_heap(moves.begin(), moves.end(), kDearerToCut);
    const Move m = moves.back();
    moves.pop_back();
    Job& j = jobs_[static_cast<size_t>(m.job)];
    const Option* all = choices_.data() + j.choice_begin;
    if (over(all[j.chosen].type) <= 0) continue;
    if (m.choice >= 0 && all[m.choice].type != all[j.chosen].type &&
        over(all[m.choice].type) + all[m.choice].gpus > 0)
      continue;  // another job was moved there in this pass
    choose(j, m.choice);
  }
  for (int t = 0; t < num_types(); ++t)
    if (over(t) > 0) return true;
  return false;
}

// One pass that spends what is left on the choices that gain most for each accelerator more. True
// if something was gained.
bool Allocator::use_what_is_left() {
  std::vector<Move> moves;
  const auto left = [&](int t) {
    return capacity_[static_cast<size_t>(t)] - used_[static_cast<size_t>(t)];
  };
  for (int i = 0; i < num_jobs(); ++i) {
    const Job& j = jobs_[static_cast<size_t>(i)];
    const Option* all = choices_.data() + j.choice_begin;
    const double held = value_of(j, j.chosen);
    Move best{0, i, -1};
    for (int c = 0; c < j.num_choices; ++c) {
      const double gain = all[c].value - held;
      if (!(gain > 1e-12 * held) || !allowed(j, c)) continue;
      const int64_t own =
          j.chosen >= 0 && all[j.chosen].type == all[c].type ? all[j.chosen].gpus : 0;
      const int64_t more = all[c].gpus - own;
      if (more > left(all[c].type)) continue;
      const double cost = -gain / static_cast<double>(std::max<int64_t>(more, 1));
      if (cost < best.cost) best = {cost, i, c};
    }
    if (best.choice >= 0) moves.push_back(best);
  }
  bool gained = false;
  std::make_heap(moves.begin(), moves.end(), kDearer);
  while (!moves.empty()) {
    std::pop_heap(moves.begin(), moves.end(), kDearer);
    const Move m = moves.back();
    moves.pop_back();
    Job& j = jobs_[static_cast<size_t>(m.job)];
    const Option* all = choices_.data() + j.choice_begin;
    const int64_t own =
        j.chosen >= 0 && all[j.chosen].type == all[m.choice].type ? all[j.chosen].gpus : 0;
    if (all[m.choice].gpus - own > left(all[m.choice].type)) continue;
    choose(j, m.choice);
    gained = true;
  }
  return gained;
}

}  // namespace ductile::sched
