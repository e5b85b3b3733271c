#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <rapidcheck.h>

#include "ductile/base/rng.h"
#include "ductile/comm/inproc.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/gradient_tree.h"

// For tests: workers as threads, and what their virtual ranks contribute.
namespace ductile::parallel {

using Vec = std::vector<float>;

inline Vec leaf(int64_t v, int64_t size, uint64_t step = 7) {
  Rng rng(step, static_cast<uint64_t>(v));
  Vec out(static_cast<size_t>(size));
  for (float& x : out) x = rng.normal();
  return out;
}

inline Vec serial_sum(int64_t num_leaves, int64_t size, uint64_t step = 7) {
  GradientTree tree(size);
  for (int64_t v = 0; v < num_leaves; ++v) {
    std::ranges::copy(leaf(v, size, step), tree.leaf().begin());
    tree.push();
  }
  const std::span<float> sum = tree.finish();
  return {sum.begin(), sum.end()};
}

enum class Kind { shared, messages };

// Runs `body` on a thread for each worker.
inline void with_workers(Kind kind, const ExchangeLayout& layout,
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

inline std::vector<int64_t> random_cut(int64_t num_leaves, int num_workers) {
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
inline void fill_partials(Exchange& exchange, uint64_t step = 7) {
  const int64_t size = exchange.layout().vector_size;
  for (size_t i = 0; i < exchange.nodes().size(); ++i) {
    const comm::LeafRange node = exchange.nodes()[i];
    GradientTree tree(size);
    tree.sum_into(exchange.partial(i));
    const bool early = exchange.sums_early() && i + 1 == exchange.nodes().size();
    for (int64_t v = node.begin; v + early < node.end; ++v) {
      std::ranges::copy(leaf(v, size, step), tree.leaf().begin());
      tree.push();
    }
    if (early) {
      const Vec last = leaf(node.end - 1, size, step);
      const std::span<float> out = tree.leaf();
      const int64_t tail = size - exchange.layout().exact_tail;
      for (int64_t end = tail; end > 0; end -= std::min<int64_t>(end, 1 + size / 7)) {
        const int64_t begin = std::max<int64_t>(0, end - 1 - size / 7);
        std::copy(last.begin() + begin, last.begin() + end, out.begin() + begin);
        tree.finish_part(begin, end);
        if (begin > 0) exchange.ready(begin);
      }
      // The tail comes last, after all else may be on its way.
      std::copy(last.begin() + tail, last.end(), out.begin() + tail);
      if (tail < size) tree.finish_part(tail, size);
    }
    tree.finish();
  }
}

}  // namespace ductile::parallel
