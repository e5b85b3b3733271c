#include "ductile/server/core_pool.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/machine.h"

namespace ductile::server {
namespace {

using Cores = std::vector<int>;

TEST(CorePool, GivesEachShareToOneAtATime) {
  CorePool pool(2, {0, 1, 2, 3});
  const CorePool::Share first = pool.take();
  CorePool::Share second = pool.take();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, (Cores{0, 1}));
  EXPECT_EQ(*second, (Cores{2, 3}));
  EXPECT_EQ(pool.take(), nullptr);
  EXPECT_EQ(pool.free(), 0);
  second.reset();
  EXPECT_EQ(*pool.take(), (Cores{2, 3}));
}

TEST(CorePool, KnowsTheShareOfAProcessThatIsFoundAgain) {
  CorePool pool(2, {0, 1, 2, 3});
  const auto found = pool.take_again({3, 2});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(*pool.take(), (Cores{0, 1}));
  EXPECT_TRUE(pool.take_again({2, 3}).empty()) << "somebody has it";
  EXPECT_TRUE(pool.take_again({1, 2}).empty()) << "there is no such share";
}

TEST(CorePool, AProcessMayHaveSeveralShares) {
  CorePool pool(4, {0, 1, 2, 3});
  {
    const auto several = pool.take(3);
    ASSERT_EQ(several.size(), 3u);
    EXPECT_EQ(pool.free(), 1);
    EXPECT_EQ(pool.take(3).size(), 1u) << "as many as there are";
  }
  EXPECT_EQ(pool.free(), 4);
  EXPECT_EQ(pool.take_again({1, 3}).size(), 2u);
  EXPECT_TRUE(pool.take_again({0, 7}).empty());
  EXPECT_EQ(pool.free(), 4) << "what is not all there is not kept";
}

TEST(CorePool, MoreDevicesThanCoresShareThem) {
  CorePool pool(3, {4, 5});
  const CorePool::Share a = pool.take(), b = pool.take(), c = pool.take();
  EXPECT_EQ(*a, Cores{4});
  EXPECT_EQ(*b, Cores{5});
  EXPECT_EQ(*c, Cores{4});
}

TEST(CorePool, OneDeviceIsTheWholeMachine) {
  CorePool pool(1, {4, 5});
  EXPECT_EQ(*pool.take(), (Cores{4, 5}));
}

// Two NUMA nodes whose cores alternate, as some machines number them.
TEST(CoresByNearness, FollowTheNodes) {
  const Cores usable = usable_cores();
  if (usable.size() < 2) GTEST_SKIP() << "one core has no order";
  const TempFolder root;
  Cores expected, odd;
  for (size_t i = 0; i < usable.size(); ++i) {
    const fs::path cpu =
        root.path() / "sys/devices/system/cpu" / ("cpu" + std::to_string(usable[i]));
    fs::create_directories(cpu / "topology");
    fs::create_directories(cpu / (i % 2 == 0 ? "node1" : "node0"));
    (i % 2 == 0 ? odd : expected).push_back(usable[i]);
  }
  expected.insert(expected.end(), odd.begin(), odd.end());
  EXPECT_EQ(cores_by_nearness(root.path()), expected);
  const TempFolder nothing;
  EXPECT_EQ(cores_by_nearness(nothing.path()), usable);
}

}  // namespace
}  // namespace ductile::server
