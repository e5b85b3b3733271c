#include "ductile/server/core_map.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwloc.h>
#include <hwloc/distances.h>

#include "ductile/base/error.h"
#include "ductile/base/machine.h"

namespace ductile::server {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, DestroyTopology>;

void require_hwloc(int result, const char* what) {
  const int error = errno;
  if (result != 0)
    fail(ErrorCode::unavailable, "hwloc could not {}: {}", what, std::strerror(error));
}

// What the process may not use is looked at, too: what it may is asked of the kernel, which never
// lets an affinity go beyond a control group's cpuset. Without DONT_CHANGE_BINDING hwloc would move
// this thread from core to core to look at each.
Topology loaded(const MachineDescription& machine) {
  hwloc_topology_t raw = nullptr;
  require_hwloc(hwloc_topology_init(&raw), "begin");
  Topology topology(raw);
  if (!machine.xml.empty())
    require_hwloc(hwloc_topology_set_xml(raw, machine.xml.c_str()), "read the description");
  if (!machine.synthetic.empty())
    require_hwloc(hwloc_topology_set_synthetic(raw, machine.synthetic.c_str()),
                  "understand the description");
  require_hwloc(hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED |
                                                  HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING),
                "be told what to look at");
  require_hwloc(hwloc_topology_load(raw), "look at the machine");
  return topology;
}

// The node whose memory is nearest to what runs there; fast and slow memory beside the same cores
// are two nodes for hwloc, of which the first one counts.
hwloc_obj_t node_of(hwloc_topology_t topology, hwloc_obj_t place) {
  while (place != nullptr && (place->nodeset == nullptr || hwloc_bitmap_iszero(place->nodeset)))
    place = place->parent;
  if (place == nullptr) return nullptr;
  return hwloc_get_numanode_obj_by_os_index(
      topology, static_cast<unsigned>(hwloc_bitmap_first(place->nodeset)));
}

// Of the tree of cores; memory hangs beside it, perhaps behind a cache of its own.
hwloc_obj_t cores_beside(hwloc_obj_t node) {
  hwloc_obj_t place = node->parent;
  while (place->parent != nullptr && hwloc_obj_type_is_memory(place->type)) place = place->parent;
  return place;
}

// As the firmware says; where it says nothing, by how much of the machine contains both.
std::vector<std::vector<double>> distances_of(hwloc_topology_t topology,
                                              const std::vector<hwloc_obj_t>& nodes) {
  std::vector<std::vector<double>> out(nodes.size(), std::vector<double>(nodes.size()));
  for (size_t a = 0; a < nodes.size(); ++a)
    for (size_t b = 0; b < nodes.size(); ++b) {
      if (a == b || nodes[a] == nullptr || nodes[b] == nullptr) continue;
      const hwloc_obj_t one = cores_beside(nodes[a]);
      const hwloc_obj_t both = hwloc_get_common_ancestor_obj(topology, one, cores_beside(nodes[b]));
      out[a][b] = 1.0 + std::max(0, one->depth - both->depth);
    }
  unsigned count = 1;
  hwloc_distances_s* said = nullptr;
  if (hwloc_distances_get_by_name(topology, "NUMALatency", &count, &said, 0) != 0 || count == 0)
    return out;
  std::map<hwloc_obj_t, unsigned> place;
  for (unsigned i = 0; i < said->nbobjs; ++i) place[said->objs[i]] = i;
  if (std::ranges::all_of(nodes, [&](hwloc_obj_t node) { return place.contains(node); }))
    for (size_t a = 0; a < nodes.size(); ++a)
      for (size_t b = 0; b < nodes.size(); ++b)
        out[a][b] = static_cast<double>(
            said->values[size_t{place[nodes[a]]} * said->nbobjs + place[nodes[b]]]);
  hwloc_distances_release(topology, said);
  return out;
}

CoreMap by_hwloc(const std::set<int>& usable, const MachineDescription& machine) {
  const Topology topology = loaded(machine);
  CoreMap out;
  std::set<int> left = usable;
  std::map<hwloc_obj_t, size_t> cores;                 // those that were met
  std::vector<std::pair<hwloc_obj_t, Core>> in_order;  // with their nodes
  const int units = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_PU);
  for (int i = 0; i < units; ++i) {
    const hwloc_obj_t unit =
        hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_PU, static_cast<unsigned>(i));
    const int thread = static_cast<int>(unit->os_index);
    if (left.erase(thread) == 0) continue;
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology.get(), HWLOC_OBJ_CORE, unit);
    if (core == nullptr) core = unit;  // some virtual machines have none
    const auto [found, is_new] = cores.emplace(core, in_order.size());
    if (is_new) in_order.emplace_back(node_of(topology.get(), core), Core{});
    in_order[found->second].second.threads.push_back(thread);
  }
  if (!left.empty())
    fail(ErrorCode::unavailable,
         "hwloc does not know the processors {}, which this process may use; are HWLOC_XMLFILE, "
         "HWLOC_SYNTHETIC or HWLOC_FSROOT set for another machine?",
         fmt::join(left, ", "));
  std::vector<hwloc_obj_t> nodes;
  for (const auto& [node, core] : in_order)
    if (std::ranges::find(nodes, node) == nodes.end()) nodes.push_back(node);
  for (size_t n = 0; n < nodes.size(); ++n) {  // also where the cores of two nodes alternate
    const hwloc_obj_t node = nodes[n];
    out.nodes.push_back(node == nullptr
                            ? NumaNode{}
                            : NumaNode{static_cast<int>(node->os_index),
                                       static_cast<int64_t>(node->attr->numanode.local_memory)});
    for (auto& [at, core] : in_order) {
      if (at != node) continue;
      core.node = n;
      std::ranges::sort(core.threads);
      out.cores.push_back(std::move(core));
    }
  }
  out.distances = distances_of(topology.get(), nodes);
  return out;
}

}  // namespace

int64_t CoreMap::num_threads() const {
  int64_t sum = 0;
  for (const Core& core : cores) sum += static_cast<int64_t>(core.threads.size());
  return sum;
}

CoreMap core_map(const std::vector<int>& usable, const MachineDescription& machine) {
  CoreMap plain;
  try {
    if (!usable.empty()) return by_hwloc({usable.begin(), usable.end()}, machine);
    plain.trouble = "the kernel does not say on which processors this process may run";
  } catch (const Error& error) {
    plain.trouble = error.message();
  }
  for (const int thread : std::set<int>(usable.begin(), usable.end()))
    plain.cores.push_back({{thread}, 0});
  plain.nodes.resize(1);
  plain.distances = {{0}};
  return plain;
}

CoreMap core_map() { return core_map(usable_cores()); }

}  // namespace ductile::server
