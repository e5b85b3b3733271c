#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/base/testing.h"
#include "ductile/graph/builders.h"
#include "ductile/plan/planner.h"

namespace ductile::plan {
namespace {

using testing::code_of;

// A chain of single-operator stages of these sizes.
struct PlacementCase {
  graph::Graph graph;
  Plan plan;
};
PlacementCase chain_of(const std::vector<int>& sizes, const std::vector<double>& bytes) {
  PlacementCase c;
  c.graph.name = "chain";
  for (size_t i = 0; i < sizes.size(); ++i) {
    graph::Op& op = c.graph.ops.emplace_back();
    op.name = fmt::format("op{}", i);
    op.cost.forward.per_sample = 1;
    if (i > 0) {
      c.graph.edges.push_back({static_cast<OpId>(i - 1), static_cast<OpId>(i), 0, bytes[i - 1]});
    }
    Stage& s = c.plan.stages.emplace_back();
    s.ops = {static_cast<OpId>(i)};
    s.replicas = sizes[i];
    s.micro_batch = s.in_flight = 16;
  }
  c.plan.batch = 16;
  return c;
}

std::set<int> nodes_of(const Devices& devices, const Stage& s) {
  std::set<int> out;
  for (int d : s.devices) out.insert(devices.node(d));
  return out;
}

TEST(Placement, StagesWithMostTrafficMeetOnANode) {
  // Two a node: of four stages in a row those pairs meet between which most flows.
  PlacementCase c = chain_of({1, 1, 1, 1}, {100, 1, 100});
  const Devices devices = uniform_devices(4, 2, {});
  place(c.graph, devices, c.plan);
  EXPECT_EQ(nodes_of(devices, c.plan.stages[0]), nodes_of(devices, c.plan.stages[1]));
  EXPECT_EQ(nodes_of(devices, c.plan.stages[2]), nodes_of(devices, c.plan.stages[3]));
  EXPECT_NE(nodes_of(devices, c.plan.stages[1]), nodes_of(devices, c.plan.stages[2]));
}

TEST(Placement, AStageThatFitsANodeStaysInOne) {
  PlacementCase c = chain_of({1, 4, 3, 4, 2, 2}, {1, 1, 1, 1, 1});
  const Devices devices = uniform_devices(16, 4, {});
  place(c.graph, devices, c.plan);
  for (const Stage& s : c.plan.stages) EXPECT_EQ(nodes_of(devices, s).size(), 1u);
}

TEST(Placement, ALargeStageTakesWholeNodesFirst) {
  PlacementCase c = chain_of({2, 10, 4}, {1, 1});
  const Devices devices = uniform_devices(16, 4, {});
  place(c.graph, devices, c.plan);
  EXPECT_EQ(nodes_of(devices, c.plan.stages[1]).size(), 3u);
  EXPECT_EQ(nodes_of(devices, c.plan.stages[0]).size(), 1u);
  EXPECT_EQ(nodes_of(devices, c.plan.stages[2]).size(), 1u);
}

TEST(Placement, TheHeaviestStageTakesTheFastestDevices) {
  PlacementCase c = chain_of({1, 1, 1}, {1, 1});
  c.graph.ops[1].cost.forward.per_sample = 5;
  DeviceGroup slow, fast;
  slow.name = "slow";
  slow.nodes = 2;
  fast.name = "fast";
  fast.speed = 4;
  const Devices devices({slow, fast});
  place(c.graph, devices, c.plan);
  EXPECT_EQ(devices.group(c.plan.stages[1].devices[0]).name, "fast");
}

TEST(Placement, EveryDeviceIsGivenOnceAndTooFewAreAnError) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::vector<int> sizes(1 + rng.below(8));
    for (int& s : sizes) s = 1 << rng.below(4);
    PlacementCase c = chain_of(sizes, std::vector<double>(sizes.size(), 1));
    const int needed = std::accumulate(sizes.begin(), sizes.end(), 0);
    const int per_node = 1 << rng.below(4);
    const int nodes = (needed + per_node - 1) / per_node + static_cast<int>(rng.below(2));
    const Devices devices = uniform_devices(nodes * per_node, per_node, {});
    place(c.graph, devices, c.plan);
    check(c.plan, c.graph, devices);
    std::set<int> seen;
    for (const Stage& s : c.plan.stages) {
      EXPECT_EQ(static_cast<int>(s.devices.size()), s.num_devices());
      seen.insert(s.devices.begin(), s.devices.end());
    }
    EXPECT_EQ(static_cast<int>(seen.size()), needed);
    if (needed == 1) continue;
    const Devices few = uniform_devices(needed - 1, 1, {});
    EXPECT_EQ(code_of([&] { place(c.graph, few, c.plan); }), ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace ductile::plan
