#include <algorithm>
#include <bit>
#include <utility>

#include "ductile/plan/machines_impl.h"

namespace ductile::plan {

namespace {

// Numbers of nodes, or of devices of one, that are tried of n.
std::vector<int> counts_of(int n) {
  std::vector<int> counts = {0};
  for (int k = 1; k < n && k <= 8; ++k) counts.push_back(k);
  for (int k = 8; k < n; k *= 2) {
    if (k > 8) counts.push_back(k);
    if (k + k / 2 < n) counts.push_back(k + k / 2);
  }
  counts.push_back(n);
  return counts;
}

double capacity_of(const Devices& devices, const MachinePart& part) {
  double sum = 0;
  for (size_t g = 0; g < part.nodes.size(); ++g) {
    const DeviceGroup& group = devices.groups()[g];
    const int cut = part.group == static_cast<int>(g) ? part.devices : 0;
    sum += (part.nodes[g] * group.devices_per_node + cut) * group.speed;
  }
  return sum;
}

// The part, which cuts no node, with some devices of one more.
void add_cut(const Devices& devices, MachinePart part, std::vector<MachinePart>& out) {
  const bool alone = std::ranges::all_of(part.nodes, [](int n) { return n == 0; });
  if (!alone && devices.size() > kSmallMachine) return;
  for (size_t g = 0; g < part.nodes.size(); ++g) {
    const DeviceGroup& group = devices.groups()[g];
    if (part.nodes[g] == group.nodes) continue;
    part.group = static_cast<int>(g);
    for (const int d : counts_of(group.devices_per_node)) {
      if (d == 0 || d == group.devices_per_node) continue;
      part.devices = d;
      part.further = !alone || !std::has_single_bit(static_cast<unsigned>(d));
      part.capacity = capacity_of(devices, part);
      out.push_back(part);
    }
  }
}

// Of each group some nodes less than all, beside all of the others: numbers of which counts_of()
// has only some.
void add_nearly_whole(const Devices& devices, const MachinePart& whole,
                      std::vector<MachinePart>& out) {
  constexpr int kFewer = 8;
  for (size_t g = 0; g < whole.nodes.size(); ++g) {
    const int all = whole.nodes[g];
    const std::vector<int> counts = counts_of(all);
    MachinePart part = whole;
    part.further = true;
    for (int n = all - 1; n >= std::max(1, all - kFewer); --n) {
      if (std::ranges::binary_search(counts, n)) continue;
      part.nodes[g] = n;
      part.capacity = capacity_of(devices, part);
      out.push_back(part);
    }
  }
}

}  // namespace

std::vector<MachinePart> machine_parts(const Devices& devices) {
  MachinePart whole, part;
  std::vector<std::vector<int>> counts;
  for (const DeviceGroup& g : devices.groups()) {
    whole.nodes.push_back(g.nodes);
    counts.push_back(counts_of(g.nodes));
  }
  whole.capacity = capacity_of(devices, whole);
  std::vector<MachinePart> out;
  part.nodes.assign(counts.size(), 0);
  add_cut(devices, part, out);
  std::vector<size_t> at(counts.size(), 0);
  for (int tried = 0; tried < 1 << 14; ++tried) {
    size_t g = 0;
    while (g < at.size() && ++at[g] == counts[g].size()) at[g++] = 0;
    if (g == at.size()) break;
    for (size_t i = 0; i < at.size(); ++i) part.nodes[i] = counts[i][at[i]];
    if (part.nodes == whole.nodes) continue;
    part.capacity = capacity_of(devices, part);
    out.push_back(part);
    add_cut(devices, part, out);
  }
  add_nearly_whole(devices, whole, out);
  std::stable_sort(out.begin(), out.end(), [](const MachinePart& a, const MachinePart& b) {
    return std::pair(b.further, a.capacity) > std::pair(a.further, b.capacity);
  });
  out.insert(out.begin(), std::move(whole));
  if (out.size() > kMostParts) out.resize(kMostParts);
  return out;
}

Machine machine_of(const Devices& devices, const MachinePart& part) {
  Machine out;
  std::vector<DeviceGroup> groups;
  const auto take = [&](DeviceGroup group, int first, int nodes, int each) {
    for (int n = 0; n < nodes; ++n) {
      for (int d = 0; d < each; ++d) out.numbers.push_back(first + n * group.devices_per_node + d);
    }
    group.nodes = nodes;
    group.devices_per_node = each;
    if (nodes > 0) groups.push_back(std::move(group));
  };
  int first = 0;
  for (size_t g = 0; g < part.nodes.size(); ++g) {
    const DeviceGroup& group = devices.groups()[g];
    take(group, first, part.nodes[g], group.devices_per_node);
    if (part.group == static_cast<int>(g)) {
      take(group, first + part.nodes[g] * group.devices_per_node, 1, part.devices);
    }
    first += group.size();
  }
  out.devices = Devices(std::move(groups));
  return out;
}

}  // namespace ductile::plan
