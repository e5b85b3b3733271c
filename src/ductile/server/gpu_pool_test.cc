#include "ductile/server/gpu_pool.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"

namespace ductile::server {
namespace {

Gpu gpu(const std::string& id, int node = 0, GpuVendor vendor = GpuVendor::nvidia) {
  return {vendor, id, "a GPU", "GPU-" + id, 0, node, ""};
}

using Ids = std::vector<std::string>;
Ids ids_of(const GpuPool::Share& share) {
  Ids out;
  if (share)
    for (const Gpu& one : *share) out.push_back(one.id);
  return out;
}

TEST(GpuPool, GivesEachToOneAtATime) {
  GpuPool pool({gpu("a"), gpu("b"), gpu("c")});
  GpuPool::Share two = pool.take(2);
  EXPECT_EQ(ids_of(two), (Ids{"a", "b"}));
  EXPECT_EQ(pool.take(2), nullptr) << "not fewer than were asked for";
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.usable(), 3);
  two.reset();
  EXPECT_EQ(pool.free(), 3);
  EXPECT_EQ(pool.take(0), nullptr);
  EXPECT_EQ(pool.take(-1), nullptr);
}

TEST(GpuPool, GivesThoseOfOneNodeAndLeavesOthersWhole) {
  GpuPool pool({gpu("a", 0), gpu("b", 1), gpu("c", 1), gpu("d", 0), gpu("e", 0)});
  EXPECT_EQ(ids_of(pool.take(3)), (Ids{"a", "d", "e"}));
  EXPECT_EQ(ids_of(pool.take(2)), (Ids{"b", "c"}));
  const GpuPool::Share one = pool.take(1);
  EXPECT_EQ(ids_of(one), Ids{"b"}) << "of the fuller node";
  EXPECT_EQ(ids_of(pool.take(4)), (Ids{"a", "c", "d", "e"}));
}

TEST(GpuPool, OnesThatHaveTroubleAreGivenToNobody) {
  Gpu bad = gpu("b");
  bad.trouble = "it smokes";
  GpuPool pool({gpu("a"), bad});
  EXPECT_EQ(pool.usable(), 1);
  EXPECT_EQ(pool.take(2), nullptr);
}

TEST(GpuPool, AProcessHasThoseOfOneVendor) {
  GpuPool pool({gpu("a"), gpu("b", 0, GpuVendor::amd), gpu("c", 0, GpuVendor::amd)});
  EXPECT_EQ(pool.usable(), 2);
  EXPECT_EQ(ids_of(pool.take(2)), (Ids{"b", "c"}));
  EXPECT_EQ(pool.take(3), nullptr);
}

TEST(GpuPool, OneThatIsGoneIsSaidAndGivenToNobodyUntilItIsBack) {
  GpuPool pool({gpu("a"), gpu("b")});
  EXPECT_FALSE(pool.found({gpu("b"), gpu("a")}));
  const GpuPool::Share held = pool.take(1);
  EXPECT_TRUE(pool.found({gpu("b")}));
  EXPECT_FALSE(pool.found({gpu("b")}));
  ASSERT_EQ(pool.all().size(), 2u);
  EXPECT_EQ(pool.all()[0].trouble, "it was there before, and is gone");
  EXPECT_EQ(pool.usable(), 1);
  EXPECT_EQ(ids_of(pool.take(1)), Ids{"b"});
  EXPECT_TRUE(pool.found({gpu("a"), gpu("b"), gpu("c")}));
  EXPECT_EQ(pool.free(), 2) << "the one that came back is still held";
}

TEST(GpuPool, OneThatFailsInSomebodysHandsIsCountedUntilItIsGivenBack) {
  GpuPool pool({gpu("a"), gpu("b"), gpu("c")});
  EXPECT_EQ(pool.lost(), 0);
  GpuPool::Share held = pool.take(2);
  EXPECT_EQ(pool.lost(), 0);
  pool.found({gpu("b"), gpu("c")});
  EXPECT_EQ(pool.usable(), 2);
  EXPECT_EQ(pool.lost(), 1);
  EXPECT_EQ(pool.free(), 1);
  held.reset();
  EXPECT_EQ(pool.lost(), 0);
  EXPECT_EQ(pool.free(), 2);
}

TEST(GpuPool, KnowsThoseOfAProcessThatIsFoundAgain) {
  GpuPool pool({gpu("a"), gpu("b")});
  const GpuPool::Share found = pool.take_again({"b", "gone"});
  EXPECT_EQ(ids_of(found), (Ids{"b", "gone"}));
  EXPECT_EQ(pool.take_again({"b"}), nullptr);
  EXPECT_EQ(pool.take_again({}), nullptr);
  EXPECT_EQ(ids_of(pool.take(1)), Ids{"a"});
  EXPECT_TRUE(pool.found({gpu("a"), gpu("b"), gpu("gone")}));
  EXPECT_EQ(pool.free(), 1) << "it was held all along";
}

TEST(GpuPool, NeverGivesOneTwiceWhateverComesAndGoes) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    std::vector<Gpu> all;
    const uint32_t count = 1 + rng.below(8);
    for (uint32_t n = 0; n < count; ++n)
      all.push_back(
          gpu(std::string(1, static_cast<char>('a' + n)), static_cast<int>(rng.below(3)) - 1));
    GpuPool pool(all);
    std::vector<GpuPool::Share> held;
    for (int step = 0; step < 50; ++step) {
      const uint32_t what = rng.below(4);
      if (what == 0 && !held.empty()) {
        held.erase(held.begin() + rng.below(static_cast<uint32_t>(held.size())));
      } else if (what == 1) {
        std::vector<Gpu> now;
        for (const Gpu& one : all)
          if (rng.below(4) > 0) now.push_back(one);
        pool.found(now);
      } else {
        const int64_t count = 1 + rng.below(3), free = pool.free();
        GpuPool::Share share = pool.take(count);
        ASSERT_EQ(share != nullptr, count <= free) << seed;
        if (!share) continue;
        ASSERT_EQ(static_cast<int64_t>(share->size()), count);
        held.push_back(std::move(share));
      }
      std::set<std::string> seen;
      for (const GpuPool::Share& share : held)
        for (const Gpu& one : *share) ASSERT_TRUE(seen.insert(one.id).second) << seed;
    }
    held.clear();
    pool.found(all);
    EXPECT_EQ(pool.free(), static_cast<int64_t>(all.size()));
  }
}

}  // namespace
}  // namespace ductile::server
