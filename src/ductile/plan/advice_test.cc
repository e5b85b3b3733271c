// What an infeasible request is told would help.
#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/graph/builders.h"
#include "ductile/plan/report.h"
#include "ductile/plan/testing/brute_force.h"
#include "ductile/plan/testing/counted_graph.h"

namespace ductile::plan {
namespace {

TEST(Advice, TheNumbersDoAndLessDoesNot) {
  int devices_named = 0, memory_named = 0;
  for (uint64_t seed = 0; seed < 3000 && (devices_named < 60 || memory_named < 120); ++seed) {
    SCOPED_TRACE(seed);
    SmallCase c = small_case(seed);
    if (c.graph.ops.size() > 7 || !c.devices.is_uniform()) continue;
    DeviceGroup group = c.devices.groups().front();
    const int num = c.devices.size();
    const int per_node = group.devices_per_node;
    const Planned p = make_plan(c.graph, c.devices, c.options);
    if (p.feasible) {
      EXPECT_EQ(p.memory_needed, 0);
      EXPECT_EQ(p.devices_needed, 0);
      continue;
    }
    const auto feasible = [&](int devices, double memory) {
      DeviceGroup other = group;
      other.memory = memory;
      if (devices % per_node != 0) return true;  // not to be had
      return make_plan(c.graph, uniform_devices(devices, per_node, other), c.options).feasible;
    };
    if (p.devices_needed > 0 && p.devices_needed % per_node == 0) {
      ++devices_named;
      EXPECT_GT(p.devices_needed, num);
      EXPECT_TRUE(feasible(p.devices_needed, group.memory));
      const int fewer = p.devices_needed - per_node;
      if (fewer > num) {
        EXPECT_FALSE(feasible(fewer, group.memory));
      }
    }
    if (p.memory_needed > 0) {
      ++memory_named;
      EXPECT_GT(p.memory_needed, group.memory);
      EXPECT_TRUE(feasible(num, p.memory_needed));
      const double less = p.memory_needed * 0.98;  // it is found to one in a hundred
      if (less > group.memory) {
        EXPECT_FALSE(feasible(num, less));
      }
    }
  }
  EXPECT_GE(devices_named, 20);
  EXPECT_GE(memory_named, 60);
}

// Those that have more than the figure keep it.
Devices with_at_least(const Devices& devices, double memory) {
  std::vector<DeviceGroup> groups = devices.groups();
  for (DeviceGroup& group : groups) group.memory = std::max(group.memory, memory);
  return Devices(std::move(groups));
}

TEST(Advice, OfGroupsTheMemoryDoesAndLessDoesNot) {
  int named = 0;
  for (uint64_t seed = 0; seed < 5000 && named < 60; ++seed) {
    SCOPED_TRACE(seed);
    const SmallCase c = small_case(seed);
    if (c.graph.ops.size() > 7 || c.devices.is_uniform()) continue;
    const Planned p = make_plan(c.graph, c.devices, c.options);
    if (p.feasible || p.memory_needed == 0) continue;
    ++named;
    double least = p.memory_needed;
    for (const DeviceGroup& group : c.devices.groups()) least = std::min(least, group.memory);
    EXPECT_LT(least, p.memory_needed);
    const auto feasible = [&](double memory) {
      return make_plan(c.graph, with_at_least(c.devices, memory), c.options).feasible;
    };
    EXPECT_TRUE(feasible(p.memory_needed));
    const double less = p.memory_needed * 0.98;  // it is found to one in a hundred
    if (less > least) {
      EXPECT_FALSE(feasible(less));
    }
  }
  EXPECT_GE(named, 10);
}

TEST(Advice, NamesTheMemoryOfEachGroupAndWhatTheLeastOneLacks) {
  const graph::Graph g = graph::build_graph("candle");
  DeviceGroup big, small;
  big.name = "big", big.memory = 2e9;
  small.name = "small", small.memory = 1e6, small.devices_per_node = 2;
  PlannerOptions options;
  options.batch = 64;
  for (const bool big_first : {true, false}) {  // neither is all that is looked at
    SCOPED_TRACE(big_first);
    const Devices devices(big_first ? std::vector{big, small} : std::vector{small, big});
    const Report r = make_report(g, devices, options.objective, make_plan(g, devices, options));
    ASSERT_FALSE(r.planned.feasible);
    ASSERT_GT(r.planned.memory_needed, small.memory);
    const std::string text = advice(r);
    for (const char* part : {"1.9 GiB on 1 device (big)", "977 KiB on 2 devices (small)",
                             "enough would be", "more than small has"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    EXPECT_EQ(text.find("neither"), std::string::npos) << text;
    EXPECT_TRUE(make_plan(g, with_at_least(devices, r.planned.memory_needed), options).feasible);
  }
}

// The judge counts a receive for each message, too: the figure of the formula alone may not do.
TEST(Advice, OfCountedBytesTheMemoryIsWhatThePlannerTakes) {
  int named = 0;
  for (uint64_t seed = 0; seed < 200 && named < 20; ++seed) {
    SCOPED_TRACE(seed);
    SmallCase c = small_case(seed);
    if (c.graph.ops.size() > 5) continue;
    Rng rng(seed, 74);
    count_bytes(c.graph, rng);
    for (graph::Edge& e : c.graph.edges) e.fused = false;  // of any two, which a graph may not have
    c.options.evaluate = true;
    const Devices devices = [&] {
      std::vector<DeviceGroup> groups = c.devices.groups();
      for (DeviceGroup& group : groups) group.memory = 50;
      return Devices(std::move(groups));
    }();
    const Planned p = make_plan(c.graph, devices, c.options);
    if (p.feasible || p.memory_needed == 0) continue;
    ++named;
    EXPECT_TRUE(make_plan(c.graph, with_at_least(devices, p.memory_needed), c.options).feasible);
  }
  EXPECT_GE(named, 10);
}

TEST(Advice, AFigureOfMemoryDoesAsItIsPrinted) {
  Report r;
  DeviceGroup group;
  group.memory = 1e6;
  r.devices = uniform_devices(2, 2, group);
  r.planned.memory_needed = 1'760'000'000;  // 1.639 GiB
  const std::string text = advice(r);
  EXPECT_NE(text.find("enough would be 1.7 GiB of memory on each device (1.7 GiB more than there "
                      "is)"),
            std::string::npos)
      << text;
  r.planned.memory_needed = 300.2 * (1 << 20);
  EXPECT_NE(advice(r).find("would be 301 MiB of"), std::string::npos) << advice(r);
  r.planned.memory_needed = 3 * (1 << 20);
  EXPECT_NE(advice(r).find("would be 3 MiB of"), std::string::npos) << advice(r);
}

TEST(Advice, AGptThatIsTooLargeIsToldBoth) {
  const graph::Graph g = graph::build_graph("gpt:8,1024,16,128,1000");
  DeviceGroup group;
  group.memory = 300e6;
  PlannerOptions options;
  options.batch = 16;
  const Devices one = uniform_devices(1, 1, group);
  const Report r = make_report(g, one, options.objective, make_plan(g, one, options));
  ASSERT_FALSE(r.planned.feasible);
  ASSERT_GT(r.planned.devices_needed, 1);
  ASSERT_GT(r.planned.memory_needed, group.memory);
  const std::string text = advice(r);
  EXPECT_NE(text.find(fmt::format("or {} devices of", r.planned.devices_needed)), std::string::npos)
      << text;
  EXPECT_TRUE(make_plan(g, uniform_devices(r.planned.devices_needed, 1, group), options).feasible);
  EXPECT_FALSE(
      make_plan(g, uniform_devices(r.planned.devices_needed - 1, 1, group), options).feasible);
  group.memory = r.planned.memory_needed;
  EXPECT_TRUE(make_plan(g, uniform_devices(1, 1, group), options).feasible);
}

TEST(Advice, AGivenPlanThatIsTooLargeIsToldWhichStageLacksWhat) {
  const graph::Graph g = graph::build_graph("chain:4");
  DeviceGroup group;
  PlannerOptions options;
  options.batch = 16;
  const Devices two = uniform_devices(2, 1, group);
  const Planned planned = make_plan(g, two, options);
  ASSERT_TRUE(planned.feasible);
  Report r = make_report(g, two, planned.plan);
  ASSERT_TRUE(r.timeline.fits());
  r.timeline.peak_memory = {3 << 20, 9 << 20, 5 << 20, 1 << 20};
  r.timeline.memory_limit = {2 << 20, 4 << 20, 6 << 20, 1 << 20};
  const std::string text = misfit(r);
  EXPECT_NE(text.find("stage 1 needs 9 MiB on each of its devices, which have 4 MiB, and "
                      "stage 0 needs too much as well; "),
            std::string::npos)
      << text;
  EXPECT_TRUE(text.ends_with("or take devices with 5 MiB more")) << text;
}

}  // namespace
}  // namespace ductile::plan
