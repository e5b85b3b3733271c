#include "ductile/control/ranges.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"

namespace ductile::control {
namespace {

// The tree as parallel/gradient_tree.h defines it, by recursion.
int64_t slow_num_subtrees(int64_t begin, int64_t end, int64_t low, int64_t high) {
  if (end <= low || high <= begin) return 0;
  if (begin <= low && high <= end) return 1;
  int64_t left = 1;
  while (2 * left < high - low) left *= 2;
  return slow_num_subtrees(begin, end, low, low + left) +
         slow_num_subtrees(begin, end, low + left, high);
}

int64_t cost(const std::vector<RankRange>& ranges, int64_t virtual_ranks) {
  int64_t sum = 0;
  for (const RankRange& range : ranges) sum += num_subtrees(range, virtual_ranks);
  return sum;
}

TEST(Ranges, CountSubtreesOfTheCanonicalTree) {
  for (int64_t ranks = 1; ranks <= 40; ++ranks)
    for (int64_t begin = 0; begin < ranks; ++begin)
      for (int64_t end = begin + 1; end <= ranks; ++end)
        ASSERT_EQ(num_subtrees({begin, end}, ranks), slow_num_subtrees(begin, end, 0, ranks))
            << begin << " " << end << " of " << ranks;
}

TEST(Ranges, CoverAllRanksInOrderAndEvenly) {
  for (int64_t ranks = 1; ranks <= 70; ++ranks) {
    for (int64_t workers = 1; workers <= ranks; ++workers) {
      const auto spread = spread_ranks(ranks, workers);
      ASSERT_EQ(static_cast<int64_t>(spread.size()), workers);
      int64_t at = 0;
      for (const RankRange& range : spread) {
        ASSERT_EQ(range.begin, at);
        ASSERT_GE(range.size(), ranks / workers);
        ASSERT_LE(range.size(), (ranks + workers - 1) / workers);
        at = range.end;
      }
      ASSERT_EQ(at, ranks);
    }
  }
}

TEST(Ranges, NeedAsFewSubtreesAsAnyEvenSpread) {
  for (int64_t ranks = 1; ranks <= 16; ++ranks) {
    for (int64_t workers = 1; workers <= ranks; ++workers) {
      std::vector<int64_t> larger(static_cast<size_t>(workers), 0);
      std::fill_n(larger.rbegin(), ranks % workers, 1);
      int64_t best = std::numeric_limits<int64_t>::max();
      do {
        std::vector<RankRange> ranges;
        int64_t begin = 0;
        for (int64_t extra : larger) {
          ranges.push_back({begin, begin + ranks / workers + extra});
          begin = ranges.back().end;
        }
        best = std::min(best, cost(ranges, ranks));
      } while (std::next_permutation(larger.begin(), larger.end()));
      ASSERT_EQ(cost(spread_ranks(ranks, workers), ranks), best) << ranks << " over " << workers;
    }
  }
}

TEST(Ranges, OfAPowerOfTwoAreWholeSubtrees) {
  for (int64_t workers : {1, 2, 4, 8, 16}) EXPECT_EQ(cost(spread_ranks(16, workers), 16), workers);
}

// What each range gets, by the host of its worker.
std::vector<std::string> seated(const std::vector<std::string>& rank_hosts,
                                const std::vector<std::string>& worker_hosts) {
  const auto ranges = spread_ranks(std::ssize(rank_hosts), std::ssize(worker_hosts));
  std::vector<std::string> out;
  std::vector<bool> seen(worker_hosts.size());
  for (const size_t w : seat_workers(ranges, rank_hosts, worker_hosts)) {
    EXPECT_FALSE(seen.at(w)) << "nobody has two";
    seen[w] = true;
    out.push_back(worker_hosts[w]);
  }
  return out;
}

TEST(Ranges, SeatWorkersWhereRanksAreWanted) {
  using Hosts = std::vector<std::string>;
  EXPECT_EQ(seated({"b", "a", "b", "a"}, {"a", "a", "b", "b"}), (Hosts{"b", "a", "b", "a"}));
  EXPECT_EQ(seated({"b", "b", "a"}, {"a", "a", "b"}), (Hosts{"b", "a", "a"}));
  EXPECT_EQ(seated({"", "", "a"}, {"a", "b", "c"}), (Hosts{"b", "c", "a"}));
  EXPECT_EQ(seated({"x", "y"}, {"a", "b"}), (Hosts{"a", "b"})) << "wanted where nobody is";
  EXPECT_EQ(seated({"b", "b", "a", "a"}, {"a", "b"}), (Hosts{"b", "a"}));
  EXPECT_EQ(seated({"a", "b", "b", "a", "a", "a"}, {"a", "b"}), (Hosts{"b", "a"}))
      << "most of the first three are wanted on b";
  EXPECT_EQ(seated({"a", "b", "b", "a"}, {"b", "a"}), (Hosts{"a", "b"})) << "of two the first";
}

TEST(Ranges, SeatWorkersWhoAreThereAlreadyAsTheyAre) {
  const std::vector<std::string> wanted = {"b", "a", "b", "a"}, there = wanted;
  EXPECT_EQ(seat_workers(spread_ranks(4, 4), wanted, there), (std::vector<size_t>{0, 1, 2, 3}));
  // Without the first one: those of "a" keep their order, though one of them stands in for "b".
  const std::vector<std::string> left = {"a", "b", "a"};
  EXPECT_EQ(seat_workers(spread_ranks(4, 3), wanted, left), (std::vector<size_t>{1, 0, 2}));
}

// As many as by any order of the workers, tried one by one.
TEST(Ranges, SeatAsManyWorkersAsAnyOrderWould) {
  const std::vector<std::string> names = {"a", "b", "c", ""};
  for (int draw = 0; draw < 400; ++draw) {
    std::vector<std::string> wanted, there;
    for (int i = 0, state = 7 * draw + 1; i < 5; ++i) {
      state = (state * 31 + draw) % 1009;
      wanted.push_back(names[static_cast<size_t>(state % 4)]);
      there.push_back(names[static_cast<size_t>(state / 4 % 3)]);
    }
    const auto matches = [&](const std::vector<std::string>& hosts) {
      int count = 0;
      for (size_t r = 0; r < wanted.size(); ++r)
        count += !wanted[r].empty() && wanted[r] == hosts[r] ? 1 : 0;
      return count;
    };
    const int found = matches(seated(wanted, there));
    int most = 0;
    std::ranges::sort(there);
    do {
      most = std::max(most, matches(there));
    } while (std::next_permutation(there.begin(), there.end()));
    ASSERT_EQ(found, most) << draw;
  }
}

TEST(Ranges, RefuseMoreWorkersThanRanks) {
  EXPECT_THROW(spread_ranks(4, 5), Error);
  EXPECT_THROW(spread_ranks(4, 0), Error);
}

}  // namespace
}  // namespace ductile::control
