#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ductile/plan/islands_impl.h"

namespace ductile::plan {

Island island_of(const Devices& devices) {
  Island f;
  f.devices = devices.size();
  f.per_node = std::numeric_limits<int>::max();
  f.memory = f.speed = std::numeric_limits<double>::infinity();
  f.intra = {std::numeric_limits<double>::infinity(), 0};
  f.inter = f.intra;
  const auto worse = [](Link& a, const Link& b) {
    a.bandwidth = std::min(a.bandwidth, b.bandwidth);
    a.latency = std::max(a.latency, b.latency);
  };
  for (const DeviceGroup& g : devices.groups()) {
    f.per_node = std::min(f.per_node, g.devices_per_node);
    f.memory = std::min(f.memory, g.memory);
    f.speed = std::min(f.speed, g.speed);
    worse(f.intra, g.intra);
    worse(f.inter, g.inter);
  }
  if (devices.num_nodes() == 1) f.per_node = f.devices;
  return f;
}

namespace {

// Groups of equal devices; which of them each group is.
std::vector<DeviceGroup> kinds_of(const Devices& devices, std::vector<int>& number) {
  std::vector<DeviceGroup> kinds;
  for (const DeviceGroup& g : devices.groups()) {
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const DeviceGroup& k) {
      return k.devices_per_node == g.devices_per_node && k.memory == g.memory &&
             k.speed == g.speed && k.intra == g.intra && k.inter == g.inter;
    });
    number.push_back(static_cast<int>(same - kinds.begin()));
    if (same == kinds.end()) {
      kinds.push_back(g);
    } else {
      same->nodes += g.nodes;
    }
  }
  if (kinds.size() > kMaxIslands) {
    kinds.clear();
    number.assign(number.size(), 0);
  }
  return kinds;
}

}  // namespace

std::vector<Island> islands_of(const Devices& devices) {
  std::vector<int> number;
  const std::vector<DeviceGroup> kinds = kinds_of(devices, number);
  if (kinds.size() <= 1) return {island_of(devices)};
  std::vector<Island> out;
  for (const DeviceGroup& k : kinds) {
    Island f;
    f.devices = k.size();
    f.per_node = k.devices_per_node;
    f.memory = k.memory;
    f.speed = k.speed;
    f.intra = k.intra;
    f.inter = k.inter;
    if (devices.num_nodes() > 1) f.stage_link = k.inter;
    out.push_back(f);
  }
  return out;
}

std::vector<int> island_numbers(const Devices& devices) {
  std::vector<int> number;
  kinds_of(devices, number);
  return number;
}

}  // namespace ductile::plan
