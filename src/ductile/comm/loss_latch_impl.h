#pragma once

#include <atomic>
#include <mutex>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/comm/mesh.h"
#include "ductile/comm/transport.h"

namespace ductile::comm {

// The first loss of a transport of processes, and the way in which all its calls end by it.
class LossLatch {
 public:
  explicit LossLatch(const Group& group) : rank_(group.rank), generation_(group.generation) {}

  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Any thread; all but the first are ignored.
  void latch(ErrorCode code, PeerLoss loss) {
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    loss_ = std::move(loss);
    code_ = code;
    failed_.store(true, std::memory_order_release);
  }

  // Runs `body` unless something is latched; latches the loss that it throws, as one of `peers`.
  // Once there is one, settle() must end all that is pending, and the loss is thrown. `transfer`,
  // if any, has failed where `body` threw.
  template <class Body, class Settle>
  void guard(Transfer* transfer, const std::vector<int>& peers, const Body& body,
             const Settle& settle) {
    const auto give_up = [&] {
      if (transfer != nullptr) {
        transfer->state.store(Transfer::State::failed, std::memory_order_release);
      }
    };
    if (!failed()) {
      try {
        body();
      } catch (const Error& error) {
        give_up();
        if (error.code() != ErrorCode::peer_lost && error.code() != ErrorCode::data_loss) throw;
        latch(error.code(), {peers, error.what()});
      }
    }
    if (!failed()) return;
    settle();
    const std::lock_guard lock(mutex_);
    fail(code_, "rank {} in generation {}: {}", rank_, generation_, loss_.reason);
  }

 private:
  const int rank_;
  const uint64_t generation_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards what follows
  PeerLoss loss_;
  ErrorCode code_ = ErrorCode::peer_lost;
};

}  // namespace ductile::comm
