#include "ductile/server/core_pool.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/rng.h"

namespace ductile::server {
namespace {

using Threads = std::vector<int>;

Threads threads_up_to(int count) {
  Threads out;
  for (int t = 0; t < count; ++t) out.push_back(t);
  return out;
}

CoreMap machine(const std::string& synthetic, int threads) {
  CoreMap map = core_map(threads_up_to(threads), {.synthetic = synthetic});
  EXPECT_EQ(map.trouble, "") << synthetic;
  return map;
}

TEST(CorePool, GivesEachShareToOneAtATime) {
  CorePool pool(2, machine("core:4 pu:1", 4));
  const CorePool::Share first = pool.take();
  CorePool::Share second = pool.take();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->threads, (Threads{0, 1}));
  EXPECT_EQ(second->threads, (Threads{2, 3}));
  EXPECT_EQ(pool.take(), nullptr);
  EXPECT_EQ(pool.free(), 0);
  second.reset();
  EXPECT_EQ(pool.take()->threads, (Threads{2, 3}));
}

TEST(CorePool, ADeviceIsACoreWithItsHardwareThreads) {
  CorePool pool(4, machine("core:4 pu:2", 8));
  const CorePool::Share share = pool.take(2);
  EXPECT_EQ(share->threads, (Threads{0, 1, 2, 3}));
  EXPECT_EQ(share->cores, 2);
  EXPECT_EQ(share->devices, 2);
}

TEST(CorePool, WhereThereAreMoreDevicesThanCoresAHardwareThreadIsOne) {
  CorePool pool(8, machine("core:4 pu:2", 8));
  const CorePool::Share one = pool.take();
  EXPECT_EQ(one->threads, Threads{0});
  EXPECT_EQ(pool.take(3)->threads, (Threads{1, 2, 3}))
      << "of the core whose other thread is taken, too";
}

TEST(CorePool, MoreDevicesThanHardwareThreadsShareThem) {
  CorePool pool(3, machine("core:2 pu:1", 2));
  const CorePool::Share a = pool.take(), b = pool.take();
  CorePool::Share c = pool.take();
  EXPECT_EQ(a->threads, Threads{0});
  EXPECT_EQ(b->threads, Threads{1});
  EXPECT_EQ(c->threads, Threads{0});
  EXPECT_EQ(pool.take(), nullptr);
  c.reset();
  EXPECT_NE(pool.take_again({0}), nullptr);
}

TEST(CorePool, CoresThatDevicesDoNotDivideAreGivenAllTheSame) {
  CorePool pool(3, machine("core:8 pu:1", 8));
  std::multiset<int64_t> cores;
  std::vector<CorePool::Share> shares;
  while (CorePool::Share share = pool.take()) {
    cores.insert(share->cores);
    shares.push_back(std::move(share));
  }
  EXPECT_EQ(cores, (std::multiset<int64_t>{2, 3, 3}));
}

TEST(CorePool, OneDeviceIsTheWholeMachine) {
  CorePool pool(1, machine("numa:2 core:2 pu:1", 4));
  EXPECT_EQ(pool.take()->threads, (Threads{0, 1, 2, 3}));
}

TEST(CorePool, AProcessThatFitsIntoANodeGetsTheFullestThatHasRoom) {
  CorePool pool(8, machine("numa:2 core:4 pu:1", 8));
  const CorePool::Share one = pool.take();
  EXPECT_EQ(one->nodes, std::vector<int>{0});
  EXPECT_EQ(pool.take(4)->nodes, std::vector<int>{1}) << "it is whole, and stays so until now";
  const CorePool::Share two = pool.take(2);
  EXPECT_EQ(two->nodes, std::vector<int>{0});
  EXPECT_EQ(pool.take(4)->nodes, std::vector<int>{1});
}

TEST(CorePool, AProcessOfTwoNodesGetsNeighbours) {
  CorePool pool(16, machine("package:2 numa:2 core:4 pu:1", 16));
  const CorePool::Share first = pool.take(4);
  ASSERT_EQ(first->nodes, std::vector<int>{0});
  EXPECT_EQ(pool.take(8)->nodes, (std::vector<int>{2, 3})) << "1 and 2 are of two sockets";
}

TEST(CorePool, GoesWhereItIsToldWhereThatIsAsGood) {
  CorePool pool(8, machine("numa:2 core:4 pu:1", 8));
  EXPECT_EQ(pool.take(2, {1})->nodes, std::vector<int>{1});
  const CorePool::Share most = pool.take(3, {1});
  EXPECT_EQ(pool.take(2, {1})->nodes, std::vector<int>{0}) << "there it would need two nodes";
}

TEST(CorePool, KnowsTheCoresOfAProcessThatIsFoundAgain) {
  CorePool pool(2, machine("core:4 pu:1", 4));
  const CorePool::Share found = pool.take_again({3, 2});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->devices, 1);
  EXPECT_EQ(pool.take_again({7}), nullptr) << "there is no such core";
  EXPECT_EQ(pool.take_again({}), nullptr);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.take()->threads, (Threads{0, 1}));
}

// As where an older program had divided them otherwise.
TEST(CorePool, ProcessesThatAreFoundOnTheSameCoresAreBothInTheBooks) {
  CorePool pool(2, machine("core:4 pu:1", 4));
  CorePool::Share one = pool.take_again({2, 3});
  const CorePool::Share two = pool.take_again({1, 2});
  ASSERT_TRUE(one && two);
  EXPECT_EQ(pool.take()->threads, Threads{0}) << "the only one that nobody runs on";
  one.reset();
  EXPECT_EQ(pool.take()->threads, (Threads{0, 3}));
}

// Booked as another number of devices than it was, it leaves a core that nobody counts.
TEST(CorePool, ACoreThatNobodyHasIsGivenThoughNoDeviceIsLeft) {
  CorePool pool(3, machine("core:4 pu:1", 4));
  const CorePool::Share a = pool.take_again({0}), b = pool.take_again({1}),
                        c = pool.take_again({2});
  EXPECT_EQ(pool.free(), 0);
  EXPECT_EQ(pool.take()->threads, Threads{3});
}

TEST(CorePool, WhereCoresAreGoneADeviceIsBesideAnother) {
  CorePool pool(4, machine("core:4 pu:1", 4));
  const CorePool::Share a = pool.take(), b = pool.take();
  pool.allow({0, 1});
  const CorePool::Share c = pool.take(), d = pool.take();
  ASSERT_TRUE(c && d);
  EXPECT_EQ(c->threads, Threads{0});
  EXPECT_EQ(d->threads, Threads{1}) << "not all on one, and none on all";
}

TEST(CorePool, AProcessMayBeSeveralDevices) {
  CorePool pool(4, machine("core:4 pu:1", 4));
  {
    const CorePool::Share several = pool.take(3);
    EXPECT_EQ(several->devices, 3);
    EXPECT_EQ(pool.free(), 1);
    EXPECT_EQ(pool.take(3)->devices, 1) << "as many as there are";
  }
  EXPECT_EQ(pool.free(), 4);
  EXPECT_EQ(pool.take_again({1, 3})->devices, 2);
  EXPECT_EQ(pool.take(0), nullptr);
  EXPECT_EQ(pool.take(-1), nullptr);
}

TEST(CorePool, GivesNothingThatIsNotThereNow) {
  CorePool pool(4, machine("core:4 pu:2", 8));
  CorePool::Share held = pool.take();
  EXPECT_TRUE(pool.allow({0, 1, 3, 6, 7}));
  EXPECT_FALSE(pool.allow({0, 1, 3, 6, 7}));
  EXPECT_EQ(pool.missing(), 1);
  EXPECT_EQ(pool.take()->threads, Threads{3}) << "what is left of the core";
  {
    const CorePool::Share rest = pool.take(3);
    EXPECT_EQ(rest->threads, (Threads{3, 6, 7}));
    EXPECT_EQ(rest->devices, 3) << "they are fewer cores than it was promised";
    EXPECT_EQ(pool.take(), nullptr);
  }
  EXPECT_TRUE(pool.allow({}));
  EXPECT_EQ(pool.take(), nullptr);
  EXPECT_EQ(held->threads, (Threads{0, 1}));
  EXPECT_TRUE(pool.allow(threads_up_to(8)));
  EXPECT_EQ(pool.take(3)->threads, (Threads{2, 3, 4, 5, 6, 7}));
}

TEST(CorePool, WhereTheCoresAreNotKnownNobodyIsBound) {
  CorePool pool(2, core_map({}, {}));
  const CorePool::Share a = pool.take(), b = pool.take();
  ASSERT_TRUE(a && b);
  EXPECT_TRUE(a->threads.empty());
  EXPECT_EQ(pool.take(), nullptr);
}

// ---- Against a twin that knows cores by their numbers, and tries every set of nodes.

struct Twin {
  const CoreMap& map;
  std::map<int, const CoreShare*> owner{};  // by hardware thread

  size_t node_of(int thread) const {
    for (const Core& core : map.cores)
      if (std::ranges::count(core.threads, thread) > 0) return core.node;
    ADD_FAILURE() << "no core has the thread " << thread;
    return 0;
  }
  std::vector<int64_t> room() const {  // cores by node
    std::vector<int64_t> out(map.nodes.size());
    for (const Core& core : map.cores) out[core.node] += owner.contains(core.threads[0]) ? 0 : 1;
    return out;
  }
  // The least number of nodes that have so many free cores.
  int64_t fewest_nodes(int64_t cores) const {
    const std::vector<int64_t> free = room();
    int64_t best = static_cast<int64_t>(free.size()) + 1;
    for (uint32_t set = 1; set < 1u << free.size(); ++set) {
      int64_t sum = 0, count = 0;
      for (size_t n = 0; n < free.size(); ++n)
        if ((set >> n & 1) != 0) sum += free[n], ++count;
      if (sum >= cores) best = std::min(best, count);
    }
    return best;
  }
  void gives(const CoreShare* share) {
    std::set<size_t> nodes;
    for (const int thread : share->threads) {
      EXPECT_TRUE(owner.emplace(thread, share).second) << "two have the thread " << thread;
      nodes.insert(node_of(thread));
    }
    EXPECT_EQ(nodes.size(), share->nodes.size());
  }
  void takes_back(const CoreShare* share) {
    std::erase_if(owner, [&](const auto& entry) { return entry.second == share; });
  }
};

TEST(CorePool, NeverGivesACoreTwiceNorSpreadsWiderThanItMust) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const auto upto = [&](int most) {
      return 1 + static_cast<int>(rng.below(static_cast<uint32_t>(most)));
    };
    const int packages = upto(3), numa = upto(3), cores = upto(5), threads = upto(2);
    const std::string synthetic =
        fmt::format("package:{} numa:{} core:{} pu:{}", packages, numa, cores, threads);
    Threads usable;
    for (int t = 0; t < packages * numa * cores * threads; ++t)
      if (seed % 2 == 0 || rng.below(4) > 0) usable.push_back(t);
    if (usable.empty()) continue;
    const CoreMap map = core_map(usable, {.synthetic = synthetic});
    ASSERT_EQ(map.trouble, "") << synthetic;
    const auto all = static_cast<int64_t>(map.cores.size());
    const int64_t devices = upto(static_cast<int>(all));
    CorePool pool(devices, map);
    Twin twin{map};
    std::vector<CorePool::Share> held;
    for (int step = 0; step < 60; ++step) {
      SCOPED_TRACE(fmt::format("seed {}, {} of {}, {} devices, step {}", seed, usable.size(),
                               synthetic, devices, step));
      const int64_t free = pool.free();
      if (rng.below(2) == 0 && !held.empty()) {
        const size_t at = rng.below(static_cast<uint32_t>(held.size()));
        twin.takes_back(held[at].get());
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
        continue;
      }
      const int64_t wanted = upto(static_cast<int>(devices));
      const Twin before = twin;
      const CorePool::Share share = pool.take(wanted);
      ASSERT_EQ(share == nullptr, free == 0);
      if (share == nullptr) continue;
      ASSERT_EQ(share->devices, std::min(wanted, free));
      ASSERT_GE(share->cores, share->devices * (all / devices));
      ASSERT_LE(share->cores, share->devices * (all / devices + 1));
      ASSERT_EQ(static_cast<int64_t>(share->nodes.size()), before.fewest_nodes(share->cores));
      twin.gives(share.get());
      held.push_back(share);
      if (::testing::Test::HasFailure()) return;
    }
    // A pool of whoever comes next knows the same processes by their threads.
    CorePool next(devices, map);
    std::vector<CorePool::Share> again;
    for (const CorePool::Share& share : held) {
      again.push_back(next.take_again(share->threads));
      ASSERT_TRUE(again.back()) << "seed " << seed;
      EXPECT_EQ(again.back()->threads, share->threads);
    }
    held.clear();
    again.clear();
    EXPECT_EQ(pool.free(), devices);
    EXPECT_EQ(next.free(), devices);
    EXPECT_EQ(pool.take(devices)->cores, all) << "all are given back";
  }
}

}  // namespace
}  // namespace ductile::server
