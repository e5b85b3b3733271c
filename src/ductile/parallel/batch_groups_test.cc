#include "ductile/parallel/batch_groups.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/comm/inproc.h"

namespace ductile::parallel {
namespace {

using Doubles = std::vector<double>;

// What virtual rank v brings to its m-th sum. Magnitudes differ: another order, other bits.
Doubles leaf(int64_t v, int m, size_t size) {
  Rng rng(11, static_cast<uint64_t>(v) * 100 + static_cast<uint64_t>(m));
  Doubles out(size);
  for (double& x : out) x = std::ldexp(rng.normal(), static_cast<int>(rng.below(40)));
  return out;
}

// By the definition of the canonical tree.
Doubles serial_doubles(int64_t begin, int64_t count, int m, size_t size) {
  if (count == 1) return leaf(begin, m, size);
  const int64_t left = comm::left_leaves(count);
  Doubles a = serial_doubles(begin, left, m, size);
  const Doubles b = serial_doubles(begin + left, count - left, m, size);
  for (size_t i = 0; i < size; ++i) a[i] += b[i];
  return a;
}

struct Workers {
  Workers(bool shared, ExchangeLayout of) : layout(std::move(of)) {
    const int n = layout.num_workers();
    if (shared) {
      for (auto& arena : comm::Arena::for_threads(n, {.region_bytes = arena_bytes(layout)})) {
        exchanges.push_back(make_exchange(std::shared_ptr(std::move(arena)), layout));
      }
      return;
    }
    for (auto& transport : comm::make_inproc_transports(n)) {
      exchanges.push_back(
          make_exchange(std::make_unique<comm::Communicator>(std::move(transport)), layout));
    }
  }
  // Each worker runs all its parts; body(v) on each of its virtual ranks.
  void run(int64_t group_size, const std::function<void(int64_t)>& body) {
    std::vector<std::jthread> threads;
    for (auto& exchange : exchanges) {
      threads.emplace_back([&] {
        try {
          BatchGroups groups(group_size, layout, exchange->rank(), exchange.get());
          for (size_t p = 0; p < groups.parts().size(); ++p) groups.run(p, body);
        } catch (const std::exception& e) {
          const std::lock_guard lock(mutex);
          errors.emplace_back(e.what());
          exchange->fail(e.what());
          exchange.reset();
        }
      });
    }
  }
  ExchangeLayout layout;
  std::vector<std::unique_ptr<Exchange>> exchanges;
  std::mutex mutex;
  std::vector<std::string> errors;
};

std::vector<int64_t> random_cut(int64_t num_ranks, int num_workers) {
  std::vector<int64_t> inner;
  for (int64_t v = 1; v < num_ranks; ++v) inner.push_back(v);
  while (static_cast<int>(inner.size()) > num_workers - 1) {
    inner.erase(inner.begin() + *rc::gen::inRange<int64_t>(0, static_cast<int64_t>(inner.size())));
  }
  inner.insert(inner.begin(), 0);
  inner.push_back(num_ranks);
  return inner;
}

RC_GTEST_PROP(BatchGroups, EveryMemberGetsTheCanonicalSumWhateverTheCut, ()) {
  const bool shared = *rc::gen::arbitrary<bool>();
  const int64_t size = *rc::gen::inRange<int64_t>(1, 9);
  const int64_t ranks = size * *rc::gen::inRange<int64_t>(1, 5);
  const int workers = *rc::gen::inRange(1, std::min<int>(5, static_cast<int>(ranks)) + 1);
  const size_t length = *rc::gen::element<size_t>(1, 33, 3000);
  Workers all(shared, {random_cut(ranks, workers), 16});
  std::vector<int> movers(static_cast<size_t>(ranks / size), 0);
  std::vector<int> right(static_cast<size_t>(ranks), 0);
  std::mutex mutex;
  all.run(size, [&](int64_t v) {
    nn::BatchGroup* group = nn::current_batch_group();
    if (size == 1) {
      right[static_cast<size_t>(v)] = group == nullptr ? 3 : 0;
      return;
    }
    for (int m = 0; m < 3; ++m) {
      Doubles values = leaf(v, m, length);
      group->sum(values);
      right[static_cast<size_t>(v)] += values == serial_doubles(v / size * size, size, m, length);
    }
    const std::lock_guard lock(mutex);
    movers[static_cast<size_t>(v / size)] += group->moves_running_statistics();
  });
  RC_ASSERT(all.errors.empty());
  for (const int r : right) RC_ASSERT(r == 3);
  // One for each worker that takes part in the group.
  if (size == 1) return;
  for (int64_t g = 0; g < ranks / size; ++g) {
    int present = 0;
    for (int w = 0; w < workers; ++w) {
      const auto at = static_cast<size_t>(w);
      present += all.layout.cut[at] < (g + 1) * size && all.layout.cut[at + 1] > g * size;
    }
    RC_ASSERT(movers[static_cast<size_t>(g)] == present);
  }
}

TEST(BatchGroups, CutGroupsComeFirstEvenOnesBeforeOddOnes) {
  const BatchGroups one(2, {{0, 8}, 1}, 0, nullptr);
  EXPECT_EQ(one.parts(), (std::vector<comm::LeafRange>{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  Workers all(true, {{0, 3, 9, 12}, 1});
  const BatchGroups middle(2, all.layout, 1, all.exchanges[1].get());
  EXPECT_EQ(middle.parts(), (std::vector<comm::LeafRange>{{8, 9}, {3, 4}, {4, 6}, {6, 8}}));
}

// The one that fails and those that wait for it, in the same worker and in others.
RC_GTEST_PROP(BatchGroups, ALostMemberEndsAllOfThem, ()) {
  const bool shared = *rc::gen::arbitrary<bool>();
  const int64_t ranks = 6, bad = *rc::gen::inRange<int64_t>(0, ranks);
  const int workers = *rc::gen::inRange(1, 4), at = *rc::gen::inRange(0, 3);
  Workers all(shared, {random_cut(ranks, workers), 16});
  all.run(ranks, [&](int64_t v) {
    for (int m = 0; m < 3; ++m) {
      if (m == at && v == bad) fail(ErrorCode::peer_lost, "gone");
      Doubles values(100, 1.0);
      nn::current_batch_group()->sum(values);
    }
  });
  RC_ASSERT(static_cast<int>(all.errors.size()) == workers);
  if (!shared) return;  // there a loss's reason is each transport's own
  for (const std::string& e : all.errors) RC_ASSERT(e.find("gone") != std::string::npos);
}

}  // namespace
}  // namespace ductile::parallel
