#include "ductile/comm/schedule.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/comm/canonical.h"
#include "ductile/comm/checker.h"
#include "ductile/comm/fabric.h"
#include "ductile/comm/step_order.h"
#include "ductile/comm/testing/even_cut.h"

namespace ductile::comm {
namespace {

struct Case {
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::ring;
  Topology topology;
  ScheduleOptions options;
  bool aliased = false;

  std::string text() const {
    return fmt::format("{} {} of {} ranks, grid {}x{}, {} a host, pipeline {}, wire {}, aliased {}",
                       to_string(collective), to_string(algorithm), topology.num_ranks,
                       topology.grid.num_rows, topology.grid.num_columns, topology.ranks_per_host,
                       options.pipeline, options.wire, aliased);
  }

  std::vector<Schedule> lists() const {
    std::vector<Schedule> lists;
    for (int r = 0; r < topology.num_ranks; ++r) {
      lists.push_back(make_schedule(collective, algorithm, topology, r, options));
    }
    return lists;
  }

  void check(const std::vector<Schedule>& lists) const {
    check_schedules(collective, lists, {aliased, options.wire, options.root, options.cut});
  }
};

void prove(const Case& c) {
  try {
    c.check(c.lists());
  } catch (const Error& e) {
    FAIL() << c.text() << ": " << e.what();
  }
}

bool may_alias(Collective c) {
  return c == Collective::all_reduce || c == Collective::broadcast || c == Collective::barrier;
}

// Small groups with every option, larger ones with one combination each.
void prove_variants(Case c, Rng& rng) {
  const int n = c.topology.num_ranks;
  for (const bool aliased : {false, true}) {
    for (const bool wire : {false, true}) {
      for (const int pipeline : {1, 2, 5}) {
        if (n > 12 && rng.below(12) != 0) continue;
        c.aliased = aliased && may_alias(c.collective);
        c.options.wire = wire && c.collective != Collective::barrier;
        c.options.pipeline = pipeline;
        c.options.root = c.collective == Collective::broadcast ? static_cast<int>(rng.below(n)) : 0;
        prove(c);
      }
    }
  }
}

TEST(Schedule, EveryAlgorithmIsRightForAllRankCountsTo64) {
  Rng rng(1);
  for (int n = 1; n <= 64; ++n) {
    for (const Collective collective :
         {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
          Collective::broadcast, Collective::all_to_all, Collective::barrier}) {
      for (const Algorithm algorithm : algorithms_of(collective)) {
        Case c{collective, algorithm, {}, {}, false};
        c.topology.num_ranks = n;
        c.topology.ranks_per_host = 1 + static_cast<int>(rng.below(9));
        prove(c);
        prove_variants(c, rng);
      }
    }
  }
}

TEST(Schedule, TheTorusIsRightForAllGridsTo64Ranks) {
  Rng rng(2);
  for (int rows = 1; rows <= 64; ++rows) {
    for (int columns = 1; rows * columns <= 64; ++columns) {
      Case c{Collective::all_reduce, Algorithm::torus, {}, {}, false};
      c.topology.num_ranks = rows * columns;
      c.topology.grid = {rows, columns};
      c.topology.num_rails = 1 + (rows + columns) % 2;
      c.topology.both_directions = rng.below(2) == 1;
      prove(c);
      prove_variants(c, rng);
    }
  }
}

TEST(Schedule, TheHierarchyIsRightForAnySpreadOverHosts) {
  Rng rng(3);
  for (int i = 0; i < 300; ++i) {
    Case c{Collective::all_reduce, Algorithm::hierarchical, {}, {}, rng.below(2) == 1};
    const int n = 1 + static_cast<int>(rng.below(20));
    const int hosts = 1 + static_cast<int>(rng.below(6));
    c.topology.num_ranks = n;
    for (int r = 0; r < n; ++r) c.topology.host.push_back(static_cast<int>(rng.below(hosts)));
    c.options.pipeline = 1 + static_cast<int>(rng.below(3));
    c.options.wire = rng.below(2) == 1;
    prove(c);
  }
}

// What Communicator::split runs: lists for the topology of the members.
TEST(Schedule, ListsOfAPartOfTheRanksAreRightAndKnowItsHosts) {
  Rng rng(31);
  for (int i = 0; i < 60; ++i) {
    Topology whole;
    whole.num_ranks = 1 + static_cast<int>(rng.below(24));
    whole.ranks_per_host = 1 + static_cast<int>(rng.below(5));
    whole.num_rails = 1 + static_cast<int>(rng.below(2));
    for (int r = 0; i % 2 == 1 && r < whole.num_ranks; ++r) {
      whole.host.push_back(10 + static_cast<int>(rng.below(4)));
    }
    if (whole.num_ranks % 2 == 0) whole.grid = {2, whole.num_ranks / 2};
    std::vector<int> ranks(static_cast<size_t>(whole.num_ranks));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (size_t k = ranks.size(); k > 1; --k) std::swap(ranks[k - 1], ranks[rng.below(k)]);
    ranks.resize(1 + rng.below(static_cast<uint32_t>(ranks.size())));

    const Topology part = part_of(whole, ranks);
    ASSERT_EQ(part.num_ranks, static_cast<int>(ranks.size()));
    EXPECT_EQ(part.num_rails, whole.num_rails);
    EXPECT_EQ(part.grid.num_rows, 0) << "another number of ranks, another grid";
    for (int a = 0; a < part.num_ranks; ++a) {
      for (int b = 0; b < part.num_ranks; ++b) {
        EXPECT_EQ(part.host_of(a) == part.host_of(b),
                  whole.host_of(ranks[static_cast<size_t>(a)]) ==
                      whole.host_of(ranks[static_cast<size_t>(b)]));
      }
    }
    Fabric links = fabric_of(whole);
    links.between.latency = 1e-3;
    links.shared_bandwidth = 1e9;
    const Fabric links_of_part = part_of(links, ranks);
    EXPECT_TRUE(same_shape(links_of_part, fabric_of(part)));
    EXPECT_EQ(links_of_part.between.latency, 1e-3);
    EXPECT_EQ(links_of_part.shared_bandwidth, part.num_ranks == whole.num_ranks ? 1e9 : 0);
    for (const Collective collective :
         {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
          Collective::broadcast, Collective::all_to_all, Collective::barrier}) {
      for (const Algorithm algorithm : algorithms_of(collective)) {
        prove_variants({collective, algorithm, part, {}, false}, rng);
      }
    }
  }
  // Ranks that are dealt out evenly are described as where nobody split.
  const Topology even =
      part_of({.num_ranks = 12, .ranks_per_host = 4}, std::vector<int>{1, 3, 9, 8, 5, 4});
  EXPECT_EQ(even.ranks_per_host, 2);
  EXPECT_TRUE(even.host.empty());
}

TEST(Schedule, TheCanonicalSumIsRightForAnyCutOfTheVirtualRanks) {
  Rng rng(4);
  for (int n = 1; n <= 64; ++n) {
    const int tries = n <= 9 ? 60 : 3;
    for (int i = 0; i < tries; ++i) {
      Case c{Collective::all_reduce, Algorithm::canonical, {}, {}, false};
      c.topology.num_ranks = n;
      c.options.pipeline = n <= 9 ? 1 + static_cast<int>(rng.below(3)) : 1;
      c.options.wire = rng.below(2) == 1;
      const int64_t leaves = 1 + static_cast<int64_t>(rng.below(80));
      if (i == 0) {
        c.options.cut = even_cut(leaves, n);
      } else {
        c.options.cut = {0, leaves};
        for (int r = 1; r < n; ++r) c.options.cut.push_back(rng.below(leaves + 1));
        std::sort(c.options.cut.begin(), c.options.cut.end());
      }
      // The memory of the first partial sum may take the result, where each rank has one.
      c.aliased = true;
      for (int r = 0; r < n; ++r) c.aliased &= c.options.cut[r] < c.options.cut[r + 1];
      prove(c);
    }
  }
}

TEST(Schedule, AlignedCanonicalRangesMoveNoMoreThanARing) {
  Topology topology;
  topology.num_ranks = 8;
  const auto chunks_sent = [](const Schedule& list) {
    int sum = 0;
    for (const Step& s : list.steps) sum += s.op == Op::send ? s.a.count : 0;
    return sum;
  };
  ScheduleOptions options;
  options.cut = even_cut(64, 8);
  EXPECT_EQ(chunks_sent(
                make_schedule(Collective::all_reduce, Algorithm::canonical, topology, 3, options)),
            chunks_sent(make_schedule(Collective::all_reduce, Algorithm::ring, topology, 3)));
}

TEST(Schedule, FallsBackAndSaysSoWhereTheRanksDoNotSuit) {
  Topology topology;
  topology.num_ranks = 7;
  const auto prime = make_schedule(Collective::all_reduce, Algorithm::torus, topology, 0);
  EXPECT_EQ(prime.algorithm, Algorithm::ring);
  EXPECT_NE(prime.note.find("7 ranks make no grid"), std::string::npos);
  topology.num_ranks = 12;
  topology.grid = {3, 3};
  const auto other = make_schedule(Collective::all_reduce, Algorithm::torus, topology, 0);
  EXPECT_EQ(other.algorithm, Algorithm::torus);
  EXPECT_EQ(other.note, "12 ranks do not fill a grid of 3 x 3; 3 x 4 is taken");
  topology.grid = {};
  EXPECT_NE(make_schedule(Collective::all_reduce, Algorithm::hierarchical, topology, 0).note, "");
}

TEST(Schedule, NonsenseIsRefusedByName) {
  Topology topology;
  topology.num_ranks = 4;
  const auto make = [&](Algorithm a, int rank, ScheduleOptions o = {}) {
    return make_schedule(Collective::all_reduce, a, topology, rank, o);
  };
  EXPECT_THROW(make(Algorithm::ring, 4), Error);
  EXPECT_THROW(make(Algorithm::ring, -1), Error);
  EXPECT_THROW(make(Algorithm::automatic, 0), Error);
  EXPECT_THROW(make(Algorithm::ring, 0, {.pipeline = 0}), Error);
  EXPECT_THROW(make(Algorithm::canonical, 0), Error);
  EXPECT_THROW(make(Algorithm::canonical, 0, {.cut = {0, 2, 1, 3, 4}}), Error);
  EXPECT_THROW(algorithm_from_string("rings"), Error);
  EXPECT_EQ(algorithm_from_string("auto"), Algorithm::automatic);
}

TEST(Schedule, TheRowShareBalancesBothDimensions) {
  EXPECT_NEAR(balanced_row_share({2, 4}), 1.0 / 6, 1e-12);
  EXPECT_NEAR(balanced_row_share({4, 2}), 5.0 / 6, 1e-12);
  EXPECT_NEAR(balanced_row_share({2, 2}), 0.5, 1e-12);
  EXPECT_EQ(choose_grid(12).num_columns, 4);
  EXPECT_EQ(choose_grid(13).num_rows, 1);
}

TEST(Schedule, ChunksTileABlockAndKeepToCacheLinesWhereTheyAreLongEnough) {
  Rng rng(5);
  for (int i = 0; i < 2000; ++i) {
    const int64_t n = rng.below(3) == 0 ? rng.below(20) : rng.below(100'000);
    const int k = 1 + static_cast<int>(rng.below(70));
    const size_t size = size_t{1} << rng.below(4);
    int64_t at = 0;
    for (int c = 0; c < k; ++c) {
      const auto [begin, end] = chunk_bounds(n, size, k, c);
      ASSERT_EQ(begin, at);
      ASSERT_LE(begin, end);
      ASSERT_LE(end - begin, n / k + 1 + static_cast<int64_t>(64 / size));
      if (n / k * static_cast<int64_t>(size) >= 64) {
        ASSERT_EQ(begin * size % 64, 0u);
      }
      at = end;
    }
    ASSERT_EQ(at, n);
  }
}

// What can go wrong in a list, tried on every step of lists that were right.
TEST(Checker, RefusesAlteredLists) {
  Rng rng(6);
  std::vector<Case> cases;
  for (const Algorithm a : algorithms_of(Collective::all_reduce)) {
    Case c{Collective::all_reduce, a, {}, {}, false};
    c.topology.num_ranks = 6;
    c.topology.ranks_per_host = 2;
    cases.push_back(c);
    c.aliased = true;
    cases.push_back(c);
  }
  cases.push_back({Collective::all_gather, Algorithm::ring, {}, {}, false});
  cases.push_back({Collective::reduce_scatter, Algorithm::halving_doubling, {}, {}, false});
  cases.push_back({Collective::broadcast, Algorithm::recursive_doubling, {}, {}, false});
  cases.push_back({Collective::all_to_all, Algorithm::direct, {}, {}, false});
  cases.push_back({Collective::all_reduce, Algorithm::canonical, {}, {}, false});
  int refused = 0;
  for (Case& c : cases) {
    c.topology.num_ranks = 6;
    c.options.pipeline = 2;
    if (c.algorithm == Algorithm::canonical) c.options.cut = {0, 3, 4, 7, 9, 10, 13};
    const auto good = c.lists();
    ASSERT_NO_THROW(c.check(good)) << c.text();
    const int rank = static_cast<int>(rng.below(6));
    for (size_t i = 0; i < good[rank].steps.size(); ++i) {
      for (int kind = 0; kind < 6; ++kind) {
        auto lists = good;
        auto& steps = lists[rank].steps;
        Step& step = steps[i];
        const bool moves = step.peer >= 0;
        switch (kind) {
          case 0:
            steps.erase(steps.begin() + i);
            break;
          case 1:
            // Twice dst = a + b is harmless unless dst is a or b.
            if (!moves && (step.op != Op::reduce || (step.dst != step.a && step.dst != step.b))) {
              continue;
            }
            steps.insert(steps.begin() + i, Step(step));
            break;
          case 2: {
            if (!moves) continue;
            step.peer = (step.peer + 1) % 6;
            break;
          }
          case 3:
            if (!moves) continue;
            step.rail ^= 1;
            break;
          case 4: {  // another chunk of the same length
            Chunks& chunks = step.op == Op::send ? step.a : step.dst;
            const int k = lists[rank].chunks_per_block;
            if (chunks.buffer == BufferName::scratch || chunks.end() + chunks.count > k) continue;
            chunks.begin += chunks.count;
            break;
          }
          case 5:
            if (step.op != Op::receive_reduce) continue;
            step.op = Op::receive;
            step.a = {};
            break;
        }
        EXPECT_THROW(c.check(lists), Error) << c.text() << ": change " << kind << " of step " << i;
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(Checker, SeesADeadlockThatBufferedSendsWouldHide) {
  // The root's first message waits for rank 1, who first wants one of rank 2, who first wants the
  // root's second.
  std::vector<Schedule> lists(3);
  const Chunks data{BufferName::out, 0, 1};
  const Chunks spare{BufferName::scratch, 0, 1};
  for (int r = 0; r < 3; ++r) {
    lists[r].rank = r;
    lists[r].num_ranks = 3;
    lists[r].scratch_chunks = 1;
  }
  lists[0].steps = {{.op = Op::copy, .dst = data, .a = {BufferName::in, 0, 1}},
                    {.op = Op::send, .peer = 1, .a = data},
                    {.op = Op::send, .peer = 2, .a = data}};
  lists[1].steps = {{.op = Op::receive, .peer = 2, .dst = spare},
                    {.op = Op::receive, .peer = 0, .dst = data}};
  lists[2].steps = {{.op = Op::receive, .peer = 0, .dst = data},
                    {.op = Op::send, .peer = 1, .a = data}};
  const auto verdict = [&] {
    try {
      check_schedules(Collective::broadcast, lists);
    } catch (const Error& e) {
      return e.message();
    }
    return std::string();
  };
  EXPECT_NE(verdict().find("deadlock"), std::string::npos) << verdict();
  std::swap(lists[1].steps[0], lists[1].steps[1]);
  EXPECT_EQ(verdict(), "");
}

TEST(Checker, SeesRanksThatRoundDifferently) {
  Case c{Collective::all_reduce, Algorithm::recursive_doubling, {.num_ranks = 4}, {}, false};
  auto lists = c.lists();  // made without rounding
  c.options.wire = true;   // run with it
  EXPECT_THROW(c.check(lists), Error);
}

}  // namespace
}  // namespace ductile::comm
