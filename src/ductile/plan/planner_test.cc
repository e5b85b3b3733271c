#include "ductile/plan/planner.h"

#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/testing.h"
#include "ductile/graph/builders.h"
#include "ductile/plan/baselines.h"
#include "ductile/plan/brute_force_impl.h"

namespace ductile::plan {
namespace {

using testing::code_of;

TEST(Planner, EqualsTheBruteForceOptimumOnFiveThousandSmallGraphs) {
  int feasible = 0;
  int graphs_of_stages = 0;
  int unequal = 0;
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(seed);
    const SmallCase c = small_case(seed);
    const double best = brute_force(c.graph, c.devices, c.options);
    const Planned planned = make_plan(c.graph, c.devices, c.options);
    ASSERT_EQ(planned.feasible, std::isfinite(best));
    if (!planned.feasible) continue;
    ++feasible;
    ASSERT_NEAR(planned.formula_seconds, best, 1e-8 * best);
    ASSERT_LE(planned.lower_bound, best * (1 + 1e-12));
    ASSERT_LE(planned.gap, 1e-8);
    // The plan is what was promised.
    check(planned.plan, c.graph, c.devices);
    const double again = formula_seconds(c.graph, c.devices, planned.plan, c.options.objective);
    ASSERT_LE(again, best * (1 + 1e-8));
    if (c.devices.is_uniform()) {
      ASSERT_NEAR(again, best, 1e-8 * best);
    } else {
      ++unequal;  // where stages lie across groups, they count as the least of them
    }
    const Timeline line = evaluate(c.graph, c.devices, planned.plan);
    ASSERT_TRUE(line.fits());
    const StageGraph stages = stage_graph(c.graph, planned.plan);
    for (const auto& readers : stages.successors) {
      if (readers.size() > 1) {
        ++graphs_of_stages;
        break;
      }
    }
  }
  EXPECT_GT(feasible, 3000);
  EXPECT_GT(graphs_of_stages, 200);
  EXPECT_GT(unequal, 200);
}

}  // namespace
}  // namespace ductile::plan
