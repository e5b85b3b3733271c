// NcclCommunicator over NVIDIA's NCCL on the GPUs of this machine, a rank for each of them; with
// one GPU, of a group of one. Skipped where there is none. nccl_communicator_test.cc tests how
// ranks meet and learn of a loss, on any machine.
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "ductile/base/testing.h"
#include "ductile/comm/nccl_communicator.h"

using namespace std::chrono_literals;

namespace ductile::comm {
namespace {

using ductile::testing::code_of;

int num_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// Elements in the memory of the GPU that this thread has chosen.
template <class T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& values) : size_(values.size()) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), size_ * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~OnGpu() { cudaFree(data_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  T* data() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> out(size_);
    EXPECT_EQ(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return out;
  }

 private:
  size_t size_;
  T* data_ = nullptr;
};

class NcclOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_gpus() == 0) GTEST_SKIP() << "this machine has no GPU that CUDA can use";
  }

  // The body in each rank, which has GPU `rank`.
  void run(const std::function<void(DeviceCommunicator&)>& body) {
    const int size = num_gpus();
    store_ = net::make_memory_store();
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        const auto comm = connect_nccl({"job", 1, r, size}, *store_, r, net::Clock::now() + 60s);
        EXPECT_EQ(comm->rank(), r);
        EXPECT_EQ(comm->size(), size);
        body(*comm);
      });
    }
  }

  std::unique_ptr<net::Store> store_;
};

// 0, 1, 2, .. and so on from `first`.
template <class T>
std::vector<T> count_from(int first, int64_t count) {
  std::vector<T> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), static_cast<T>(first));
  return out;
}

template <class T>
void expect_sums(DeviceCommunicator& comm, DType type) {
  constexpr int64_t kCount = 1000;
  const int n = comm.size();
  const OnGpu<T> in(std::vector<T>(kCount, static_cast<T>(1 + comm.rank())));
  const OnGpu<T> out(std::vector<T>(kCount, static_cast<T>(0)));
  comm.all_reduce(in.data(), out.data(), kCount, type);
  comm.wait();
  EXPECT_EQ(out.values(), std::vector<T>(kCount, static_cast<T>(n * (n + 1) / 2)))
      << to_string(type);
  comm.all_reduce(in.data(), in.data(), kCount, type, Reduction::max);
  comm.wait();
  EXPECT_EQ(in.values(), std::vector<T>(kCount, static_cast<T>(n))) << to_string(type);
}

TEST_F(NcclOnGpus, SumTheTypes) {
  EXPECT_TRUE(have_nccl());
  EXPECT_NE(nccl_version(), "");
  run([](DeviceCommunicator& comm) {
    expect_sums<uint8_t>(comm, DType::u8);
    expect_sums<int8_t>(comm, DType::i8);
    expect_sums<int32_t>(comm, DType::i32);
    expect_sums<uint32_t>(comm, DType::u32);
    expect_sums<int64_t>(comm, DType::i64);
    expect_sums<float>(comm, DType::f32);
    expect_sums<double>(comm, DType::f64);
    const OnGpu<uint16_t> ones(std::vector<uint16_t>(8, 0x3f80));  // 1 in bf16
    comm.all_reduce(ones.data(), ones.data(), 8, DType::bf16, Reduction::min);
    comm.wait();
    EXPECT_EQ(ones.values(), std::vector<uint16_t>(8, 0x3f80));
  });
}

TEST_F(NcclOnGpus, ScatterGatherAndBroadcast) {
  run([](DeviceCommunicator& comm) {
    constexpr int64_t kCount = 100;  // of each rank
    const int n = comm.size(), r = comm.rank();
    const OnGpu<float> all(count_from<float>(0, n * kCount));
    const OnGpu<float> own(std::vector<float>(kCount, 0.0F));
    comm.reduce_scatter(all.data(), own.data(), kCount, DType::f32);
    comm.wait();
    std::vector<float> want = count_from<float>(r * kCount, kCount);
    for (float& x : want) x *= static_cast<float>(n);
    EXPECT_EQ(own.values(), want);

    const OnGpu<float> gathered(std::vector<float>(static_cast<size_t>(n * kCount), -1.0F));
    const OnGpu<float> mine(count_from<float>(r * kCount, kCount));
    comm.all_gather(mine.data(), gathered.data(), kCount, DType::f32);
    comm.wait();
    EXPECT_EQ(gathered.values(), count_from<float>(0, n * kCount));

    const OnGpu<int64_t> data(std::vector<int64_t>(kCount, r));
    comm.broadcast(data.data(), kCount, DType::i64, n - 1);
    comm.wait();
    EXPECT_EQ(data.values(), std::vector<int64_t>(kCount, n - 1));
  });
}

TEST_F(NcclOnGpus, SendToAPeer) {
  if (num_gpus() < 2)
    GTEST_SKIP() << "this machine has one GPU, and a rank does not send to itself";
  run([](DeviceCommunicator& comm) {
    const OnGpu<uint8_t> data(std::vector<uint8_t>(64, static_cast<uint8_t>(7 * comm.rank())));
    if (comm.rank() == 1) comm.send(0, data.data(), 64);
    if (comm.rank() == 0) comm.receive(1, data.data(), 64);
    comm.wait();
    EXPECT_TRUE(comm.rank() != 0 || data.values() == std::vector<uint8_t>(64, 7));
  });
}

TEST_F(NcclOnGpus, WorkOnAStreamOfTheCallers) {
  run([](DeviceCommunicator& comm) {
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    const OnGpu<double> data(std::vector<double>(1 << 20, 1.0));
    for (int i = 0; i < 3; ++i)
      comm.all_reduce(data.data(), data.data(), 1 << 20, DType::f64, Reduction::sum, stream);
    comm.wait(stream);
    const auto n = static_cast<double>(comm.size());
    EXPECT_EQ(data.values(), std::vector<double>(1 << 20, n * n * n));
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

TEST_F(NcclOnGpus, SplitAmongThemselves) {
  run([&](DeviceCommunicator& comm) {
    std::vector<int> backwards(static_cast<size_t>(comm.size()));
    std::iota(backwards.rbegin(), backwards.rend(), 0);
    const auto group = comm.split(backwards, *store_, net::Clock::now() + 60s);
    EXPECT_EQ(group->rank(), comm.size() - 1 - comm.rank());
    const OnGpu<int32_t> data(std::vector<int32_t>(10, group->rank()));
    group->broadcast(data.data(), 10, DType::i32, 0);
    group->wait();
    EXPECT_EQ(data.values(), std::vector<int32_t>(10, 0));
    EXPECT_EQ(code_of([&] { comm.split(std::vector<int>{99}, *store_, net::Clock::now() + 1s); }),
              ErrorCode::invalid_argument);
  });
}

TEST_F(NcclOnGpus, AReportedLossEndsEveryCall) {
  run([](DeviceCommunicator& comm) {
    const OnGpu<float> data(std::vector<float>(10, 1.0F));
    comm.all_reduce(data.data(), data.data(), 10, DType::f32);
    comm.wait();
    comm.report_loss({{0}, "rank 0: no heartbeat for 2.0 s"});
    std::string text;
    EXPECT_EQ(code_of([&] { comm.wait(); }, &text), ErrorCode::peer_lost);
    EXPECT_NE(text.find("no heartbeat"), std::string::npos) << text;
    EXPECT_EQ(code_of([&] { comm.all_reduce(data.data(), data.data(), 10, DType::f32); }),
              ErrorCode::peer_lost);
  });
}

TEST_F(NcclOnGpus, MistakesAreNoLosses) {
  run([](DeviceCommunicator& comm) {
    const OnGpu<float> data(std::vector<float>(10, 1.0F));
    EXPECT_EQ(code_of([&] { comm.all_reduce(data.data(), data.data(), 10, DType::u16); }),
              ErrorCode::invalid_argument);
    comm.all_reduce(data.data(), data.data(), 10, DType::f32);
    comm.wait();
    EXPECT_EQ(data.values()[9], static_cast<float>(comm.size()));
  });
  EXPECT_EQ(code_of([&] {
              connect_nccl({"job", 2, 0, 1}, *store_, num_gpus(), net::Clock::now() + 20s);
            }),
            ErrorCode::unavailable);
}

}  // namespace
}  // namespace ductile::comm
