#include "ductile/comm/nccl_communicator.h"

#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

constexpr std::chrono::microseconds kPoll{20};
constexpr std::chrono::seconds kFarewell{1};

void check_cuda(cudaError_t result, const char* what) {
  if (result != cudaSuccess) {
    fail(ErrorCode::unavailable, "{}: CUDA says {}", what, cudaGetErrorString(result));
  }
}

ncclDataType_t nccl_type(DType type) {
  switch (type) {
    case DType::u8:
      return ncclUint8;
    case DType::i8:
      return ncclInt8;
    case DType::i32:
      return ncclInt32;
    case DType::u32:
      return ncclUint32;
    case DType::i64:
      return ncclInt64;
    case DType::f16:
      return ncclFloat16;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    default:
      fail(ErrorCode::invalid_argument, "NCCL has no type {}", to_string(type));
  }
}

ncclRedOp_t nccl_op(Reduction reduction) {
  switch (reduction) {
    case Reduction::min:
      return ncclMin;
    case Reduction::max:
      return ncclMax;
    case Reduction::sum:
      break;
  }
  return ncclSum;
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(const Group& group, net::Store& store, int device, net::Deadline deadline)
      : group_(group), device_(device) {
    check_cuda(cudaSetDevice(device), "choose a GPU");
    const std::string key = fmt::format("nccl/{}/{}", group.job, group.generation);
    ncclUniqueId id;
    if (group.rank == 0) {
      const ncclResult_t made = ncclGetUniqueId(&id);
      if (made != ncclSuccess) {
        fail(ErrorCode::unavailable, "NCCL makes no identifier: {}", ncclGetErrorString(made));
      }
      store.set(key, std::string_view(id.internal, sizeof id.internal), deadline);
    } else {
      const std::string text = store.get(key, deadline);
      if (text.size() != sizeof id.internal) {
        fail(ErrorCode::data_loss, "{}: {} bytes are no identifier of NCCL", key, text.size());
      }
      std::memcpy(id.internal, text.data(), text.size());
    }
    // Calls that do not block are the only ones that can be given up.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    try {
      settle(ncclCommInitRankConfig(&comm_, group.size, id, group.rank, &config), "join", deadline);
    } catch (const Error&) {
      abort();
      throw;
    }
  }

  ~NcclCommunicator() override {
    if (comm_ != nullptr && !left_in_order()) abort();
  }

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  void all_reduce(const void* in, void* out, int64_t count, DType type, Reduction reduction,
                  void* stream) override {
    enqueue("all_reduce", [&] {
      return ncclAllReduce(in, out, static_cast<size_t>(count), nccl_type(type), nccl_op(reduction),
                           comm_, stream_of(stream));
    });
  }

  void reduce_scatter(const void* in, void* out, int64_t count, DType type, Reduction reduction,
                      void* stream) override {
    enqueue("reduce_scatter", [&] {
      return ncclReduceScatter(in, out, static_cast<size_t>(count), nccl_type(type),
                               nccl_op(reduction), comm_, stream_of(stream));
    });
  }

  void all_gather(const void* in, void* out, int64_t count, DType type, void* stream) override {
    enqueue("all_gather", [&] {
      return ncclAllGather(in, out, static_cast<size_t>(count), nccl_type(type), comm_,
                           stream_of(stream));
    });
  }

  void broadcast(void* data, int64_t count, DType type, int root, void* stream) override {
    enqueue("broadcast", [&] {
      return ncclBroadcast(data, data, static_cast<size_t>(count), nccl_type(type), root, comm_,
                           stream_of(stream));
    });
  }

  void send(int peer, const void* data, int64_t bytes, void* stream) override {
    enqueue("send", [&] {
      return ncclSend(data, static_cast<size_t>(bytes), ncclUint8, peer, comm_, stream_of(stream));
    });
  }

  void receive(int peer, void* data, int64_t bytes, void* stream) override {
    enqueue("receive", [&] {
      return ncclRecv(data, static_cast<size_t>(bytes), ncclUint8, peer, comm_, stream_of(stream));
    });
  }

  void wait(void* stream) override {
    while (true) {
      look("wait");
      const cudaError_t state = cudaStreamQuery(stream_of(stream));
      if (state == cudaSuccess) return;
      if (state != cudaErrorNotReady) check_cuda(state, "wait for a collective");
      std::this_thread::sleep_for(kPoll);
    }
  }

  void report_loss(PeerLoss loss) override {
    const std::lock_guard lock(mutex_);
    if (!loss_) loss_ = std::move(loss.reason);
  }

 private:
  template <class Call>
  void enqueue(const char* what, const Call& call) {
    look(what);
    check_cuda(cudaSetDevice(device_), what);
    settle(call(), what, std::nullopt);
  }

  // Waits until a call that was begun is accepted.
  void settle(ncclResult_t result, const char* what, std::optional<net::Deadline> deadline) {
    while (result == ncclInProgress) {
      look(what);
      if (deadline && net::Clock::now() > *deadline) {
        fail(ErrorCode::deadline, "rank {} of {}: not all ranks came to NCCL's meeting",
             group_.rank, group_.size);
      }
      std::this_thread::sleep_for(kPoll);
      if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess) result = ncclInternalError;
    }
    if (result == ncclSuccess) return;
    if (result == ncclInvalidArgument || result == ncclInvalidUsage) {
      fail(ErrorCode::invalid_argument, "{}: NCCL says {}", what, ncclGetErrorString(result));
    }
    lose(what, ncclGetErrorString(result));
  }

  // Throws what has been lost by now.
  void look(const char* what) {
    std::optional<std::string> lost;
    {
      const std::lock_guard lock(mutex_);
      lost = loss_;
    }
    if (lost) lose(what, *lost);
    if (comm_ == nullptr) return;
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) state = ncclInternalError;
    if (state != ncclSuccess && state != ncclInProgress) lose(what, ncclGetErrorString(state));
  }

  [[noreturn]] void lose(const char* what, const std::string& reason) {
    report_loss({{}, reason});
    abort();
    fail(ErrorCode::peer_lost, "rank {} in generation {}: {}: {}", group_.rank, group_.generation,
         what, reason);
  }

  // Peers may still read what this rank has sent, so NCCL is told before memory goes; but who is
  // gone or asleep does not keep us.
  bool left_in_order() {
    const auto deadline = net::Clock::now() + kFarewell;
    ncclResult_t state = ncclCommFinalize(comm_);
    while (state == ncclInProgress && net::Clock::now() < deadline) {
      std::this_thread::sleep_for(kPoll);
      {
        const std::lock_guard lock(mutex_);
        if (loss_) return false;
      }
      if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return false;
    }
    return state == ncclSuccess && ncclCommDestroy(std::exchange(comm_, nullptr)) == ncclSuccess;
  }

  void abort() {
    if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
  }

  const Group group_;
  const int device_;
  ncclComm_t comm_ = nullptr;
  std::mutex mutex_;
  std::optional<std::string> loss_;
};

}  // namespace

bool have_nccl() { return true; }

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";
  // 2.18.5 is 21805; up to 2.8 it was 2 digits for the last two.
  const int major = version >= 10000 ? 10000 : 1000;
  return fmt::format("{}.{}.{}", version / major, version % major / 100, version % 100);
}

std::unique_ptr<DeviceCommunicator> connect_nccl(const Group& group, net::Store& store, int device,
                                                 net::Deadline deadline) {
  return std::make_unique<NcclCommunicator>(group, store, device, deadline);
}

}  // namespace ductile::comm
