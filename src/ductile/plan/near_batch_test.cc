// Batches whose divisors leave no good micro-batches.
#include "ductile/plan/near_batch.h"

#include <optional>

#include <gtest/gtest.h>

#include "ductile/graph/builders.h"
#include "ductile/plan/devices.h"
#include "ductile/spec/cluster.h"

namespace ductile::plan {
namespace {

// Four devices that hold the weights of all of it, and little more.
struct Tight {
  Devices devices = devices_of(
      spec::parse_cluster("[[nodes]]\ntype = \"x\"\ndevices = 4\nmemory = \"450 MB\"\n", "test"));
  graph::Graph graph = graph::build_graph("candle:2", devices.groups().front().model);

  std::optional<NearBatch> near(const PlannerOptions& options, double* seconds = nullptr) const {
    const Planned planned = make_plan(graph, devices, options);
    EXPECT_TRUE(planned.feasible);
    if (seconds != nullptr) *seconds = planned.simulated_seconds;
    return near_batch(graph, devices, options, planned);
  }
};

TEST(NearBatch, OfAPrimeNumberIsTheNearestThatDividesWell) {
  PlannerOptions options;
  options.batch = 1009;
  double seconds = 0;
  const auto near = Tight().near(options, &seconds);
  ASSERT_TRUE(near.has_value());
  EXPECT_EQ(near->micro_batch, 1);
  EXPECT_EQ(near->next, 1009);
  EXPECT_EQ(near->batch, 1024);
  EXPECT_LT(near->seconds, seconds);
}

TEST(NearBatch, IsNotSoughtWhereNoTimeIsLeft) {
  PlannerOptions options;
  options.batch = 1009;
  const Tight tight;
  const Planned planned = make_plan(tight.graph, tight.devices, options);
  for (const double left : {-1.0, 0.0, 0.01}) {
    options.time_limit = left;
    EXPECT_FALSE(near_batch(tight.graph, tight.devices, options, planned).has_value()) << left;
  }
}

TEST(NearBatch, IsNotSoughtWhereDivisorsAreNotWhatIsLacking) {
  PlannerOptions options;
  options.batch = 1024;
  EXPECT_FALSE(Tight().near(options).has_value()) << "it has many";
  options.batch = 1009;
  options.micro_batches = {1};
  EXPECT_FALSE(Tight().near(options).has_value()) << "the size was asked for";
  options.micro_batches.clear();
  options.batch = 31;
  EXPECT_FALSE(Tight().near(options).has_value()) << "few micro-batches";
}

}  // namespace
}  // namespace ductile::plan
