#include "ductile/sched/cluster.h"

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"

namespace ductile::sched {
namespace {

constexpr const char* kFile = R"(
[[nodes]]
type = "aws"
count = 6
devices = 4

[[nodes]]
type = "rtx"
count = 3
devices = 8
cluster = "b"
region = "east"
spot = true

[[teams]]
id = 2
share = 0.5
quota = 7
)";

TEST(Cluster, IsAViewOfTheClusterFile) {
  const spec::Cluster file = spec::parse_cluster(kFile, "c.toml");
  const Cluster cluster = cluster_of(file);
  cluster.check();
  EXPECT_EQ(cluster.nodes(), 9);
  EXPECT_EQ(cluster.usable_devices(), 48);
  EXPECT_EQ(cluster.usable_devices(cluster.type_id("rtx")), 24);
  EXPECT_EQ(cluster.regions, (std::vector<std::string>{"home", "east"}));
  EXPECT_EQ(cluster.cluster_region[cluster.node_cluster[8]], 1);
  EXPECT_TRUE(cluster.node_spot[8]);
  EXPECT_FALSE(cluster.node_spot[0]);
  EXPECT_EQ(cluster.teams, (std::vector<Team>{{2, 0.5, 7}}));
  // Nodes have the same numbers in both.
  int32_t node = 0;
  for (const NodeShare& share : spec::whole(file)) {
    EXPECT_EQ(share.node, node);
    EXPECT_EQ(share.devices, cluster.node_devices[node++]);
  }
  EXPECT_EQ(node, cluster.nodes());
}

TEST(Cluster, WhatIsReportedOfItIsReadAgain) {
  Cluster cluster = cluster_of(spec::parse_cluster(kFile, "c.toml"));
  cluster.teams.push_back({3, 0, 0});
  const Cluster again = cluster_of(spec::cluster_from_json(to_json(cluster), "c.json"));
  EXPECT_EQ(again.node_type, cluster.node_type);
  EXPECT_EQ(again.node_devices, cluster.node_devices);
  EXPECT_EQ(again.node_cluster, cluster.node_cluster);
  EXPECT_EQ(again.node_spot, cluster.node_spot);
  EXPECT_EQ(again.teams, cluster.teams);
}

TEST(Cluster, NodesThatAreDownCountForNothing) {
  Cluster cluster = homogeneous_cluster(3, 4);
  cluster.node_up[1] = 0;
  EXPECT_EQ(cluster.usable_devices(), 8);
  EXPECT_EQ(cluster.usable(1), 0);
  EXPECT_EQ(cluster.nodes_of_type(0), 3);
  EXPECT_THROW(cluster.type_id("v100"), Error);
}

TEST(Cluster, AMillionDevicesStaySmall) {
  Cluster cluster;
  for (int region = 0; region < 20; ++region)
    cluster.add_nodes("a100", 6250, 8, "main", "region-" + std::to_string(region));
  EXPECT_EQ(cluster.usable_devices(), 1'000'000);
  EXPECT_EQ(cluster.clusters.size(), 20u);
}

}  // namespace
}  // namespace ductile::sched
