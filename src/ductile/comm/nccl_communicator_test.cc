// NcclCommunicator over a twin of NCCL: host memory, ranks as threads, all_reduce of f32 only. What
// is tested is ours: how ranks meet, wait, and learn of a loss; never NCCL itself.
#include "ductile/comm/nccl_communicator.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/testing.h"
#include "ductile/comm/testing/nccl_twin/nccl.h"

using namespace std::chrono_literals;

namespace {

// All ranks of one test; a rank that calls waits, as seen through the stream, for the others.
struct Twin {
  std::mutex mutex;
  std::vector<ncclComm*> comms;
  std::vector<const float*> ins;
  std::vector<float*> outs;
  size_t count = 0;
  int aborted = 0, destroyed = 0;
  ncclResult_t finalize = ncclSuccess;
};
Twin* twin = nullptr;
thread_local bool stream_busy = false;

}  // namespace

struct ncclComm {
  int rank, size;
  std::atomic<int> polls{0};
  std::atomic<ncclResult_t> state{ncclInProgress};
};

extern "C" {
cudaError_t cudaSetDevice(int device) { return device < 8 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaStreamQuery(cudaStream_t) {
  const std::lock_guard lock(twin->mutex);
  if (!stream_busy) return cudaSuccess;
  for (const float* in : twin->ins) {
    if (in == nullptr) return cudaErrorNotReady;
  }
  stream_busy = false;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "invalid device"; }
ncclResult_t ncclGetVersion(int* version) {
  *version = 21805;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id->internal, 42, sizeof id->internal);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  EXPECT_EQ(id.internal[127], 42);
  EXPECT_EQ(config->blocking, 0);
  *comm = new ncclComm{rank, size, 0, ncclInProgress};
  const std::lock_guard lock(twin->mutex);
  twin->comms[static_cast<size_t>(rank)] = *comm;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(twin->mutex);
  bool all = true;
  for (const ncclComm* c : twin->comms) all = all && c != nullptr;
  if (all && comm->state == ncclInProgress) comm->state = ncclSuccess;
  *state = comm->state;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return twin->finalize; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(twin->mutex);
  ++twin->destroyed;
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(twin->mutex);
  ++twin->aborted;
  delete comm;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "some error";
}
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  if (type != ncclFloat32 || op != ncclSum) return ncclInvalidArgument;
  const std::lock_guard lock(twin->mutex);
  twin->ins[static_cast<size_t>(comm->rank)] = static_cast<const float*>(in);
  twin->outs[static_cast<size_t>(comm->rank)] = static_cast<float*>(out);
  stream_busy = true;
  for (const float* i : twin->ins) {
    if (i == nullptr) return ncclSuccess;
  }
  for (float* o : twin->outs) {
    for (size_t k = 0; k < count; ++k) {
      float sum = 0;
      for (const float* i : twin->ins) sum += i[k];
      o[k] = sum;
    }
  }
  return ncclSuccess;
}
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                               cudaStream_t) {
  return ncclInvalidUsage;
}
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                           cudaStream_t) {
  return ncclInvalidUsage;
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}
}

namespace ductile::comm {
namespace {

using ductile::testing::code_of;

class Nccl : public ::testing::Test {
 protected:
  void run(int size, const std::function<void(DeviceCommunicator&)>& body) {
    state_.comms.resize(static_cast<size_t>(size));
    state_.ins.resize(static_cast<size_t>(size));
    state_.outs.resize(static_cast<size_t>(size));
    twin = &state_;
    const auto store = net::make_memory_store();
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        stream_busy = false;
        const auto comm = connect_nccl({"job", 3, r, size}, *store, 0, net::Clock::now() + 20s);
        EXPECT_EQ(comm->rank(), r);
        EXPECT_EQ(comm->size(), size);
        body(*comm);
      });
    }
  }

  Twin state_;
};

TEST_F(Nccl, RanksMeetThroughTheStoreAndWaitForTheSum) {
  run(3, [](DeviceCommunicator& comm) {
    std::vector<float> in(5, 1.0f + static_cast<float>(comm.rank())), out(5);
    comm.all_reduce(in.data(), out.data(), 5, DType::f32);
    comm.wait();
    EXPECT_EQ(out[4], 6.0f);
  });
  EXPECT_EQ(state_.destroyed, 3);
  EXPECT_EQ(state_.aborted, 0);
  EXPECT_TRUE(have_nccl());
  EXPECT_EQ(nccl_version(), "2.18.5");
}

TEST_F(Nccl, AnErrorOfNcclIsALostPeerAndAborts) {
  run(2, [&](DeviceCommunicator& comm) {
    if (comm.rank() == 1) return;  // never comes to the sum
    float x = 1;
    comm.all_reduce(&x, &x, 1, DType::f32);
    std::jthread later([&] {
      std::this_thread::sleep_for(20ms);
      const std::lock_guard lock(state_.mutex);
      state_.comms[0]->state = ncclRemoteError;
    });
    std::string text;
    EXPECT_EQ(code_of([&] { comm.wait(); }, &text), ErrorCode::peer_lost);
    EXPECT_NE(text.find("rank 0 in generation 3: wait: remote process exited"), std::string::npos)
        << text;
    EXPECT_EQ(code_of([&] { comm.all_reduce(&x, &x, 1, DType::f32); }), ErrorCode::peer_lost);
    EXPECT_EQ(code_of([&] { comm.wait(); }), ErrorCode::peer_lost);
  });
  EXPECT_EQ(state_.aborted, 1) << "once";
  EXPECT_EQ(state_.destroyed, 1);
}

TEST_F(Nccl, LeavingWaitsForNobodyThatIsGone) {
  state_.finalize = ncclSystemError;
  run(1, [](DeviceCommunicator&) {});
  EXPECT_EQ(state_.aborted, 1);
  EXPECT_EQ(state_.destroyed, 0);
}

TEST_F(Nccl, AFailureDetectorEndsAWaitForASilentPeer) {
  run(2, [&](DeviceCommunicator& comm) {
    if (comm.rank() == 1) return;
    float x = 1;
    comm.all_reduce(&x, &x, 1, DType::f32);
    std::jthread detector([&] {
      std::this_thread::sleep_for(20ms);
      comm.report_loss({{1}, "rank 1: no heartbeat for 2.0 s"});
    });
    std::string text;
    EXPECT_EQ(code_of([&] { comm.wait(); }, &text), ErrorCode::peer_lost);
    EXPECT_NE(text.find("no heartbeat"), std::string::npos) << text;
  });
}

TEST_F(Nccl, MistakesAreNoLosses) {
  run(1, [](DeviceCommunicator& comm) {
    float x = 1;
    EXPECT_EQ(code_of([&] { comm.all_reduce(&x, &x, 1, DType::f64); }),
              ErrorCode::invalid_argument);
    EXPECT_EQ(code_of([&] { comm.all_reduce(&x, &x, 1, DType::u16); }),
              ErrorCode::invalid_argument);
    comm.all_reduce(&x, &x, 1, DType::f32);
    comm.wait();
  });
  const auto store = net::make_memory_store();
  twin = &state_;
  EXPECT_EQ(code_of([&] {
              connect_nccl({"job", 1, 0, 1}, *store, 9, net::Clock::now() + 1s);
            }),
            ErrorCode::unavailable);
  state_.comms.assign(2, nullptr);
  EXPECT_EQ(code_of([&] {
              connect_nccl({"job", 2, 0, 2}, *store, 0, net::Clock::now() + 20ms);
            }),
            ErrorCode::deadline);
}

}  // namespace
}  // namespace ductile::comm
