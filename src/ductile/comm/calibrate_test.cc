#include "ductile/comm/calibrate.h"

#include <chrono>
#include <mutex>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/comm/fusion.h"
#include "ductile/comm/testing/rank_threads.h"

namespace ductile::comm {
namespace {

// Delays every message and limits the rate, by holding sends back until their time has come.
class SlowTransport : public Transport {
 public:
  SlowTransport(std::unique_ptr<Transport> inner, double latency, double seconds_a_byte)
      : inner_(std::move(inner)), latency_(latency), seconds_a_byte_(seconds_a_byte) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void send(int peer, Tag tag, std::span<const std::byte> bytes, Transfer& transfer) override {
    transfer.state = Transfer::State::pending;
    free_ = std::max(free_, Clock::now()) +
            std::chrono::nanoseconds(static_cast<int64_t>(1e9 * seconds_a_byte_ * bytes.size()));
    held_.push_back({free_ + std::chrono::nanoseconds(static_cast<int64_t>(1e9 * latency_)), peer,
                     tag, bytes, &transfer});
  }
  void receive(int peer, Tag tag, std::span<std::byte> bytes, Transfer& transfer) override {
    inner_->receive(peer, tag, bytes, transfer);
  }
  void progress(std::chrono::nanoseconds wait) override {
    const auto until = Clock::now() + wait;
    do {
      while (!held_.empty() && held_.front().at <= Clock::now()) {
        const Held h = held_.front();
        held_.erase(held_.begin());
        inner_->send(h.peer, h.tag, h.bytes, *h.transfer);
        wait = std::chrono::nanoseconds(0);
      }
      inner_->progress(std::min<std::chrono::nanoseconds>(wait, std::chrono::microseconds(20)));
    } while (!held_.empty() && wait.count() > 0 && Clock::now() < until);
  }
  void wake() override { inner_->wake(); }
  void fail(PeerLoss loss) override { inner_->fail(std::move(loss)); }
  std::byte* peer_memory(int, const std::byte*) override { return nullptr; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    Clock::time_point at;
    int peer;
    Tag tag;
    std::span<const std::byte> bytes;
    Transfer* transfer;
  };
  std::unique_ptr<Transport> inner_;
  double latency_;
  double seconds_a_byte_;
  Clock::time_point free_;
  std::vector<Held> held_;
};

TEST(Calibrate, FindsLatencyAndBandwidthOfTheLinksAndAllRanksAgree) {
  constexpr int kSize = 3;
  auto transports = make_inproc_transports(kSize, {1 << 20});
  std::vector<Fabric> fabrics(kSize);
  std::vector<std::thread> threads;
  for (int r = 0; r < kSize; ++r) {
    threads.emplace_back([&, r] {
      Communicator comm(std::make_unique<SlowTransport>(std::move(transports[r]), 2e-3, 1 / 50e6));
      const auto start = std::chrono::steady_clock::now();
      fabrics[r] = calibrate(comm, {.repeats = 3}).fabric;
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
      comm.barrier();
    });
  }
  for (auto& t : threads) t.join();
  // A busy machine adds to the times, and takes nothing away.
  EXPECT_GE(fabrics[0].between.latency + 2 * fabrics[0].between.overhead, 1.9e-3);
  const Link& link = fabrics[0].between;
  const double large = link.latency + 2 * link.overhead + bytes_seconds(link, 256 << 10);
  EXPECT_GE(large, (256 << 10) / 50e6);
  EXPECT_GT(link.bandwidth, 5e6);
  EXPECT_EQ(fabrics[0].inside.latency, Fabric{}.inside.latency);  // no two ranks share a host
  for (const Fabric& f : fabrics) {
    EXPECT_EQ(f.between.latency, fabrics[0].between.latency);
    EXPECT_EQ(f.between.bandwidth, fabrics[0].between.bandwidth);
    EXPECT_EQ(f.reduce_bandwidth, fabrics[0].reduce_bandwidth);
  }
}

TEST(Calibrate, KeepsWhatItFoundForTheSameArrangementOnly) {
  TempFolder folder;
  CalibrationOptions options;
  options.cache = folder.path() / "made" / "when needed";
  options.repeats = 1;
  const auto run = [&](int size, int ranks_per_host = 2) {
    CommunicatorOptions o;
    o.topology.ranks_per_host = ranks_per_host;
    Calibration result;
    run_ranks(
        size,
        [&](Communicator& comm) {
          const Calibration c = calibrate(comm, options);
          EXPECT_EQ(comm.fabric().inside.latency, c.fabric.inside.latency);
          if (comm.rank() == 0) result = c;
        },
        o);
    return result;
  };
  const Calibration first = run(4);
  EXPECT_GT(first.seconds, 0);
  const std::string text = read_file(first.file);
  EXPECT_NE(text.find("latency"), std::string::npos);
  const Calibration again = run(4);
  EXPECT_EQ(again.seconds, 0);
  EXPECT_EQ(again.file, first.file);
  EXPECT_NEAR(again.fabric.between.bandwidth / first.fabric.between.bandwidth, 1, 1e-9);
  EXPECT_NEAR(again.fabric.inside.latency / first.fabric.inside.latency, 1, 1e-9);
  EXPECT_EQ(read_file(first.file), text);

  // Everything that may change the links has a file of its own.
  EXPECT_NE(run(2).file, first.file);
  EXPECT_NE(run(4, 1).file, first.file);
  options.transport = "another";
  EXPECT_NE(run(4).file, first.file);
  options.transport.clear();

  // A place that cannot be looked into is as good as none.
  const fs::path cache = options.cache;
  fs::create_symlink("self", folder.path() / "self");
  options.cache = folder.path() / "self" / "x";
  EXPECT_GT(run(2).seconds, 0);
  EXPECT_TRUE(run(2).file.empty());
  options.cache = cache;

  options.anew = true;
  EXPECT_GT(run(4).seconds, 0);
  options.anew = false;
  write_file_atomic(first.file, "not = [toml");  // as good as none
  EXPECT_GT(run(4).seconds, 0);
  EXPECT_EQ(run(4).seconds, 0);
  options.cache = "/proc/nowhere";  // cannot be written
  EXPECT_TRUE(run(2).file.empty());
}

TEST(Calibrate, SumsInSharedMemoryAreTimedToo) {
  auto arenas = Arena::for_threads(2, {.region_bytes = 8 << 20});
  auto transports = make_inproc_transports(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CommunicatorOptions o;
      o.topology.ranks_per_host = 2;
      o.arena = std::move(arenas[r]);
      Communicator comm(std::move(transports[r]), o);
      const size_t mark = o.arena->mark();
      const Fabric f = calibrate(comm, {.repeats = 1}).fabric;
      EXPECT_GT(f.shared_latency, 0);
      EXPECT_GT(f.shared_bandwidth, 0);
      EXPECT_GT(shared_memory_price(f, {1 << 20, 4, 0}), f.shared_latency);
      EXPECT_EQ(o.arena->mark(), mark);
    });
  }
  for (auto& t : threads) t.join();
}

TEST(Calibrate, AFabricOfAnotherArrangementIsRefused) {
  run_ranks(2, [](Communicator& comm) {
    Fabric f = comm.fabric();
    f.between.latency = 1;
    comm.set_fabric(f);
    EXPECT_EQ(comm.fabric().between.latency, 1);
    f.ranks = 3;
    EXPECT_THROW(comm.set_fabric(f), Error);
    EXPECT_EQ(comm.choice(Collective::all_reduce, 1000, DType::f32).prices.size(), 6u);
  });
}

TEST(Fusion, BucketsTileTheBufferFromTheEndInWholeTensors) {
  const std::vector<int64_t> offsets = {0, 10, 11, 40, 100, 101, 102, 103};
  EXPECT_EQ(make_buckets(offsets, 8),
            (std::vector<Bucket>{{101, 103}, {40, 101}, {11, 40}, {0, 11}}));
  EXPECT_EQ(make_buckets(offsets, 1'000'000), (std::vector<Bucket>{{0, 103}}));
  EXPECT_TRUE(make_buckets(std::vector<int64_t>{0}, 5).empty());
  EXPECT_TRUE(make_buckets(std::vector<int64_t>{0, 0}, 5).empty());
  EXPECT_THROW(make_buckets(offsets, 0), Error);
}

}  // namespace
}  // namespace ductile::comm
