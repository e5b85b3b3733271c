#include <algorithm>
#include <numeric>

#include "ductile/plan/machines_impl.h"

namespace ductile::plan {

namespace {

// Numbers of nodes that are tried of n.
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

}  // namespace

std::vector<MachinePart> machine_parts(const Devices& devices) {
  const auto& groups = devices.groups();
  MachinePart whole;
  for (const DeviceGroup& g : groups) {
    whole.nodes.push_back(g.nodes);
    whole.capacity += g.size() * g.speed;
  }
  std::vector<MachinePart> out;
  std::vector<std::vector<int>> counts;
  for (int n : whole.nodes) counts.push_back(counts_of(n));
  std::vector<size_t> at(counts.size(), 0);
  for (int tried = 0; tried < 1 << 14; ++tried) {
    size_t g = 0;
    while (g < at.size() && ++at[g] == counts[g].size()) at[g++] = 0;
    if (g == at.size()) break;
    MachinePart part;
    for (size_t i = 0; i < at.size(); ++i) {
      part.nodes.push_back(counts[i][at[i]]);
      part.capacity += part.nodes[i] * groups[i].devices_per_node * groups[i].speed;
    }
    if (part.nodes != whole.nodes) out.push_back(part);
    if (std::accumulate(part.nodes.begin(), part.nodes.end(), 0) > 1) continue;
    const auto& group =
        groups[std::find(part.nodes.begin(), part.nodes.end(), 1) - part.nodes.begin()];
    for (int d = 1; d < group.devices_per_node; d *= 2) {
      part.per_node = d;
      part.capacity = d * group.speed;
      out.push_back(part);
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const MachinePart& a, const MachinePart& b) {
    return a.capacity > b.capacity;
  });
  out.insert(out.begin(), std::move(whole));
  if (out.size() > kMostParts) out.resize(kMostParts);
  return out;
}

Machine machine_of(const Devices& devices, const MachinePart& part) {
  Machine out;
  std::vector<DeviceGroup> groups;
  int first = 0;
  for (size_t g = 0; g < part.nodes.size(); ++g) {
    DeviceGroup group = devices.groups()[g];
    const int all = group.size(), width = group.devices_per_node;
    group.nodes = part.nodes[g];
    group.devices_per_node = std::min(width, part.per_node);
    for (int n = 0; n < group.nodes; ++n) {
      for (int d = 0; d < group.devices_per_node; ++d) {
        out.numbers.push_back(first + n * width + d);
      }
    }
    if (group.nodes > 0) groups.push_back(std::move(group));
    first += all;
  }
  out.devices = Devices(std::move(groups));
  return out;
}

}  // namespace ductile::plan
