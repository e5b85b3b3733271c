#include "ductile/server/core_map.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>
#include <hwloc.h>

#include "ductile/base/machine.h"

namespace ductile::server {
namespace {

std::vector<int> first_threads(int count) {
  std::vector<int> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

CoreMap of(const std::string& synthetic, const std::vector<int>& usable) {
  return core_map(usable, {.synthetic = synthetic});
}

std::vector<std::vector<int>> threads_of(const CoreMap& map) {
  std::vector<std::vector<int>> out;
  for (const Core& core : map.cores) out.push_back(core.threads);
  return out;
}

using Threads = std::vector<std::vector<int>>;

TEST(CoreMap, ACoreHasItsHardwareThreads) {
  const CoreMap map = of("numa:2 core:2 pu:2", first_threads(8));
  EXPECT_EQ(map.trouble, "");
  EXPECT_EQ(threads_of(map), (Threads{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  ASSERT_EQ(map.nodes.size(), 2u);
  EXPECT_EQ(map.nodes[1].number, 1);
  EXPECT_EQ(map.cores[1].node, 0u);
  EXPECT_EQ(map.cores[2].node, 1u);
  EXPECT_EQ(map.num_threads(), 8);
}

TEST(CoreMap, ShowsWhatTheProcessMayUseAlone) {
  const CoreMap map = of("numa:2 core:2 pu:2", {1, 2, 3, 6});
  EXPECT_EQ(map.trouble, "");
  EXPECT_EQ(threads_of(map), (Threads{{1}, {2, 3}, {6}}));
  const CoreMap one = of("numa:2 core:2 pu:2", {4});
  ASSERT_EQ(one.nodes.size(), 1u);
  EXPECT_EQ(one.nodes[0].number, 1) << "the kernel's, not a place in a list";
}

// Some firmware numbers the processors of two sockets in turn.
TEST(CoreMap, CoresOfANodeFollowEachOtherHoweverTheyAreNumbered) {
  const CoreMap map = of("numa:2(indexes=0,1) core:2 pu:1(indexes=0,2,1,3)", first_threads(4));
  EXPECT_EQ(map.trouble, "");
  EXPECT_EQ(threads_of(map), (Threads{{0}, {2}, {1}, {3}}));
}

TEST(CoreMap, NodesOfOneSocketAreNearer) {
  const CoreMap map = of("package:2 numa:2 core:1 pu:1", first_threads(4));
  ASSERT_EQ(map.nodes.size(), 4u);
  EXPECT_LT(map.distances[0][0], map.distances[0][1]);
  EXPECT_LT(map.distances[0][1], map.distances[0][2]);
  EXPECT_EQ(map.distances[0][2], map.distances[0][3]);
}

TEST(CoreMap, ReadsWhatHwlocHasExported) {
  const TempFolder folder;
  const fs::path file = folder.path() / "machine.xml";
  hwloc_topology_t topology = nullptr;
  ASSERT_EQ(hwloc_topology_init(&topology), 0);
  ASSERT_EQ(hwloc_topology_set_synthetic(topology, "package:2 numa:1 core:2 pu:2"), 0);
  ASSERT_EQ(hwloc_topology_load(topology), 0);
  ASSERT_EQ(hwloc_topology_export_xml(topology, file.c_str(), 0), 0);
  hwloc_topology_destroy(topology);
  const CoreMap map = core_map(first_threads(8), {.xml = file});
  EXPECT_EQ(map.trouble, "");
  EXPECT_EQ(map.cores.size(), 4u);
  EXPECT_EQ(map.nodes.size(), 2u);
}

void expect_plain(const CoreMap& map, const std::vector<int>& usable, const std::string& why) {
  EXPECT_NE(map.trouble.find(why), std::string::npos) << map.trouble;
  ASSERT_EQ(map.cores.size(), usable.size());
  for (size_t i = 0; i < usable.size(); ++i)
    EXPECT_EQ(map.cores[i].threads, std::vector<int>{usable[i]});
  EXPECT_EQ(map.nodes.size(), 1u);
  EXPECT_EQ(map.distances.size(), 1u);
}

TEST(CoreMap, WithoutHwlocTheKernelsWordCounts) {
  const std::vector<int> usable = {0, 1, 5};
  expect_plain(of("no description", usable), usable, "hwloc could not understand");
  const TempFolder folder;
  expect_plain(core_map(usable, {.xml = folder.path() / "missing.xml"}), usable, "hwloc could not");
  write_file_atomic(folder.path() / "torn.xml", "<?xml version=\"1.0\"?><topology><object");
  expect_plain(core_map(usable, {.xml = folder.path() / "torn.xml"}), usable, "hwloc could not");
}

TEST(CoreMap, ADescriptionOfAnotherMachineIsNotBelieved) {
  expect_plain(of("core:2 pu:2", {2, 3, 4, 9}), {2, 3, 4, 9}, "does not know the processors 4, 9");
}

TEST(CoreMap, NothingIsKnownWhereTheKernelSaysNothing) {
  const CoreMap map = core_map({}, {});
  EXPECT_TRUE(map.cores.empty());
  EXPECT_NE(map.trouble, "");
}

TEST(CoreMap, ThisMachineHasEachUsableThreadOnce) {
  const CoreMap map = core_map();
  std::vector<int> threads;
  for (const Core& core : map.cores)
    threads.insert(threads.end(), core.threads.begin(), core.threads.end());
  std::ranges::sort(threads);
  EXPECT_EQ(threads, usable_cores());
  EXPECT_EQ(map.trouble, "");
}

}  // namespace
}  // namespace ductile::server
