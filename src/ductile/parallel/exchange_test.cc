#include "ductile/parallel/exchange.h"

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/parallel/exchange_test_impl.h"

namespace ductile::parallel {
namespace {

RC_GTEST_PROP(Exchange, SumsAsOneProcessDoesWhateverTheCut, ()) {
  const Kind kind = *rc::gen::element(Kind::shared, Kind::messages);
  const int64_t num_leaves = *rc::gen::inRange<int64_t>(1, 13);
  const int workers = *rc::gen::inRange(1, std::min<int>(5, static_cast<int>(num_leaves)) + 1);
  const int64_t size = *rc::gen::element<int64_t>(1, 3, 64, 1000, 20'011);
  ExchangeLayout layout{random_cut(num_leaves, workers), size};
  layout.piece_size = *rc::gen::element<int64_t>(0, 1 + size / 3, size, 2 * size);
  layout.exact_tail = *rc::gen::element<int64_t>(0, 1, size / 2, size);
  const int idle = *rc::gen::inRange(0, 2);  // members without virtual ranks
  layout.cut.insert(layout.cut.end(), static_cast<size_t>(idle), num_leaves);
  const Vec expected = serial_sum(num_leaves, size);
  std::vector<int> right(static_cast<size_t>(workers + idle), 0);
  with_workers(kind, layout, [&](Exchange& exchange) {
    for (int round = 0; round < 3; ++round) {
      fill_partials(exchange);
      const std::span<const float> sum = exchange.reduce();
      const auto rank = static_cast<uint64_t>(exchange.rank());
      const bool voted =
          exchange.largest(100 * rank + static_cast<uint64_t>(round)) ==
          100 * static_cast<uint64_t>(workers + idle - 1) + static_cast<uint64_t>(round);
      right[rank] += voted && std::ranges::equal(sum, expected);
    }
  });
  RC_ASSERT(right == std::vector<int>(static_cast<size_t>(workers + idle), 3));
}

TEST(Exchange, OfAWorkerThatIsAloneHasItsSumInThePartial) {
  const int64_t num_leaves = 3, size = 1000;
  const Vec expected = serial_sum(num_leaves, size);
  for (const bool alone : {true, false}) {
    ExchangeLayout layout{{0, num_leaves}, size};
    if (!alone) layout.cut.push_back(num_leaves);  // a member without virtual ranks
    with_workers(Kind::shared, layout, [&](Exchange& exchange) {
      for (const int64_t begin : {0, 7}) {
        fill_partials(exchange);
        const std::span<const float> sum = exchange.reduce_from(begin);
        EXPECT_EQ(sum.data() == exchange.partial(0).data(), alone);
        EXPECT_TRUE(std::equal(sum.begin() + begin, sum.end(), expected.begin() + begin));
        exchange.largest(0);
      }
    });
  }
}

RC_GTEST_PROP(Exchange, AFastSumIsTheSameOnAllAndNearTheCanonicalOne, ()) {
  const Kind kind = *rc::gen::element(Kind::shared, Kind::messages);
  const int64_t num_leaves = *rc::gen::inRange<int64_t>(1, 13);
  const int workers = *rc::gen::inRange(1, std::min<int>(5, static_cast<int>(num_leaves)) + 1);
  const int64_t size = *rc::gen::element<int64_t>(1, 3, 64, 1000, 20'011);
  ExchangeLayout layout{random_cut(num_leaves, workers), size, Reduction::fast};
  if (kind == Kind::messages && *rc::gen::arbitrary<bool>()) layout.wire = DType::bf16;
  layout.piece_size = *rc::gen::element<int64_t>(0, 1 + size / 3);
  layout.exact_tail = *rc::gen::element<int64_t>(0, 1, size / 2);
  const int idle = *rc::gen::inRange(0, 2);
  layout.cut.insert(layout.cut.end(), static_cast<size_t>(idle), num_leaves);
  const Vec expected = serial_sum(num_leaves, size);
  std::vector<std::vector<Vec>> sums(static_cast<size_t>(workers + idle));
  with_workers(kind, layout, [&](Exchange& exchange) {
    for (int round = 0; round < 3; ++round) {
      fill_partials(exchange);
      const std::span<const float> sum = exchange.reduce();
      sums[static_cast<size_t>(exchange.rank())].emplace_back(sum.begin(), sum.end());
      exchange.largest(0);
    }
  });
  const float tolerance = layout.wire ? 0.2F : 1e-4F;
  for (const std::vector<Vec>& rounds : sums) {
    for (const Vec& sum : rounds) RC_ASSERT(sum == sums[0][0]);
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    RC_ASSERT(std::abs(sums[0][0][i] - expected[i]) < tolerance);
  }
}

RC_GTEST_PROP(Exchange, SumsThePartsThatAreWantedAndGathers, ()) {
  const Kind kind = *rc::gen::element(Kind::shared, Kind::messages);
  const int64_t num_leaves = *rc::gen::inRange<int64_t>(1, 13);
  const int workers = *rc::gen::inRange(1, std::min<int>(5, static_cast<int>(num_leaves)) + 1);
  const int64_t size = *rc::gen::element<int64_t>(8, 64, 1000, 20'011);
  ExchangeLayout layout{random_cut(num_leaves, workers), size};
  layout.in_parts = true;
  layout.reduction = *rc::gen::element(Reduction::canonical, Reduction::fast);
  const bool fast = layout.reduction == Reduction::fast;
  if (fast && kind == Kind::messages && *rc::gen::arbitrary<bool>()) layout.wire = DType::f16;
  const int idle = *rc::gen::inRange(0, 2);
  layout.cut.insert(layout.cut.end(), static_cast<size_t>(idle), num_leaves);
  const int all = workers + idle;
  std::vector<std::vector<FloatRange>> wanted(static_cast<size_t>(all));
  for (std::vector<FloatRange>& ranges : wanted) {
    const int64_t a = *rc::gen::inRange<int64_t>(0, size + 1);
    const int64_t b = *rc::gen::inRange<int64_t>(a, size + 1);
    if (a < b) ranges.push_back({a, b});
    if (b < size) ranges.push_back({size - 1, size});
  }
  const Vec expected = serial_sum(num_leaves, size);
  const float tolerance = layout.wire ? 0.05F : fast ? 1e-4F : 0.0F;
  std::vector<int> right(static_cast<size_t>(all), 0);
  with_workers(kind, layout, [&](Exchange& exchange) {
    const auto rank = static_cast<size_t>(exchange.rank());
    for (int round = 0; round < 3; ++round) {
      fill_partials(exchange);
      const std::span<const float> sum = exchange.reduce_parts(wanted);
      bool good = true;
      for (const FloatRange& range : wanted[rank]) {
        for (int64_t i = range.begin; i < range.end; ++i) {
          const auto at = static_cast<size_t>(i);
          good &= std::abs(sum[at] - expected[at]) <= tolerance;
        }
      }
      // Worker r gives r + round times the byte 100 r + round; nothing in between.
      std::vector<size_t> bounds{0};
      for (int r = 0; r < all; ++r) {
        bounds.push_back(bounds.back() + static_cast<size_t>((r + round) % 3));
      }
      std::vector<std::byte> data(bounds.back());
      const auto value = [&](size_t r) { return static_cast<std::byte>(100 * r + round); };
      std::fill(data.begin() + bounds[rank], data.begin() + bounds[rank + 1], value(rank));
      exchange.all_gather(data, bounds);
      for (size_t r = 0; r + 1 < bounds.size(); ++r) {
        for (size_t i = bounds[r]; i < bounds[r + 1]; ++i) good &= data[i] == value(r);
      }
      right[rank] += good;
    }
  });
  RC_ASSERT(right == std::vector<int>(static_cast<size_t>(all), 3));
}

// What ranks do not contribute to is neither filled nor read, and the bits are those of zeros
// there.
RC_GTEST_PROP(Exchange, SumsVectorsThatAreThereInParts, ()) {
  const Kind kind = *rc::gen::element(Kind::shared, Kind::messages);
  const int64_t num_leaves = *rc::gen::inRange<int64_t>(1, 13);
  const int workers = *rc::gen::inRange(1, std::min<int>(5, static_cast<int>(num_leaves)) + 1);
  const int64_t size = *rc::gen::element<int64_t>(8, 64, 1000, 20'011);
  ExchangeLayout layout{random_cut(num_leaves, workers), size};
  layout.in_parts = true;
  const auto random_ranges = [&](int most) {
    std::vector<FloatRange> ranges;
    for (int k = *rc::gen::inRange(0, most + 1); k > 0; --k) {
      const int64_t begin = *rc::gen::inRange<int64_t>(0, size);
      ranges.push_back({begin, *rc::gen::inRange<int64_t>(begin, size + 1)});
    }
    return united(std::move(ranges));
  };
  std::vector<Vec> leaves;
  for (int64_t v = 0; v < num_leaves; ++v) {
    layout.contributions.push_back(random_ranges(3));
    const Vec all = parallel::leaf(v, size);  // another source of this program has one, too
    Vec& own = leaves.emplace_back(all.size(), 0.0F);
    for (const FloatRange& r : layout.contributions.back())
      std::copy(all.begin() + r.begin, all.begin() + r.end, own.begin() + r.begin);
  }
  GradientTree whole(size);
  for (const Vec& own : leaves) {
    std::ranges::copy(own, whole.leaf().begin());
    whole.push();
  }
  const std::span<float> expected = whole.finish();
  std::vector<std::vector<FloatRange>> wanted;
  for (int r = 0; r < workers; ++r) wanted.push_back(random_ranges(2));
  std::vector<int> right(static_cast<size_t>(workers), 0);
  with_workers(kind, layout, [&](Exchange& exchange) {
    const auto rank = static_cast<size_t>(exchange.rank());
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < exchange.nodes().size(); ++i) {
        const comm::LeafRange node = exchange.nodes()[i];
        const std::vector<FloatRange> filled = layout.filled(node);
        std::ranges::fill(exchange.partial(i), std::numeric_limits<float>::quiet_NaN());
        GradientTree tree(size);
        tree.restrict_to(filled);
        tree.sum_into(exchange.partial(i));
        for (int64_t v = node.begin; v < node.end; ++v) {
          const Vec& own = leaves[static_cast<size_t>(v)];
          const std::span<float> out = tree.leaf();
          for (const FloatRange& r : filled)
            std::copy(own.begin() + r.begin, own.begin() + r.end, out.begin() + r.begin);
          tree.push();
        }
        tree.finish();
      }
      const std::span<const float> sum = exchange.reduce_parts(wanted);
      bool good = true;
      for (const FloatRange& range : wanted[rank]) {
        good &= std::equal(sum.begin() + range.begin, sum.begin() + range.end,
                           expected.begin() + range.begin);
      }
      exchange.largest(0);
      right[rank] += good;
    }
  });
  RC_ASSERT(right == std::vector<int>(static_cast<size_t>(workers), 2));
}

TEST(Exchange, CarriesStatesFromOneWorkerToAnother) {
  for (const Kind kind : {Kind::shared, Kind::messages}) {
    const ExchangeLayout layout{{0, 1, 2, 3}, 10};
    std::vector<std::byte> state(3'000'001);
    for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<std::byte>(i * 7);
    std::vector<std::byte> got(state.size());
    with_workers(kind, layout, [&](Exchange& exchange) {
      if (exchange.rank() == 0) {
        exchange.send(2, std::as_bytes(std::span("size", 4)));
        exchange.send(2, state);
      } else if (exchange.rank() == 2) {
        std::byte size[4];
        exchange.receive(0, size);
        exchange.receive(0, got);
      }
      EXPECT_EQ(exchange.largest(static_cast<uint64_t>(exchange.rank())), 2U);
    });
    EXPECT_EQ(got, state);
  }
}

TEST(Exchange, AMessageInTheArenaThatIsLongInComingIsTold) {
  const ExchangeLayout layout{{0, 1, 2}, 100};
  std::atomic<bool> told = false;
  comm::EngineOptions engine;
  engine.soft_deadline = std::chrono::milliseconds(1);
  engine.on_stall = [&](const comm::Stall& stall) {
    EXPECT_EQ(stall.ranks, std::vector<int>{1});
    told = true;
  };
  std::vector<std::jthread> threads;
  for (auto& arena : comm::Arena::for_threads(2, {.region_bytes = arena_bytes(layout)})) {
    threads.emplace_back([&, own = std::shared_ptr<comm::Arena>(std::move(arena))]() mutable {
      const bool waits = own->rank() == 0;
      const auto exchange =
          make_exchange(std::move(own), layout, waits ? engine : comm::EngineOptions());
      comm::Communicator& messages = *exchange->messages();
      std::byte word{};
      if (waits) {
        messages.receive(1, Exchange::kFirstTag, {&word, 1});
      } else {
        while (!told) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        messages.send(0, Exchange::kFirstTag, {&word, 1});
      }
      exchange->largest(0);  // nobody leaves before
    });
  }
}

// Without messages(), as states and the statistics of groups travel.
TEST(Exchange, AStateOrAStatisticInTheArenaThatIsLongInComingIsTold) {
  const ExchangeLayout layout{{0, 1, 2}, 100};
  for (const bool trades : {false, true}) {
    SCOPED_TRACE(trades);
    std::atomic<int> told = 0;
    comm::EngineOptions engine;
    engine.soft_deadline = std::chrono::milliseconds(1);
    engine.on_stall = [&](const comm::Stall& stall) {
      EXPECT_EQ(stall.ranks, std::vector<int>{1});
      EXPECT_TRUE(stall.operation == "receive of 1 bytes" || trades) << stall.operation;
      EXPECT_EQ(stall.sequence, 1U);
      ++told;
    };
    std::vector<std::jthread> threads;
    for (auto& arena : comm::Arena::for_threads(2, {.region_bytes = arena_bytes(layout)})) {
      threads.emplace_back([&, own = std::shared_ptr<comm::Arena>(std::move(arena))]() mutable {
        const bool waits = own->rank() == 0;
        const int peer = waits ? 1 : 0;
        const auto exchange =
            make_exchange(std::move(own), layout, waits ? engine : comm::EngineOptions());
        while (!waits && told == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::byte out{}, in{};
        const PeerMessage theirs[] = {{peer, {&in, 1}}};
        if (trades)
          exchange->trade({&out, 1}, theirs);
        else if (waits)
          exchange->receive(peer, {&in, 1});
        else
          exchange->send(peer, {&out, 1});
        exchange->largest(0);  // nobody leaves before
      });
    }
    threads.clear();
    EXPECT_GE(told, 1);
  }
}

TEST(Exchange, AFailureEndsItEverywhereAndLeavesTheLastSum) {
  {
    const Kind kind = Kind::shared;
    const ExchangeLayout layout{{0, 1, 2, 4}, 5000};
    const Vec expected = serial_sum(4, 5000);
    std::atomic<int> ended = 0;
    with_workers(kind, layout, [&](Exchange& exchange) {
      fill_partials(exchange);
      const std::span<const float> sum = exchange.reduce();
      try {
        if (exchange.rank() == 1) exchange.fail("a test");
        while (true) exchange.largest(1);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::peer_lost) << e.what();
        EXPECT_TRUE(std::ranges::equal(sum, expected));
        ++ended;
      }
    });
    EXPECT_EQ(ended, 3);
  }
}

}  // namespace
}  // namespace ductile::parallel
