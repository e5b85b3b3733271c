#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ductile/plan/devices.h"
#include "ductile/plan/plan.h"

namespace ductile::plan {

// What of the devices the search sees: equal ones, in nodes.
struct Island {
  int devices = 1;
  int per_node = 1;
  double memory = 0;
  double speed = 1;
  Link intra, inter;
  std::optional<Link> stage_link;  // where these are a group of more

  Link among(int n) const { return n <= per_node ? intra : inter; }
  Link between_stages() const { return stage_link ? *stage_link : among(devices); }
};
// All devices, at the speed, memory and links of the least of them.
Island island_of(const Devices& devices);

inline constexpr int kMaxIslands = 4;
// The groups, equal ones together, each with speed, memory and links of its own; a stage pays for
// its messages, those it sends and those it receives, over its own group's link to other nodes.
// One island, island_of(), where all are alike or more than kMaxIslands.
std::vector<Island> islands_of(const Devices& devices);
// Of each group of the devices, the number of its island.
std::vector<int> island_numbers(const Devices& devices);
// place(), each stage on devices of its island.
void place_on_islands(const graph::Graph& graph, const Devices& devices,
                      std::span<const int> islands, Plan& plan);

}  // namespace ductile::plan
