// What an infeasible request is told would help.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/graph/builders.h"
#include "ductile/plan/report.h"
#include "ductile/plan/testing/brute_force.h"

namespace ductile::plan {
namespace {

TEST(Advice, TheNumbersDoAndLessDoesNot) {
  int devices_named = 0, memory_named = 0;
  for (uint64_t seed = 0; seed < 3000 && (devices_named < 60 || memory_named < 120); ++seed) {
    SCOPED_TRACE(seed);
    SmallCase c = small_case(seed);
    if (c.graph.ops.size() > 7) continue;
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
