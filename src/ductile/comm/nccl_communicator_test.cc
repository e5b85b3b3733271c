// NcclCommunicator over a twin of NCCL: host memory, ranks as threads, all_reduce of f32 only. What
// is tested is ours: how ranks meet, wait, and learn of a loss; never NCCL itself.
#include "ductile/comm/nccl_communicator.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/testing.h"
#include "ductile/comm/testing/nccl_twin/nccl.h"

using namespace std::chrono_literals;

namespace {

// The ranks of one communicator; a rank that calls waits, as seen through the stream, for the
// others.
struct Meeting {
  std::vector<ncclComm*> comms;
  std::vector<const float*> ins;
  std::vector<float*> outs;
};
// All of one test, by the first byte of NCCL's identifier.
struct Twin {
  std::mutex mutex;
  std::map<char, Meeting> meetings;
  char last_id = 0;
  int aborted = 0, destroyed = 0;
  ncclResult_t finalize = ncclSuccess;
};
Twin* twin = nullptr;
thread_local Meeting* stream_busy = nullptr;

}  // namespace

struct ncclComm {
  int rank;
  Meeting* meeting;
  std::atomic<int> polls{0};
  std::atomic<ncclResult_t> state{ncclInProgress};
};

extern "C" {
cudaError_t cudaSetDevice(int device) { return device < 8 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaStreamQuery(cudaStream_t) {
  const std::lock_guard lock(twin->mutex);
  if (stream_busy == nullptr) return cudaSuccess;
  for (const float* in : stream_busy->ins) {
    if (in == nullptr) return cudaErrorNotReady;
  }
  stream_busy = nullptr;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "invalid device"; }
ncclResult_t ncclGetVersion(int* version) {
  *version = 21805;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id->internal, 42, sizeof id->internal);
  const std::lock_guard lock(twin->mutex);
  id->internal[0] = ++twin->last_id;
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  EXPECT_EQ(id.internal[127], 42);
  EXPECT_EQ(config->blocking, 0);
  const std::lock_guard lock(twin->mutex);
  Meeting& meeting = twin->meetings[id.internal[0]];
  meeting.comms.resize(static_cast<size_t>(size));
  meeting.ins.resize(static_cast<size_t>(size));
  meeting.outs.resize(static_cast<size_t>(size));
  *comm = new ncclComm{rank, &meeting, 0, ncclInProgress};
  meeting.comms[static_cast<size_t>(rank)] = *comm;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(twin->mutex);
  bool all = true;
  for (const ncclComm* c : comm->meeting->comms) all = all && c != nullptr;
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
  Meeting& meeting = *comm->meeting;
  meeting.ins[static_cast<size_t>(comm->rank)] = static_cast<const float*>(in);
  meeting.outs[static_cast<size_t>(comm->rank)] = static_cast<float*>(out);
  stream_busy = &meeting;
  for (const float* i : meeting.ins) {
    if (i == nullptr) return ncclSuccess;
  }
  for (float* o : meeting.outs) {
    for (size_t k = 0; k < count; ++k) {
      float sum = 0;
      for (const float* i : meeting.ins) sum += i[k];
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
    twin = &state_;
    const auto store = net::make_memory_store();
    store_ = store.get();
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        stream_busy = nullptr;
        const auto comm = connect_nccl({"job", 3, r, size}, *store, 0, net::Clock::now() + 20s);
        EXPECT_EQ(comm->rank(), r);
        EXPECT_EQ(comm->size(), size);
        body(*comm);
      });
    }
  }

  Twin state_;
  net::Store* store_ = nullptr;
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
      state_.meetings[1].comms[0]->state = ncclRemoteError;
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
  EXPECT_EQ(code_of([&] {
              connect_nccl({"job", 2, 0, 2}, *store, 0, net::Clock::now() + 20ms);
            }),
            ErrorCode::deadline);
}

float sum_of(DeviceCommunicator& comm, float x, float* memory) {
  memory[0] = x;
  comm.all_reduce(memory, memory + 1, 1, DType::f32);
  comm.wait();
  return memory[1];
}

TEST_F(Nccl, MembersSplitAmongThemselvesAndTheParentMayGoFirst) {
  std::vector<std::array<float, 8>> memory(4);  // what peers still read
  run(4, [&](DeviceCommunicator& comm) {
    const auto deadline = net::Clock::now() + 20s;
    const int r = comm.rank();
    float* const m = memory[static_cast<size_t>(r)].data();
    std::unique_ptr<DeviceCommunicator> pair, three, nested;
    if (r == 0 || r == 3) pair = comm.split(std::vector<int>{3, 0}, *store_, deadline);
    if (r != 0) three = comm.split(std::vector<int>{2, 3, 1}, *store_, deadline);
    if (r == 1 || r == 3) nested = three->split(std::vector<int>{1, 2}, *store_, deadline);
    const auto x = static_cast<float>(1 << r);
    EXPECT_EQ(sum_of(comm, x, m), 15.0F);
    if (pair) {
      EXPECT_EQ(pair->rank(), r == 3 ? 0 : 1);
      EXPECT_EQ(pair->size(), 2);
      EXPECT_EQ(sum_of(*pair, x, m + 2), 9.0F);
    }
    if (three) {
      EXPECT_EQ(three->rank(), r == 2 ? 0 : r == 3 ? 1 : 2);
      EXPECT_EQ(sum_of(*three, x, m + 4), 14.0F);
      three.reset();
    }
    if (nested) {
      EXPECT_EQ(nested->rank(), r == 3 ? 0 : 1);
      EXPECT_EQ(sum_of(*nested, x, m + 6), 10.0F);
    }
  });
  EXPECT_EQ(state_.destroyed, 4 + 2 + 3 + 2);
  EXPECT_EQ(state_.aborted, 0);
}

TEST_F(Nccl, ListsThatMakeNoSenseAreRefusedAndOtherListsAreAConflict) {
  run(3, [&](DeviceCommunicator& comm) {
    const auto split = [&](const std::vector<int>& list, std::chrono::milliseconds patience) {
      std::string text;
      const auto code =
          code_of([&] { comm.split(list, *store_, net::Clock::now() + patience); }, &text);
      return std::pair(code, text);
    };
    const int r = comm.rank();
    EXPECT_EQ(split({0, 1, 2, 3}, 1s).first, ErrorCode::invalid_argument);
    EXPECT_EQ(split({0, 1, 2, 0}, 1s).first, ErrorCode::invalid_argument);
    EXPECT_EQ(split({(r + 1) % 3}, 1s).first, ErrorCode::invalid_argument);
    if (r == 2) return;
    const auto [code, text] = split(r == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0}, 20s);
    EXPECT_EQ(code, ErrorCode::conflict);
    EXPECT_NE(text.find("[0, 1]"), std::string::npos) << text;
    EXPECT_NE(text.find("[1, 0]"), std::string::npos) << text;
    EXPECT_EQ(code_of([&] { comm.wait(); }), ErrorCode::peer_lost) << "out of step for good";
  });
  run(2, [&](DeviceCommunicator& comm) {
    if (comm.rank() == 1) return;
    std::string text;
    EXPECT_EQ(code_of(
                  [&] {
                    comm.split(std::vector<int>{0, 1}, *store_, net::Clock::now() + 50ms);
                  },
                  &text),
              ErrorCode::deadline);
    EXPECT_EQ(text, "rank 0 splits into ranks [0, 1], and rank 1 did not come");
  });
}

TEST_F(Nccl, ALossInAGroupEndsTheFamilyAndASplitUnderWay) {
  std::atomic<int> ready{0};
  run(2, [&](DeviceCommunicator& comm) {
    const auto group = comm.split(std::vector<int>{1, 0}, *store_, net::Clock::now() + 20s);
    ++ready;
    while (ready < 2) std::this_thread::sleep_for(1ms);
    if (comm.rank() == 1) return;
    std::jthread detector([&] {
      std::this_thread::sleep_for(20ms);
      group->report_loss({{0}, "rank 1: no heartbeat for 2.0 s"});
    });
    std::string text;
    EXPECT_EQ(code_of(
                  [&] {
                    comm.split(std::vector<int>{0, 1}, *store_, net::Clock::now() + 20s);
                  },
                  &text),
              ErrorCode::peer_lost);
    EXPECT_NE(text.find("no heartbeat"), std::string::npos) << text;
    EXPECT_EQ(code_of([&] { group->wait(); }), ErrorCode::peer_lost);
    EXPECT_EQ(code_of([&] { comm.wait(); }), ErrorCode::peer_lost);
  });
}

}  // namespace
}  // namespace ductile::comm
