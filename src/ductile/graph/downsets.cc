#include "ductile/graph/downsets.h"

#include <algorithm>

namespace ductile::graph {
namespace {

// Calls visit(set) for each downset until it returns false. A downset is reached exactly once: by
// adding its members in topological order.
template <class Visit>
void for_each_downset(const Topology& t, Visit&& visit) {
  const int n = t.num_ops();
  OpSet set(n);
  std::vector<int> missing(n);  // predecessors not in the set
  for (OpId op = 0; op < n; ++op) missing[op] = static_cast<int>(t.predecessors(op).size());
  if (!visit(set)) return;
  std::vector<int> path;  // positions of the members
  int at = 0;             // next position to try
  for (;;) {
    while (at < n && missing[t.order()[at]] > 0) ++at;
    if (at < n) {
      const OpId op = t.order()[at];
      set.insert(op);
      for (OpId to : t.successors(op)) --missing[to];
      if (!visit(set)) return;
      path.push_back(at++);
      continue;
    }
    if (path.empty()) return;
    at = path.back();
    path.pop_back();
    const OpId op = t.order()[at++];
    set.erase(op);
    for (OpId to : t.successors(op)) ++missing[to];
  }
}

}  // namespace

std::optional<std::vector<OpSet>> downsets(const Topology& topology, size_t cap) {
  std::vector<OpSet> sets;
  bool over = false;
  for_each_downset(topology, [&](const OpSet& set) {
    over = sets.size() == cap;
    if (!over) sets.push_back(set);
    return !over;
  });
  if (over) return std::nullopt;
  std::vector<std::pair<int, size_t>> by_size;
  for (size_t i = 0; i < sets.size(); ++i) by_size.emplace_back(sets[i].size(), i);
  std::sort(by_size.begin(), by_size.end());
  std::vector<OpSet> sorted;
  sorted.reserve(sets.size());
  for (const auto& [size, i] : by_size) sorted.push_back(std::move(sets[i]));
  return sorted;
}

size_t count_downsets(const Topology& topology, size_t cap) {
  size_t count = 0;
  for_each_downset(topology, [&](const OpSet&) { return ++count <= cap; });
  return count;
}

}  // namespace ductile::graph
