// The devices for which a run is planned anew whose workers are lost.
#include "ductile/cli/devices_left.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/server/hosts.h"
#include "ductile/spec/cluster.h"

namespace ductile::cli {
namespace {

using Names = std::vector<std::string>;

constexpr const char* kBigAndSmall =
    "[[nodes]]\ntype = \"big\"\ndevices = 2\nmemory = \"64 GB\"\nspeed = 4\nhosts = [\"one\"]\n"
    "addresses = [\"10.0.0.1\"]\nintra_bandwidth = \"90 GB/s\"\ninter_bandwidth = \"9 GB/s\"\n"
    "[[nodes]]\ntype = \"small\"\ndevices = 4\nmemory = \"1 GB\"\nspeed = 2\n"
    "hosts = [\"two\", \"three\"]\naddresses = [\"10.0.0.2\", \"10.0.0.3\"]\n"
    "intra_bandwidth = \"80 GB/s\"\ninter_bandwidth = \"1 GB/s\"\n";

spec::Cluster left_of(const char* cluster, const WorkersLeft& left, const std::string& hosts = "") {
  server::HostSetup setup;
  if (!hosts.empty()) setup.hosts = server::parse_hosts(hosts);
  const spec::Cluster out = devices_left(spec::parse_cluster(cluster, "test"), left, setup);
  EXPECT_EQ(spec::parse_cluster(spec::to_toml(out), "left"), out)
      << "it is written for the planner";
  return out;
}

TEST(DevicesLeft, AreThoseOfTheHostsThatAreThere) {
  const spec::Cluster left = left_of(kBigAndSmall, {2, {"three", "two"}}, "one,two,three");
  ASSERT_EQ(left.groups.size(), 1U);
  const spec::NodeGroup& group = left.groups.front();
  EXPECT_EQ(group.type, "small");
  EXPECT_EQ(group.count, 2);
  EXPECT_EQ(group.devices, 1) << "a worker on each";
  EXPECT_EQ(group.memory, 1e9);
  EXPECT_EQ(group.speed, 2);
  EXPECT_EQ(group.inter.bandwidth, 1e9);
  EXPECT_EQ(group.hosts, (Names{"two", "three"}));
  EXPECT_EQ(group.addresses, (Names{"10.0.0.2", "10.0.0.3"}));
  EXPECT_EQ(least_memory(left), 1e9);
}

TEST(DevicesLeft, OfUnlikeNumbersAreGroupsOfTheirOwn) {
  const WorkersLeft workers{6, {"one", "one", "one", "three", "two", "two"}};
  const spec::Cluster left = left_of(kBigAndSmall, workers, "one,two,three");
  ASSERT_EQ(left.groups.size(), 3U);
  EXPECT_EQ(left.groups[0].devices, 2) << "the host has no more";
  EXPECT_EQ(left.groups[0].memory, 64e9);
  EXPECT_EQ(left.groups[1].hosts, (Names{"two"}));
  EXPECT_EQ(left.groups[1].devices, 2);
  EXPECT_EQ(left.groups[2].hosts, (Names{"three"}));
  EXPECT_EQ(left.groups[2].devices, 1);
}

TEST(DevicesLeft, OfNodesWithoutNamesAreThoseOfTheHostsInTheirPlace) {
  constexpr const char* kThree = "[[nodes]]\ntype = \"cpu\"\ncount = 3\ndevices = 2\n";
  const spec::Cluster left = left_of(kThree, {2, {"c", "c"}}, "a,b,c");
  ASSERT_EQ(left.groups.size(), 1U);
  EXPECT_EQ(left.groups[0].count, 1);
  EXPECT_EQ(left.groups[0].devices, 2);
  EXPECT_EQ(left.groups[0].hosts, (Names{"c"}));
}

TEST(DevicesLeft, AreThePoorestWhereNobodyKnowsWhichTheyAre) {
  for (const WorkersLeft& workers : {WorkersLeft{3}, WorkersLeft{3, {"one", "one", "other"}}}) {
    const spec::Cluster left = left_of(kBigAndSmall, workers, "one,two");
    EXPECT_EQ(left.devices(), 3);
    EXPECT_EQ(left.nodes(), 2);
    for (const spec::NodeGroup& group : left.groups) {
      EXPECT_EQ(group.memory, 1e9);
      EXPECT_EQ(group.speed, 2);
      EXPECT_EQ(group.intra.bandwidth, 1e9) << "they may be on two hosts";
      EXPECT_TRUE(group.hosts.empty());
    }
  }
  EXPECT_EQ(left_of(kBigAndSmall, {3}).nodes(), 1) << "all workers are on this machine";
  EXPECT_EQ(left_of(kBigAndSmall, {99}, "one,two,three").devices(), 10) << "there are no more";
}

TEST(DevicesLeft, OfOneNodeKeepItsName) {
  constexpr const char* kOne =
      "[[nodes]]\ntype = \"cpu\"\ndevices = 4\nhosts = [\"here\"]\naddresses = [\"10.0.0.1\"]\n";
  const spec::Cluster left = left_of(kOne, {3});
  EXPECT_EQ(left.devices(), 3);
  EXPECT_EQ(left.groups[0].hosts, (Names{"here"}));
  EXPECT_EQ(left.groups[0].addresses, (Names{"10.0.0.1"}));
}

TEST(DevicesLeft, HostsThatAreGoneAreLeftOut) {
  server::HostSetup setup;
  setup.hosts = server::parse_hosts("a:2,b,c:1");
  EXPECT_EQ(hosts_left(setup, {}), setup);
  const server::HostSetup left = hosts_left(setup, {"a", "a", "c"});
  ASSERT_EQ(left.hosts.size(), 2U);
  EXPECT_EQ(left.hosts[0].places, 2);
  EXPECT_EQ(left.hosts[1].name, "c");
}

}  // namespace
}  // namespace ductile::cli
