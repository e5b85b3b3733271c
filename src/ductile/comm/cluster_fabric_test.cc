#include "ductile/comm/cluster_fabric.h"

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile::comm {
namespace {

spec::Cluster two_groups() {
  spec::Cluster cluster;
  cluster.groups = {
      {.type = "t4", .count = 3, .devices = 4, .intra = {1e9, 1e-6}, .inter = {1e8, 5e-5}},
      {.type = "a100", .count = 2, .devices = 8, .intra = {9e9, 2e-6}, .inter = {4e8, 1e-5}}};
  return cluster;
}

TEST(ClusterFabric, HasTheSlowestLinksThatTakePart) {
  const spec::Cluster cluster = two_groups();
  const spec::Allocation alike{{0, 2}, {2, 2}}, mixed{{4, 8}, {1, 3}};
  const Fabric one = fabric_of(cluster, alike), two = fabric_of(cluster, mixed);
  EXPECT_EQ(one.ranks, 4);
  EXPECT_EQ(one.ranks_per_host, 2);
  EXPECT_TRUE(one.host.empty());
  EXPECT_EQ(one.inside.bandwidth, 1e9);
  EXPECT_EQ(one.between.bandwidth, 2e8);
  EXPECT_EQ(one.between.latency, 5e-5);
  EXPECT_EQ(two.ranks, 11);
  EXPECT_EQ(two.host, (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(two.topology().num_ranks, 11);
  EXPECT_EQ(two.inside.bandwidth, 1e9);
  EXPECT_EQ(two.inside.latency, 2e-6);
  EXPECT_EQ(two.between.bandwidth, 3e8);
  EXPECT_THROW(fabric_of(cluster, {}), Error);
  EXPECT_THROW(fabric_of(cluster, spec::Allocation{{5, 1}}), Error);
}

TEST(ClusterFabric, AMeasuredOneRefinesTheLinksThatTookPartAndNoOther) {
  const spec::Cluster cluster = two_groups();
  const spec::Allocation held{{0, 4}, {1, 4}};
  Fabric measured = fabric_of(cluster, held);
  EXPECT_EQ(refined(cluster, held, measured), cluster);  // as it was declared
  measured.inside.bandwidth = 2e9;
  measured.between.bandwidth = 9e9;
  measured.between.sustained = 2e8;
  measured.between.latency = 1e-3;
  measured.rails = 2;
  const spec::Cluster better = refined(cluster, held, measured);
  EXPECT_EQ(better.groups[0].intra.bandwidth, 2e9);
  EXPECT_EQ(better.groups[0].inter, (spec::ClusterLink{1e8, 1e-3}));
  EXPECT_EQ(better.groups[1], cluster.groups[1]);
  const spec::Allocation apart{{0, 1}, {1, 1}}, alone{{0, 2}};
  EXPECT_EQ(refined(cluster, apart, fabric_of(cluster, apart)).groups[0].intra,
            cluster.groups[0].intra);
  Fabric other = fabric_of(cluster, alone);
  other.between.bandwidth = 1;
  EXPECT_EQ(refined(cluster, alone, other).groups[0].inter, cluster.groups[0].inter);
  EXPECT_THROW(refined(cluster, alone, measured), Error);
}

}  // namespace
}  // namespace ductile::comm
