#include "ductile/comm/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <fmt/ranges.h>
#include <nccl.h>

#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

constexpr std::chrono::microseconds kPoll{20};
constexpr std::chrono::seconds kFarewell{1};
constexpr std::chrono::milliseconds kTurn{100};

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

ncclUniqueId make_id() {
  ncclUniqueId id;
  const ncclResult_t made = ncclGetUniqueId(&id);
  if (made != ncclSuccess) {
    fail(ErrorCode::unavailable, "NCCL makes no identifier: {}", ncclGetErrorString(made));
  }
  return id;
}

std::string_view bytes_of(const ncclUniqueId& id) { return {id.internal, sizeof id.internal}; }

ncclUniqueId id_of(std::string_view bytes, const std::string& key) {
  ncclUniqueId id;
  if (bytes.size() != sizeof id.internal) {
    fail(ErrorCode::data_loss, "{}: {} bytes are no identifier of NCCL", key, bytes.size());
  }
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

// What a communicator and its groups have in common: the first loss.
struct Family {
  std::mutex mutex;
  std::optional<std::string> loss;

  void lose(std::string reason) {
    const std::lock_guard lock(mutex);
    if (!loss) loss = std::move(reason);
  }
  std::optional<std::string> lost() {
    const std::lock_guard lock(mutex);
    return loss;
  }
};

// Who the ranks of a communicator are, and under which keys of the store they split it.
struct Place {
  Group group;
  int first_rank;     // of the first communicator, for people
  std::string store;  // "nccl/job/3"
  int device;
  std::shared_ptr<Family> family;
};

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(Place place, const ncclUniqueId& id, net::Deadline deadline)
      : place_(std::move(place)),
        group_(place_.group),
        heard_(static_cast<size_t>(group_.size)),
        family_(place_.family) {
    check_cuda(cudaSetDevice(place_.device), "choose a GPU");
    // Calls that do not block are the only ones that can be given up.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    try {
      settle(ncclCommInitRankConfig(&comm_, group_.size, id, group_.rank, &config), "join",
             deadline);
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

  void report_loss(PeerLoss loss) override { family_->lose(std::move(loss.reason)); }

  std::unique_ptr<DeviceCommunicator> split(std::span<const int> ranks, net::Store& store,
                                            net::Deadline deadline) override {
    const std::string list = check_list(ranks);
    look("split");
    Place place = place_;
    place.group.size = static_cast<int>(ranks.size());
    place.group.rank =
        static_cast<int>(std::find(ranks.begin(), ranks.end(), group_.rank) - ranks.begin());
    // Each rank keeps a list of the lists it was called with. Of each member's the next one that
    // has this rank in it must be this one.
    try {
      const bool first = place.group.rank == 0;
      ncclUniqueId id{};
      if (first) id = make_id();
      store.set(key_of(group_.rank, num_splits_++),
                first ? fmt::format("{};{}", list, bytes_of(id)) : list + ";", deadline);
      for (const int r : ranks) {
        if (r == group_.rank) {
          if (first) place.store = key_of(r, num_splits_ - 1);
          continue;
        }
        const auto [at, text] = next_of(r, list, store, deadline);
        if (r != ranks.front()) continue;
        place.store = key_of(r, at);
        id = id_of(text, place.store);
      }
      return std::make_unique<NcclCommunicator>(std::move(place), id, deadline);
    } catch (const Error& e) {  // this rank is out of step with the others
      family_->lose(e.what());
      throw;
    }
  }

 private:
  std::string check_list(std::span<const int> ranks) const {
    const std::string list = fmt::format("[{}]", fmt::join(ranks, ", "));
    const auto count = [&](int r) { return std::count(ranks.begin(), ranks.end(), r); };
    for (const int r : ranks) {
      if (r < 0 || r >= group_.size) {
        fail(ErrorCode::invalid_argument, "rank {} splits into ranks {}: there is no rank {} of {}",
             group_.rank, list, r, group_.size);
      }
      if (count(r) > 1) {
        fail(ErrorCode::invalid_argument, "rank {} splits into ranks {}: rank {} is in it twice",
             group_.rank, list, r);
      }
    }
    if (count(group_.rank) == 0) {
      fail(ErrorCode::invalid_argument,
           "rank {} splits into ranks {} and is not one of them: only members call it", group_.rank,
           list);
    }
    return list;
  }

  std::string key_of(int rank, int64_t split) const {
    return fmt::format("{}/{}.{}", place_.store, rank, split);
  }

  // The next of `peer`'s splits that this rank is in, and what it says besides the list.
  std::pair<int64_t, std::string> next_of(int peer, const std::string& list, net::Store& store,
                                          net::Deadline deadline) {
    int64_t& next = heard_[static_cast<size_t>(peer)];
    while (true) {
      const int64_t at = next;
      std::string text;
      while (text.empty()) {  // in turns, since a loss may be reported meanwhile
        look("split");
        try {
          text = store.get(key_of(peer, at), std::min(deadline, net::Clock::now() + kTurn));
        } catch (const Error& e) {
          if (e.code() != ErrorCode::deadline) throw;
          if (net::Clock::now() < deadline) continue;
          fail(ErrorCode::deadline, "rank {} splits into ranks {}, and rank {} did not come",
               group_.rank, list, peer);
        }
      }
      ++next;
      const size_t end = std::min(text.find(';'), text.size());
      const std::string theirs = text.substr(0, end);
      if (theirs == list) return {at, text.substr(std::min(end + 1, text.size()))};
      std::istringstream words(theirs);
      char sign = 0;
      int r = 0;
      while (words >> sign && words >> r) {  // "[" or "," and a rank
        if (r != group_.rank) continue;
        fail(ErrorCode::conflict,
             "rank {} splits into ranks {}, and rank {} into ranks {}: all members give the same "
             "list, and ranks that are in several lists together take them in the same order",
             group_.rank, list, peer, theirs);
      }
    }
  }

  template <class Call>
  void enqueue(const char* what, const Call& call) {
    look(what);
    check_cuda(cudaSetDevice(place_.device), what);
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
    if (const auto lost = family_->lost()) lose(what, *lost);
    if (comm_ == nullptr) return;
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) state = ncclInternalError;
    if (state != ncclSuccess && state != ncclInProgress) lose(what, ncclGetErrorString(state));
  }

  [[noreturn]] void lose(const char* what, const std::string& reason) {
    family_->lose(reason);
    abort();
    fail(ErrorCode::peer_lost, "rank {} in generation {}: {}: {}", place_.first_rank,
         group_.generation, what, reason);
  }

  // Peers may still read what this rank has sent, so NCCL is told before memory goes; but who is
  // gone or asleep does not keep us.
  bool left_in_order() {
    const auto deadline = net::Clock::now() + kFarewell;
    ncclResult_t state = ncclCommFinalize(comm_);
    while (state == ncclInProgress && net::Clock::now() < deadline) {
      std::this_thread::sleep_for(kPoll);
      if (family_->lost()) return false;
      if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return false;
    }
    return state == ncclSuccess && ncclCommDestroy(std::exchange(comm_, nullptr)) == ncclSuccess;
  }

  void abort() {
    if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
  }

  const Place place_;
  const Group group_;
  ncclComm_t comm_ = nullptr;
  int64_t num_splits_ = 0;
  std::vector<int64_t> heard_;  // of each rank: how many of its splits
  const std::shared_ptr<Family> family_;
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
  const std::string key = fmt::format("nccl/{}/{}", group.job, group.generation);
  check_cuda(cudaSetDevice(device), "choose a GPU");
  ncclUniqueId id{};
  if (group.rank == 0) {
    id = make_id();
    store.set(key, bytes_of(id), deadline);
  } else {
    id = id_of(store.get(key, deadline), key);
  }
  return std::make_unique<NcclCommunicator>(
      Place{group, group.rank, key, device, std::make_shared<Family>()}, id, deadline);
}

}  // namespace ductile::comm
