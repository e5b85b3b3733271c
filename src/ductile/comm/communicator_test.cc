#include "ductile/comm/communicator.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <span>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/comm/canonical.h"
#include "ductile/comm/reduce_kernels.h"
#include "ductile/comm/testing/rank_threads.h"

namespace ductile::comm {
namespace {

constexpr DType kTypes[] = {DType::u8,  DType::i8,  DType::u16,  DType::i16, DType::u32, DType::i32,
                            DType::i64, DType::f16, DType::bf16, DType::f32, DType::f64};

// Small whole numbers, which every type adds exactly in any order.
double small(uint64_t seed, int64_t i) { return static_cast<double>(mix(seed, i) % 7); }

void store(DType type, std::byte* at, double value) {
  const auto put = [&](auto v) { std::memcpy(at, &v, sizeof(v)); };
  switch (type) {
    case DType::u8:
      return put(static_cast<uint8_t>(value));
    case DType::i8:
      return put(static_cast<int8_t>(value));
    case DType::u16:
      return put(static_cast<uint16_t>(value));
    case DType::i16:
      return put(static_cast<int16_t>(value));
    case DType::u32:
      return put(static_cast<uint32_t>(value));
    case DType::i32:
      return put(static_cast<int32_t>(value));
    case DType::i64:
      return put(static_cast<int64_t>(value));
    case DType::f32:
      return put(static_cast<float>(value));
    case DType::f64:
      return put(value);
    case DType::f16:
    case DType::bf16: {
      const auto f = static_cast<float>(value);
      narrow(type, at, &f, 1);
    }
  }
}

// A buffer of `count` elements that begins `shift` bytes off any boundary, with guards around it.
struct Buffer {
  Buffer(DType type, int64_t count, size_t shift)
      : type(type), count(count), shift(shift), bytes(count * size_of(type) + shift + 16) {
    std::fill(bytes.begin(), bytes.end(), std::byte{0xa5});
  }
  std::byte* data() { return bytes.data() + shift; }
  void fill(uint64_t seed) {
    for (int64_t i = 0; i < count; ++i) store(type, data() + i * size_of(type), small(seed, i));
  }
  bool guarded() const {
    const size_t end = shift + count * size_of(type);
    for (size_t i = 0; i < bytes.size(); ++i) {
      if ((i < shift || i >= end) && bytes[i] != std::byte{0xa5}) return false;
    }
    return true;
  }
  // Index of the first element that is not expected(i); -1 if none.
  int64_t first_wrong(const std::function<double(int64_t)>& expected) {
    std::byte want[8];
    for (int64_t i = 0; i < count; ++i) {
      store(type, want, expected(i));
      if (std::memcmp(want, data() + i * size_of(type), size_of(type)) != 0) return i;
    }
    return -1;
  }

  DType type;
  int64_t count;
  size_t shift;
  std::vector<std::byte> bytes;
};

int64_t random_count(Rng& rng) {
  switch (rng.below(5)) {
    case 0:
      return 0;
    case 1:
      return 1;
    case 2:
      return rng.below(40);
    case 3:
      return rng.below(3000);
    default:
      return rng.below(60'000);
  }
}

struct Draw {
  int size;
  int64_t count;
  DType type;
  Algorithm algorithm;
  CallOptions options;
  CommunicatorOptions communicator;
  InprocOptions inproc;
  uint64_t seed;

  Draw(Rng& rng, Collective collective) {
    size = 1 + static_cast<int>(rng.below(9));
    count = random_count(rng);
    type = kTypes[rng.below(std::size(kTypes))];
    const auto algorithms = algorithms_of(collective);
    options.algorithm = algorithms[rng.below(algorithms.size())];
    options.reduction = static_cast<Reduction>(rng.below(3));
    options.pipeline = static_cast<int>(rng.below(4));
    if (type == DType::f32 && rng.below(3) == 0) {
      options.wire = rng.below(2) == 0 ? DType::f16 : DType::bf16;
    }
    communicator.topology.ranks_per_host = 1 + static_cast<int>(rng.below(3));
    communicator.engine.min_open_sends = 1 + static_cast<int>(rng.below(4));
    communicator.engine.open_send_bytes = rng.below(2) == 0 ? 0 : 1 << 20;
    communicator.engine.min_open_receives = 1 + static_cast<int>(rng.below(4));
    communicator.engine.open_receive_bytes = rng.below(2) == 0 ? 0 : 1 << 20;
    inproc.eager_bytes = rng.below(2) == 0 ? 0 : 4096;
    seed = rng.next64();
  }

  std::string text() const {
    return fmt::format("{} ranks, {} {}, {} {}, pipeline {}, wire {}, eager {}, windows {} {}",
                       size, count, to_string(type), to_string(options.algorithm),
                       to_string(options.reduction), options.pipeline,
                       options.wire ? to_string(*options.wire) : "none", inproc.eager_bytes,
                       communicator.engine.min_open_sends, communicator.engine.min_open_receives);
  }

  double reduced(int64_t i) const {
    double v = small(mix(seed, 0), i);
    for (int r = 1; r < size; ++r) {
      const double x = small(mix(seed, r), i);
      v = options.reduction == Reduction::sum   ? v + x
          : options.reduction == Reduction::min ? std::min(v, x)
                                                : std::max(v, x);
    }
    return v;
  }

  void run(const std::function<void(Communicator&)>& body) const {
    SCOPED_TRACE(text());
    ASSERT_NO_THROW(run_ranks(size, body, communicator, inproc)) << text();
  }
};

constexpr int kDraws = 150;

TEST(Communicator, AllReduceEqualsTheSerialSum) {
  Rng rng(11);
  for (int i = 0; i < kDraws; ++i) {
    const Draw d(rng, Collective::all_reduce);
    const bool in_place = rng.below(2) == 0;
    const size_t shift = rng.below(9);
    const bool async = rng.below(2) == 0;
    d.run([&](Communicator& comm) {
      Buffer in(d.type, d.count, shift);
      Buffer out(d.type, d.count, shift / 2);
      in.fill(mix(d.seed, comm.rank()));
      Buffer& result = in_place ? in : out;
      if (async) {
        comm.start_all_reduce(in.data(), result.data(), d.count, d.type, d.options).wait();
      } else {
        comm.all_reduce(in.data(), result.data(), d.count, d.type, d.options);
      }
      EXPECT_EQ(result.first_wrong([&](int64_t k) { return d.reduced(k); }), -1) << d.text();
      EXPECT_TRUE(in.guarded() && out.guarded()) << d.text();
      if (!in_place) {
        EXPECT_EQ(in.first_wrong([&](int64_t k) { return small(mix(d.seed, comm.rank()), k); }),
                  -1);
      }
    });
  }
}

TEST(Communicator, ReduceScatterAndAllGatherEqualTheirSerialTwins) {
  Rng rng(12);
  for (int i = 0; i < kDraws; ++i) {
    const Draw d(rng, Collective::reduce_scatter);
    const size_t shift = rng.below(9);
    const bool in_place = rng.below(2) == 0;
    d.run([&](Communicator& comm) {
      const int64_t count = d.count / 4;
      Buffer all(d.type, count * d.size, shift);
      Buffer own(d.type, count, shift);
      all.fill(mix(d.seed, comm.rank()));
      comm.reduce_scatter(all.data(), own.data(), count, d.type, d.options);
      const int64_t first = comm.rank() * count;
      EXPECT_EQ(own.first_wrong([&](int64_t k) { return d.reduced(first + k); }), -1) << d.text();
      Buffer gathered(d.type, count * d.size, shift);
      const std::byte* from = own.data();
      if (in_place) {
        from = gathered.data() + first * size_of(d.type);
        std::memcpy(const_cast<std::byte*>(from), own.data(), count * size_of(d.type));
      }
      comm.all_gather(from, gathered.data(), count, d.type, d.options);
      EXPECT_EQ(gathered.first_wrong([&](int64_t k) { return d.reduced(k); }), -1) << d.text();
      EXPECT_TRUE(all.guarded() && own.guarded() && gathered.guarded());
    });
  }
}

TEST(Communicator, BroadcastAndAllToAllEqualTheirSerialTwins) {
  Rng rng(13);
  for (int i = 0; i < kDraws; ++i) {
    const Draw d(rng, Collective::broadcast);
    const int root = static_cast<int>(rng.below(d.size));
    d.run([&](Communicator& comm) {
      Buffer data(d.type, d.count, 3);
      if (comm.rank() == root) data.fill(d.seed);
      comm.broadcast(data.data(), d.count, d.type, root, d.options);
      EXPECT_EQ(data.first_wrong([&](int64_t k) { return small(d.seed, k); }), -1) << d.text();

      const int64_t count = d.count / 8;
      Buffer in(d.type, count * d.size, 1);
      Buffer out(d.type, count * d.size, 2);
      in.fill(mix(d.seed, comm.rank()));
      CallOptions options = d.options;
      options.algorithm = Algorithm::direct;
      comm.all_to_all(in.data(), out.data(), count, d.type, options);
      EXPECT_EQ(out.first_wrong([&](int64_t k) {
        return small(mix(d.seed, k / count), comm.rank() * count + k % count);
      }),
                -1)
          << d.text();
      EXPECT_TRUE(data.guarded() && in.guarded() && out.guarded());
    });
  }
}

std::vector<float> reals(uint64_t seed, int64_t n) {
  Rng rng(seed);
  std::vector<float> v(n);
  for (float& x : v) x = rng.normal() * std::exp2(static_cast<float>(rng.below(20)));
  return v;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

// The sum of node [begin, end) by definition.
std::vector<float> tree(uint64_t seed, int64_t n, int64_t begin, int64_t end) {
  if (end - begin == 1) return reals(mix(seed, begin), n);
  const int64_t left = left_leaves(end - begin);
  std::vector<float> a = tree(seed, n, begin, begin + left);
  const std::vector<float> b = tree(seed, n, begin + left, end);
  for (int64_t i = 0; i < n; ++i) a[i] += b[i];
  return a;
}

TEST(Communicator, CanonicalSumsHaveTheSameBitsForEverySpreadOfVirtualRanks) {
  Rng rng(14);
  for (int i = 0; i < 120; ++i) {
    const int64_t leaves = 1 + rng.below(17);
    const int64_t n = random_count(rng) / 16;
    const uint64_t seed = rng.next64();
    const int size = 1 + static_cast<int>(rng.below(9));
    std::vector<int64_t> cut = {0, leaves};
    for (int r = 1; r < size; ++r) cut.push_back(rng.below(leaves + 1));
    std::sort(cut.begin(), cut.end());
    const bool aliased = rng.below(2) == 0;
    CallOptions options;
    options.pipeline = static_cast<int>(rng.below(4));
    if (rng.below(3) == 0) options.wire = DType::bf16;
    std::vector<float> expected = tree(seed, n, 0, leaves);
    if (options.wire) {
      std::vector<std::byte> narrowed(2 * n);
      narrow(*options.wire, narrowed.data(), expected.data(), n);
      widen(*options.wire, expected.data(), narrowed.data(), n);
    }
    run_ranks(size, [&](Communicator& comm) {
      std::vector<std::vector<float>> partials;
      for (const auto& piece : cover(leaves, {cut[comm.rank()], cut[comm.rank() + 1]})) {
        partials.push_back(tree(seed, n, piece.begin, piece.end));
      }
      std::vector<float> out(n, -1.0f);
      std::vector<const void*> pointers;
      for (auto& p : partials) pointers.push_back(p.data());
      const bool reuse = aliased && !partials.empty();
      comm.canonical_all_reduce(pointers, reuse ? partials[0].data() : out.data(), n, DType::f32,
                                cut, options);
      EXPECT_TRUE(same_bits(reuse ? partials[0] : out, expected))
          << size << " ranks, " << leaves << " leaves, " << n << " elements";
    });
  }
}

TEST(Communicator, AllRanksHoldTheSameBitsAfterRoundingOnTheWire) {
  Rng rng(15);
  for (int i = 0; i < 80; ++i) {
    Draw d(rng, Collective::all_reduce);
    d.options.wire = rng.below(2) == 0 ? DType::f16 : DType::bf16;
    d.options.reduction = Reduction::sum;
    std::mutex mutex;
    std::vector<std::vector<float>> results(d.size);
    d.run([&](Communicator& comm) {
      std::vector<float> data = reals(mix(d.seed, comm.rank()), d.count);
      for (float& x : data) x = std::ldexp(x, -12);
      comm.all_reduce(data.data(), data.data(), d.count, DType::f32, d.options);
      std::lock_guard lock(mutex);
      results[comm.rank()] = std::move(data);
    });
    for (const auto& r : results) ASSERT_TRUE(same_bits(r, results[0])) << d.text();
    // And the sum is about right.
    std::vector<double> exact(d.count, 0.0);
    std::vector<double> scale(d.count, 0.0);
    for (int r = 0; r < d.size; ++r) {
      const auto data = reals(mix(d.seed, r), d.count);
      for (int64_t k = 0; k < d.count; ++k) {
        exact[k] += std::ldexp(data[k], -12);
        scale[k] += std::abs(std::ldexp(data[k], -12));
      }
    }
    for (int64_t k = 0; k < d.count; ++k) {
      ASSERT_NEAR(results[0][k], exact[k], 0.004 * (d.size + 1) * scale[k] + 1e-3) << d.text();
    }
  }
}

TEST(Communicator, ManyOperationsMayBeUnderWayAtATime) {
  run_ranks(4, [](Communicator& comm) {
    constexpr int kOps = 40;
    std::vector<std::vector<float>> data(kOps);
    std::vector<Work> work;
    for (int i = 0; i < kOps; ++i) {
      data[i].assign(1 + 977 * i, static_cast<float>(comm.rank() + i));
      const auto algorithms = algorithms_of(Collective::all_reduce);
      CallOptions options;
      options.algorithm = algorithms[i % algorithms.size()];
      work.push_back(comm.start_all_reduce(data[i].data(), data[i].data(), data[i].size(),
                                           DType::f32, options));
    }
    for (int i = kOps - 1; i >= 0; --i) {
      work[i].wait();
      EXPECT_TRUE(work[i].done());
      for (const float x : data[i]) ASSERT_EQ(x, 6.0f + 4 * i);
    }
  });
}

TEST(Communicator, ThreadsOfOneRankWaitSideBySide) {
  run_ranks(3, [](Communicator& comm) {
    std::vector<std::vector<int32_t>> data(12, std::vector<int32_t>(5000, 1));
    std::vector<Work> work;
    for (auto& d : data) {
      work.push_back(comm.start_all_reduce(d.data(), d.data(), d.size(), DType::i32));
    }
    std::vector<std::thread> threads;
    for (size_t i = 0; i < work.size(); ++i) {
      threads.emplace_back([&, i] {
        work[i].wait();
        EXPECT_EQ(data[i][4999], 3);
      });
    }
    for (auto& t : threads) t.join();
    comm.barrier();
  });
}

TEST(Communicator, MessagesOfOneTagKeepTheirOrderAndTagsDoNotWaitForEachOther) {
  run_ranks(2, [](Communicator& comm) {
    const auto bytes = [](auto& v) { return std::as_writable_bytes(std::span(&v, 1)); };
    if (comm.rank() == 0) {
      for (int i = 0; i < 100; ++i) comm.start_send(1, i % 3, bytes(i)).wait();
    } else {
      for (int tag = 2; tag >= 0; --tag) {
        for (int i = tag; i < 100; i += 3) {
          int got = -1;
          comm.receive(0, tag, bytes(got));
          EXPECT_EQ(got, i);
        }
      }
    }
    EXPECT_THROW(comm.send(comm.rank(), 0, {}), Error);
    EXPECT_THROW(comm.send(1 - comm.rank(), 1 << 24, {}), Error);
    EXPECT_THROW(comm.send(1 - comm.rank(), 0, {}, kMaxRails), Error);
  });
}

TEST(Communicator, ABarrierLetsNobodyThroughBeforeAllHaveCome) {
  for (const int size : {1, 2, 5, 8}) {
    std::atomic<int> arrived{0};
    run_ranks(size, [&](Communicator& comm) {
      for (int round = 1; round <= 20; ++round) {
        ++arrived;
        comm.barrier();
        EXPECT_GE(arrived.load(), round * size);
        comm.barrier();
      }
    });
  }
}

TEST(Communicator, ALostPeerEndsEveryHandleAndCallOfTheSurvivors) {
  for (const bool in_background : {false, true}) {
    run_ranks(4, [&](Communicator& comm) {
      std::vector<float> a(200'000, 1.0f);
      std::vector<float> b(10, 1.0f);
      comm.barrier();
      if (comm.rank() == 2) return;  // leaves without taking part
      const auto expect_lost = [](auto&& f) {
        try {
          f();
          ADD_FAILURE() << "did not throw";
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::peer_lost) << e.what();
        }
      };
      std::vector<Work> work;
      try {
        work.push_back(comm.start_all_reduce(a.data(), a.data(), a.size(), DType::f32));
        work.push_back(comm.start_all_reduce(b.data(), b.data(), b.size(), DType::f32));
        work.push_back(comm.start_all_reduce(b.data(), b.data(), b.size(), DType::f32));
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::peer_lost);
      }
      if (in_background) {
        for (const Work& w : work) {
          while (!w.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
      for (const Work& w : work) expect_lost([&] { w.wait(); });
      const auto before = a;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_EQ(std::memcmp(a.data(), before.data(), a.size() * sizeof(float)), 0);
      expect_lost([&] { comm.barrier(); });
      expect_lost([&] { comm.all_reduce(b.data(), b.data(), 10, DType::f32); });
      expect_lost([&] { comm.receive((comm.rank() + 1) % 4, 1, {}); });
    });
  }
}

TEST(Communicator, AReportedLossEndsAWaitThatNothingElseWouldEnd) {
  run_ranks(2, [](Communicator& comm) {
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    std::thread detector([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      comm.report_loss({{1}, "rank 1 is silent for 2.0 s"});
    });
    try {
      comm.barrier();
      ADD_FAILURE() << "did not throw";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::peer_lost);
      EXPECT_EQ(e.message(), "rank 1 is silent for 2.0 s");
    }
    detector.join();
  });
}

TEST(Communicator, AStalledOperationNamesTheRanksItWaitsForAndWaitsOn) {
  std::atomic<int> stalls{0};
  CommunicatorOptions options;
  options.engine.soft_deadline = std::chrono::milliseconds(100);
  options.engine.on_stall = [&](const Stall& stall) {
    ++stalls;
    EXPECT_EQ(stall.operation, "all_reduce (direct) of 8 f32");
    EXPECT_EQ(stall.ranks, std::vector<int>{2});
    EXPECT_GE(stall.seconds, 0.1);
  };
  run_ranks(
      3,
      [&](Communicator& comm) {
        std::vector<float> x(8, 1.0f);
        CallOptions call;
        call.algorithm = Algorithm::direct;
        if (comm.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(400));
        const Work work = comm.start_all_reduce(x.data(), x.data(), 8, DType::f32, call);
        if (comm.rank() == 0) {
          EXPECT_FALSE(work.wait_for(std::chrono::milliseconds(10)));
        }
        work.wait();
        EXPECT_EQ(x[0], 3.0f);
        comm.barrier();
      },
      options);
  EXPECT_EQ(stalls, 2);
}

TEST(Communicator, CanBeClosedWithWorkUnderWay) {
  auto transports = make_inproc_transports(2);
  std::vector<float> x(100, 1.0f);
  Work work;
  {
    Communicator comm(std::move(transports[0]));
    work = comm.start_all_reduce(x.data(), x.data(), 100, DType::f32);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(comm.oldest().has_value());
  }
  try {
    work.wait();
    ADD_FAILURE() << "did not throw";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unavailable);
  }
}

TEST(Communicator, WrongCallsAreRefusedBeforeAnythingIsSent) {
  run_ranks(2, [](Communicator& comm) {
    double x = 1;
    const auto refuse = [](auto&& f) {
      try {
        f();
        ADD_FAILURE() << "did not throw";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::invalid_argument) << e.what();
      }
    };
    CallOptions options;
    refuse([&] { comm.all_reduce(&x, &x, -1, DType::f64); });
    refuse([&] { comm.broadcast(&x, 1, DType::f64, 2); });
    options.wire = DType::bf16;
    refuse([&] { comm.all_reduce(&x, &x, 1, DType::f64, options); });
    options.wire = DType::i8;
    refuse([&] { comm.all_reduce(&x, &x, 1, DType::f32, options); });
    refuse([&] {
      comm.canonical_all_reduce({}, &x, 1, DType::f64, std::vector<int64_t>{0, 1, 2});
    });
    comm.all_reduce(&x, &x, 1, DType::f64);
    EXPECT_EQ(x, 2.0);
  });
}

}  // namespace
}  // namespace ductile::comm
