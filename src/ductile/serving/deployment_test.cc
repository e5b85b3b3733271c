#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/serving/model.h"
#include "ductile/serving/testing/small_model.h"

namespace ductile::serving {
namespace {

using testing::Quirk;

std::vector<int64_t> sizes_of(Quirk quirk, int64_t max_batch) {
  return deploy(testing::make_small_model({.quirk = quirk}, 1), max_batch).sizes;
}

TEST(Deployment, RunsEverySizeWhereBitsDoNotDependOnIt) {
  EXPECT_EQ(sizes_of(Quirk::none, 8), (std::vector<int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(sizes_of(Quirk::none, 6), (std::vector<int64_t>{1, 2, 4, 6}));
  EXPECT_EQ(sizes_of(Quirk::none, 1), (std::vector<int64_t>{1}));
}

TEST(Deployment, FillsASingleSampleUpWhereItsBitsWouldBeOthers) {
  EXPECT_EQ(sizes_of(Quirk::alone_differs, 8), (std::vector<int64_t>{2, 4, 8}));
}

TEST(Deployment, LeavesOutSizesWhoseEdgesDiffer) {
  EXPECT_EQ(sizes_of(Quirk::edges_differ, 7), (std::vector<int64_t>{2, 4}));
}

// Run forwards alone, these sizes seem to agree: a sample is at the same kind of place in each.
TEST(Deployment, LeavesOutSizesWhosePlacesDiffer) {
  EXPECT_EQ(sizes_of(Quirk::places_differ, 8), (std::vector<int64_t>{1}));
}

TEST(Deployment, RunsSamplesOneByOneWhereNothingElseIsExact) {
  EXPECT_EQ(sizes_of(Quirk::always_differs, 8), (std::vector<int64_t>{1}));
}

TEST(Deployment, ChoosesTheSmallestSizeThatHoldsTheSamples) {
  const Deployment deployment = deploy(testing::make_small_model({}, 1), 6);
  EXPECT_EQ(deployment.size_for(1), 1);
  EXPECT_EQ(deployment.size_for(3), 4);
  EXPECT_EQ(deployment.size_for(5), 6);
  EXPECT_THROW(deployment.size_for(7), Error);
}

}  // namespace
}  // namespace ductile::serving
