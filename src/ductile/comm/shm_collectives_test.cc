#include "ductile/comm/shm_collectives.h"

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/comm/reduce_kernels.h"
#include "ductile/comm/testing/even_cut.h"
#include "ductile/comm/testing/local_processes.h"

namespace ductile::comm {
namespace {

using namespace std::chrono_literals;

// Runs `body` on a thread for each rank.
void each(const std::vector<std::unique_ptr<Arena>>& arenas,
          const std::function<void(Arena&)>& body) {
  std::vector<std::jthread> threads;
  for (const auto& arena : arenas) threads.emplace_back([&] { body(*arena); });
}

float value_at(int rank, size_t i, uint64_t salt = 0) {
  const uint64_t bits = mix(static_cast<uint64_t>(rank) * 1000003 + salt, i);
  return static_cast<float>(static_cast<int64_t>(bits % 2000001) - 1000000) * 1.37e-3f;
}

// In rank order, as the contract says.
float sum_at(int size, size_t i, uint64_t salt = 0) {
  float sum = value_at(0, i, salt);
  for (int r = 1; r < size; ++r) sum += value_at(r, i, salt);
  return sum;
}

std::byte* bytes_of(float* p) { return reinterpret_cast<std::byte*>(p); }

RC_GTEST_PROP(ShmCollectives, AllReduceSumsInRankOrderForAnySizeAndAlignment, ()) {
  const int size = *rc::gen::inRange(1, 7);
  const size_t n =
      *rc::gen::oneOf(rc::gen::inRange<size_t>(0, 300), rc::gen::inRange<size_t>(8000, 60000));
  const bool inside = *rc::gen::arbitrary<bool>();
  const size_t shift = *rc::gen::inRange<size_t>(0, 9);
  const auto arenas = Arena::for_threads(size, {.region_bytes = 1 << 20});
  std::vector<int> wrong(static_cast<size_t>(size), 0);
  each(arenas, [&](Arena& arena) {
    std::vector<float> outside(n + shift + 1);
    float* const block =
        inside ? reinterpret_cast<float*>(arena.allocate((n + shift + 1) * 4)) : outside.data();
    float* const data = block + shift;
    for (uint64_t round = 0; round < 3; ++round) {
      for (size_t i = 0; i < n; ++i) data[i] = value_at(arena.rank(), i, round);
      data[n] = 77;
      all_reduce(arena, DType::f32, bytes_of(data), n);
      for (size_t i = 0; i < n; ++i) wrong[arena.rank()] += data[i] != sum_at(size, i, round);
      wrong[arena.rank()] += data[n] != 77;
    }
  });
  RC_ASSERT(wrong == std::vector<int>(static_cast<size_t>(size), 0));
}

TEST(ShmCollectives, AllReduceServesEveryTypeThatHasASum) {
  for (const DType type : {DType::f64, DType::bf16, DType::f16, DType::i64}) {
    for (const size_t n : {size_t{33}, size_t{50001}}) {
      const auto arenas = Arena::for_threads(3, {.region_bytes = 1 << 20});
      each(arenas, [&](Arena& arena) {
        const size_t bytes = n * size_of(type);
        std::vector<std::vector<std::byte>> all;
        std::vector<const std::byte*> sources;
        for (int r = 0; r < 3; ++r) {
          all.emplace_back(bytes);
          for (size_t i = 0; i < n; ++i) {
            const double d = static_cast<double>(value_at(r, i));
            const float f = static_cast<float>(d);
            const int64_t l = static_cast<int64_t>(d * 1e9);
            if (type == DType::f64) std::memcpy(&all[r][i * 8], &d, 8);
            if (type == DType::i64) std::memcpy(&all[r][i * 8], &l, 8);
            if (size_of(type) == 2) narrow(type, &all[r][i * 2], &f, 1);
          }
          sources.push_back(all.back().data());
        }
        std::vector<std::byte> expected(bytes);
        scalar_reduce_kernels().sum(type)(std::array{expected.data()}.data(), 1, sources.data(), 3,
                                          n, Stores::cached);
        std::byte* const data = arena.allocate(bytes);
        std::memcpy(data, all[arena.rank()].data(), bytes);
        all_reduce(arena, type, data, n);
        EXPECT_EQ(std::memcmp(data, expected.data(), bytes), 0) << to_string(type) << " " << n;
      });
    }
  }
}

RC_GTEST_PROP(ShmCollectives, ReduceScatterThenAllGatherEqualsAllReduce, ()) {
  const int size = *rc::gen::inRange(1, 6);
  std::vector<size_t> bounds(static_cast<size_t>(size) + 1);
  for (size_t& b : bounds) b = *rc::gen::inRange<size_t>(0, 40000);
  std::sort(bounds.begin(), bounds.end());
  const auto arenas = Arena::for_threads(size, {.region_bytes = 1 << 20});
  std::vector<int> wrong(static_cast<size_t>(size), 0);
  each(arenas, [&](Arena& arena) {
    const int rank = arena.rank();
    const size_t n = bounds.back();
    auto* const data = reinterpret_cast<float*>(arena.allocate((n + 1) * 4));
    for (size_t i = 0; i < n; ++i) data[i] = value_at(rank, i);
    reduce_scatter(arena, DType::f32, bytes_of(data), bounds);
    for (size_t i = 0; i < n; ++i) {
      const bool own = i >= bounds[rank] && i < bounds[rank + 1];
      wrong[rank] += data[i] != (own ? sum_at(size, i) : value_at(rank, i));
    }
    all_gather(arena, DType::f32, bytes_of(data), bounds);
    for (size_t i = bounds[0]; i < n; ++i) wrong[rank] += data[i] != sum_at(size, i);
  });
  RC_ASSERT(wrong == std::vector<int>(static_cast<size_t>(size), 0));
}

RC_GTEST_PROP(ShmCollectives, BroadcastCopiesFromAnyRoot, ()) {
  const int size = *rc::gen::inRange(1, 6), root = *rc::gen::inRange(0, size);
  const size_t bytes =
      *rc::gen::oneOf(rc::gen::inRange<size_t>(0, 100), rc::gen::inRange<size_t>(30000, 200000));
  const bool inside = *rc::gen::arbitrary<bool>();
  const auto arenas = Arena::for_threads(size, {.region_bytes = 1 << 20});
  std::vector<int> wrong(static_cast<size_t>(size), 0);
  each(arenas, [&](Arena& arena) {
    std::vector<std::byte> outside(bytes + 1);
    std::byte* const data = inside ? arena.allocate(bytes + 1) : outside.data();
    for (size_t i = 0; i < bytes; ++i) {
      data[i] = static_cast<std::byte>(arena.rank() == root ? mix(3, i) : 0);
    }
    broadcast(arena, data, bytes, root);
    for (size_t i = 0; i < bytes; ++i) {
      wrong[arena.rank()] += data[i] != static_cast<std::byte>(mix(3, i));
    }
  });
  RC_ASSERT(wrong == std::vector<int>(static_cast<size_t>(size), 0));
}

// Random additions over random inputs, against the same taken on whole vectors.
RC_GTEST_PROP(ShmCollectives, CombineFollowsTheGivenOrder, ()) {
  const int size = *rc::gen::inRange(1, 5);
  const int per_rank = *rc::gen::inRange(1, 4), num_inputs = size * per_rank;
  const size_t n = *rc::gen::inRange<size_t>(0, 20000);
  const int out = *rc::gen::inRange(0, per_rank);
  std::vector<Combine> steps(*rc::gen::inRange<size_t>(0, 12));
  for (Combine& s : steps) s = {*rc::gen::inRange(0, num_inputs), *rc::gen::inRange(0, num_inputs)};
  std::vector<std::vector<float>> inputs(static_cast<size_t>(num_inputs));
  for (int v = 0; v < num_inputs; ++v) {
    for (size_t i = 0; i < n; ++i) inputs[v].push_back(value_at(v, i));
  }
  std::vector<std::vector<float>> values = inputs;
  for (const Combine& s : steps) {
    for (size_t i = 0; i < n; ++i) values[s.left][i] += values[s.right][i];
  }
  const auto arenas = Arena::for_threads(size, {.region_bytes = 1 << 20});
  std::vector<int> wrong(static_cast<size_t>(size), 0);
  each(arenas, [&](Arena& arena) {
    std::vector<std::byte*> own;
    for (int k = 0; k < per_rank; ++k) {
      own.push_back(arena.allocate(n * 4));
      if (n > 0) std::memcpy(own[k], inputs[arena.rank() * per_rank + k].data(), n * 4);
    }
    std::vector<const std::byte*> all;
    for (int v = 0; v < num_inputs; ++v) {
      all.push_back(arena.peer(v / per_rank, own[v % per_rank]));
    }
    all_reduce_combine(arena, DType::f32, all, steps, own[out], n);
    for (int k = 0; k < per_rank && n > 0; ++k) {
      const auto& expected = k == out ? values[0] : inputs[arena.rank() * per_rank + k];
      wrong[arena.rank()] += std::memcmp(own[k], expected.data(), n * 4) != 0;
    }
  });
  RC_ASSERT(wrong == std::vector<int>(static_cast<size_t>(size), 0));
}

// The whole way: V leaves spread over workers unevenly, and the bits of one worker.
TEST(ShmCollectives, CombineGivesTheCanonicalSumForEveryNumberOfRanks) {
  const int64_t num_leaves = 11;
  const size_t n = 3001;
  std::vector<float> expected;
  for (int size = 1; size <= 5; ++size) {
    const std::vector<int64_t> cut = even_cut(num_leaves, size);
    std::vector<LeafRange> pieces;
    std::vector<int> owner;
    for (int r = 0; r < size; ++r) {
      for (const LeafRange& piece : cover(num_leaves, {cut[r], cut[r + 1]})) {
        pieces.push_back(piece);
        owner.push_back(r);
      }
    }
    const std::vector<Combine> steps = combine_order(num_leaves, pieces);
    const std::function<float(LeafRange, size_t)> subtree = [&](LeafRange range, size_t i) {
      if (range.size() == 1) return value_at(static_cast<int>(range.begin), i);
      const int64_t middle = range.begin + left_leaves(range.size());
      return subtree({range.begin, middle}, i) + subtree({middle, range.end}, i);
    };
    const auto arenas = Arena::for_threads(size, {.region_bytes = 1 << 20});
    std::vector<std::vector<float>> results(static_cast<size_t>(size));
    each(arenas, [&](Arena& arena) {
      std::vector<std::byte*> own;  // as many blocks on every rank, for equal offsets
      for (int k = 0; k < 8; ++k) own.push_back(arena.allocate(4 * n));
      std::vector<const std::byte*> inputs;
      std::vector<int> used(static_cast<size_t>(size), 0);
      for (size_t p = 0; p < pieces.size(); ++p) {
        std::byte* const block = own[used[owner[p]]++];
        inputs.push_back(arena.peer(owner[p], block));
        if (owner[p] != arena.rank()) continue;
        for (size_t i = 0; i < n; ++i) {
          reinterpret_cast<float*>(block)[i] = subtree(pieces[p], i);
        }
      }
      all_reduce_combine(arena, DType::f32, inputs, steps, own[0], n);
      const auto* const result = reinterpret_cast<const float*>(own[0]);
      results[arena.rank()].assign(result, result + n);
    });
    if (size == 1) expected = results[0];
    for (const auto& result : results) EXPECT_EQ(result, expected) << size;
  }
}

TEST(ShmCollectives, CombineRefusesWhatMakesNoSense) {
  const auto arenas = Arena::for_threads(1, {.region_bytes = 1 << 20});
  std::byte* const data = arenas[0]->allocate(64);
  const std::vector<const std::byte*> inputs{data, data};
  std::vector<float> outside(16);
  const auto run = [&](std::vector<Combine> steps, std::byte* out) {
    all_reduce_combine(*arenas[0], DType::f32, inputs, steps, out, 16);
  };
  EXPECT_THROW(run({{0, 2}}, data), Error);
  EXPECT_THROW(run({{-1, 0}}, data), Error);
  EXPECT_THROW(run({}, bytes_of(outside.data())), Error);
  EXPECT_NO_THROW(run({{0, 1}, {0, 0}}, data));
}

TEST(ShmCollectives, RanksThatCallDifferentThingsAreTold) {
  const auto arenas = Arena::for_threads(3, {.region_bytes = 1 << 20});
  std::vector<ErrorCode> codes(3, ErrorCode::internal);
  each(arenas, [&](Arena& arena) {
    std::vector<float> data(arena.rank() == 1 ? 101 : 100);
    try {
      all_reduce(arena, DType::f32, bytes_of(data.data()), data.size());
    } catch (const Error& e) {
      codes[arena.rank()] = e.code();
    }
  });
  for (const ErrorCode code : codes) {
    EXPECT_TRUE(code == ErrorCode::conflict || code == ErrorCode::peer_lost);
  }
}

TEST(ShmCollectives, MixedKindsInARowKeepApart) {
  const int size = 4;
  const auto arenas = Arena::for_threads(size, {.region_bytes = 4 << 20});
  each(arenas, [&](Arena& arena) {
    const size_t large = 100000, small = 77;
    auto* const a = reinterpret_cast<float*>(arena.allocate(large * 4));
    std::vector<float> b(small), c(300000 / 4 + 5);
    for (uint64_t round = 0; round < 12; ++round) {
      for (size_t i = 0; i < large; ++i) a[i] = value_at(arena.rank(), i, round);
      for (size_t i = 0; i < small; ++i) b[i] = value_at(arena.rank(), i, round + 1);
      for (size_t i = 0; i < c.size(); ++i) c[i] = value_at(arena.rank(), i, round + 2);
      all_reduce(arena, DType::f32, bytes_of(a), large);
      all_reduce(arena, DType::f32, bytes_of(b.data()), small);
      all_reduce(arena, DType::f32, bytes_of(c.data()), c.size());
      broadcast(arena, bytes_of(b.data()), small * 4, static_cast<int>(round % size));
      for (size_t i = 0; i < large; i += 97) ASSERT_EQ(a[i], sum_at(size, i, round));
      for (size_t i = 0; i < small; ++i) ASSERT_EQ(b[i], sum_at(size, i, round + 1));
      for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(c[i], sum_at(size, i, round + 2));
    }
  });
}

TEST(ShmCollectives, ProcessesGetTheSumsThatThreadsGet) {
  const std::string name = fresh_arena_name();
  LocalProcesses processes(4, [&](int rank) {
    const auto arena = Arena::meet(name, rank, 4, {.region_bytes = 8 << 20}, 20s);
    const size_t n = 300001;
    auto* const data = reinterpret_cast<float*>(arena->allocate(n * 4));
    for (uint64_t round = 0; round < 5; ++round) {
      for (size_t i = 0; i < n; ++i) data[i] = value_at(rank, i, round);
      all_reduce(*arena, DType::f32, bytes_of(data), n);
      for (size_t i = 0; i < n; ++i) {
        if (data[i] != sum_at(4, i, round)) return 1;
      }
    }
    return 0;
  });
  for (int r = 0; r < 4; ++r) EXPECT_EQ(processes.wait(r), 0);
}

}  // namespace
}  // namespace ductile::comm
