#include "ductile/parallel/exchange.h"

#include <thread>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/comm/inproc.h"
#include "ductile/parallel/gradient_tree.h"

namespace ductile::parallel {
namespace {

using Vec = std::vector<float>;

Vec leaf(int64_t v, int64_t size) {
  Rng rng(7, static_cast<uint64_t>(v));
  Vec out(static_cast<size_t>(size));
  for (float& x : out) x = rng.normal();
  return out;
}

Vec serial_sum(int64_t num_leaves, int64_t size) {
  GradientTree tree(size);
  for (int64_t v = 0; v < num_leaves; ++v) {
    std::ranges::copy(leaf(v, size), tree.leaf().begin());
    tree.push();
  }
  const std::span<float> sum = tree.finish();
  return {sum.begin(), sum.end()};
}

enum class Kind { shared, messages };

// Runs `body` on a thread for each worker.
void with_workers(Kind kind, const ExchangeLayout& layout,
                  const std::function<void(Exchange&)>& body) {
  const int n = layout.num_workers();
  std::vector<std::unique_ptr<Exchange>> exchanges;
  if (kind == Kind::shared) {
    for (auto& arena : comm::Arena::for_threads(n, {.region_bytes = arena_bytes(layout)})) {
      exchanges.push_back(make_exchange(std::shared_ptr(std::move(arena)), layout));
    }
  } else {
    for (auto& transport : comm::make_inproc_transports(n)) {
      exchanges.push_back(
          make_exchange(std::make_unique<comm::Communicator>(std::move(transport)), layout));
    }
  }
  std::vector<std::jthread> threads;
  for (auto& exchange : exchanges) threads.emplace_back([&] { body(*exchange); });
}

std::vector<int64_t> random_cut(int64_t num_leaves, int num_workers) {
  std::vector<int64_t> inner;
  std::vector<int64_t> all;
  for (int64_t v = 1; v < num_leaves; ++v) all.push_back(v);
  while (static_cast<int>(inner.size()) < num_workers - 1) {
    const size_t i = *rc::gen::inRange<size_t>(0, all.size());
    inner.push_back(all[i]);
    all.erase(all.begin() + static_cast<ptrdiff_t>(i));
  }
  std::sort(inner.begin(), inner.end());
  inner.insert(inner.begin(), 0);
  inner.push_back(num_leaves);
  return inner;
}

// What this worker's virtual ranks contribute.
void fill_partials(Exchange& exchange) {
  const int64_t size = exchange.layout().vector_size;
  for (size_t i = 0; i < exchange.nodes().size(); ++i) {
    const comm::LeafRange node = exchange.nodes()[i];
    GradientTree tree(size);
    tree.sum_into(exchange.partial(i));
    for (int64_t v = node.begin; v < node.end; ++v) {
      std::ranges::copy(leaf(v, size), tree.leaf().begin());
      tree.push();
    }
    tree.finish();
  }
}

RC_GTEST_PROP(Exchange, sums_as_one_process_does_whatever_the_cut, ()) {
  const Kind kind = *rc::gen::element(Kind::shared, Kind::messages);
  const int64_t num_leaves = *rc::gen::inRange<int64_t>(1, 13);
  const int workers = *rc::gen::inRange(1, std::min<int>(5, static_cast<int>(num_leaves)) + 1);
  const int64_t size = *rc::gen::element<int64_t>(1, 3, 64, 1000, 20'011);
  ExchangeLayout layout{random_cut(num_leaves, workers), size};
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

RC_GTEST_PROP(Exchange, a_fast_sum_is_the_same_on_all_and_near_the_canonical_one, ()) {
  const Kind kind = *rc::gen::element(Kind::shared, Kind::messages);
  const int64_t num_leaves = *rc::gen::inRange<int64_t>(1, 13);
  const int workers = *rc::gen::inRange(1, std::min<int>(5, static_cast<int>(num_leaves)) + 1);
  const int64_t size = *rc::gen::element<int64_t>(1, 3, 64, 1000, 20'011);
  ExchangeLayout layout{random_cut(num_leaves, workers), size, Reduction::fast};
  if (kind == Kind::messages && *rc::gen::arbitrary<bool>()) layout.wire = DType::bf16;
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

TEST(Exchange, carries_states_from_one_worker_to_another) {
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

TEST(Exchange, a_failure_ends_it_everywhere_and_leaves_the_last_sum) {
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
