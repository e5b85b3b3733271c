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
)";

TEST(Cluster, ReadsAFile) {
  const Cluster cluster = parse_cluster(kFile, "c.toml");
  cluster.check();
  EXPECT_EQ(cluster.nodes(), 9);
  EXPECT_EQ(cluster.usable_devices(), 48);
  EXPECT_EQ(cluster.usable_devices(cluster.type_id("rtx")), 24);
  EXPECT_EQ(cluster.regions, (std::vector<std::string>{"home", "east"}));
  EXPECT_EQ(cluster.cluster_region[cluster.node_cluster[8]], 1);
  EXPECT_TRUE(cluster.node_spot[8]);
  EXPECT_FALSE(cluster.node_spot[0]);
}

TEST(Cluster, JsonIsTheSameTree) {
  const Cluster cluster = parse_cluster(kFile, "c.toml");
  TempFolder folder;
  write_file_atomic(folder.path() / "c.json", to_json(cluster).dump());
  const Cluster again = read_cluster(folder.path() / "c.json");
  EXPECT_EQ(again.node_type, cluster.node_type);
  EXPECT_EQ(again.node_devices, cluster.node_devices);
  EXPECT_EQ(again.node_cluster, cluster.node_cluster);
  EXPECT_EQ(again.node_spot, cluster.node_spot);
}

TEST(Cluster, ErrorsNameTheLine) {
  const auto text_of = [](const char* text) {
    try {
      parse_cluster(text, "c.toml");
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.message();
    }
    return std::string("no error");
  };
  EXPECT_NE(text_of("\n[[nodes]]\ntype = \"a\"\ncuont = 3\n")
                .find("c.toml:2: field \"cuont\" is not known; did you mean \"count\"?"),
            std::string::npos);
  EXPECT_NE(text_of("[[nodes]]\ncount = 3\n").find("c.toml:1: type is missing"), std::string::npos);
  EXPECT_NE(text_of("[[nodes]]\ntype = \"a\"\ndevices = 0\n").find("1 to 1024"), std::string::npos);
  EXPECT_NE(text_of("nodes = 3").find("[[nodes]]"), std::string::npos);
  EXPECT_NE(text_of("[[nodes]\n").find("c.toml:1"), std::string::npos);
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
