#include "ductile/comm/inproc.h"

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

using Key = std::pair<int, Tag>;  // the peer, the tag

struct WaitingSend {
  std::span<const std::byte> bytes;
  Transfer* transfer = nullptr;  // nullptr: `copy` holds the bytes, the sender is done
  std::vector<std::byte> copy;
};

struct WaitingReceive {
  std::span<std::byte> bytes;
  Transfer* transfer = nullptr;
};

struct Failure {
  ErrorCode code;
  std::string text;
};

struct Endpoint {
  std::condition_variable changed;
  bool open = true;
  bool woken = false;
  bool settled = false;
  std::optional<Failure> failure;
  std::map<Key, WaitingSend> sends;        // to this rank, from Key::first
  std::map<Key, WaitingReceive> receives;  // of this rank
};

// All ranks share one lock: every transfer is matched, copied and settled under it, so that nothing
// is touched after a failure has been seen.
struct Hub {
  explicit Hub(int size) : ranks(size) {}

  std::mutex mutex;
  std::vector<Endpoint> ranks;

  void settle(int rank, Transfer* transfer, Transfer::State state) {
    if (transfer == nullptr) return;
    transfer->state.store(state, std::memory_order_release);
    ranks[rank].settled = true;
    ranks[rank].changed.notify_all();
  }

  // Settles everything `rank` still has open as failed.
  void abandon(int rank) {
    for (auto& [key, receive] : ranks[rank].receives) {
      settle(rank, receive.transfer, Transfer::State::failed);
    }
    ranks[rank].receives.clear();
    for (Endpoint& other : ranks) {
      std::erase_if(other.sends, [&](auto& entry) {
        if (entry.first.first != rank || entry.second.transfer == nullptr) return false;
        settle(rank, entry.second.transfer, Transfer::State::failed);
        return true;
      });
    }
  }

  void latch(int rank, ErrorCode code, std::string text) {
    Endpoint& end = ranks[rank];
    if (end.failure) return;
    end.failure = Failure{code, std::move(text)};
    abandon(rank);
    end.changed.notify_all();
  }

  void leave(int rank) {
    Endpoint& end = ranks[rank];
    const bool broken = end.failure.has_value();
    end.open = false;
    abandon(rank);
    for (int other = 0; other < static_cast<int>(ranks.size()); ++other) {
      if (other == rank || !ranks[other].open) continue;
      bool wanted = broken;
      for (const auto& [key, receive] : ranks[other].receives) wanted |= key.first == rank;
      for (const auto& [key, send] : end.sends) {
        wanted |= key.first == other && send.transfer != nullptr;
      }
      if (wanted) latch(other, ErrorCode::peer_lost, fmt::format("rank {} has left", rank));
    }
    end.sends.clear();
  }
};

class InprocTransport : public Transport {
 public:
  InprocTransport(std::shared_ptr<Hub> hub, int rank, const InprocOptions& options)
      : hub_(std::move(hub)), rank_(rank), options_(options) {}

  ~InprocTransport() override {
    std::lock_guard lock(hub_->mutex);
    hub_->leave(rank_);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hub_->ranks.size()); }

  void send(int peer, Tag tag, std::span<const std::byte> bytes, Transfer& transfer) override {
    check_peer(peer);
    std::lock_guard lock(hub_->mutex);
    throw_if_failed();
    Endpoint& to = hub_->ranks[peer];
    if (!to.open) {
      hub_->latch(rank_, ErrorCode::peer_lost, fmt::format("rank {} has left", peer));
      throw_if_failed();
    }
    transfer.state.store(Transfer::State::pending, std::memory_order_relaxed);
    if (auto it = to.receives.find({rank_, tag}); it != to.receives.end()) {
      const WaitingReceive receive = it->second;
      to.receives.erase(it);
      deliver(peer, receive.bytes, receive.transfer, rank_, bytes, &transfer);
      return;
    }
    const bool eager = bytes.size() <= options_.eager_bytes;
    WaitingSend waiting{bytes, eager ? nullptr : &transfer, {}};
    if (eager) waiting.copy.assign(bytes.begin(), bytes.end());
    DUCTILE_CHECK(to.sends.emplace(Key{rank_, tag}, std::move(waiting)).second,
                  "tag {} used twice from rank {} to {}", tag, rank_, peer);
    if (eager) hub_->settle(rank_, &transfer, Transfer::State::done);
  }

  void receive(int peer, Tag tag, std::span<std::byte> bytes, Transfer& transfer) override {
    check_peer(peer);
    std::lock_guard lock(hub_->mutex);
    throw_if_failed();
    transfer.state.store(Transfer::State::pending, std::memory_order_relaxed);
    Endpoint& self = hub_->ranks[rank_];
    if (auto it = self.sends.find({peer, tag}); it != self.sends.end()) {
      const WaitingSend send = std::move(it->second);
      self.sends.erase(it);
      deliver(rank_, bytes, &transfer, peer, send.transfer ? send.bytes : send.copy, send.transfer);
      return;
    }
    DUCTILE_CHECK(self.receives.emplace(Key{peer, tag}, WaitingReceive{bytes, &transfer}).second,
                  "tag {} received twice by rank {} of {}", tag, rank_, peer);
    if (!hub_->ranks[peer].open) {
      hub_->latch(rank_, ErrorCode::peer_lost, fmt::format("rank {} has left", peer));
      throw_if_failed();
    }
  }

  void progress(std::chrono::nanoseconds wait) override {
    std::unique_lock lock(hub_->mutex);
    Endpoint& self = hub_->ranks[rank_];
    if (wait.count() > 0) {
      self.changed.wait_for(lock, wait, [&] { return self.settled || self.woken || self.failure; });
    }
    self.settled = false;
    self.woken = false;
    throw_if_failed();
  }

  void wake() override {
    std::lock_guard lock(hub_->mutex);
    hub_->ranks[rank_].woken = true;
    hub_->ranks[rank_].changed.notify_all();
  }

  void fail(PeerLoss loss) override {
    std::lock_guard lock(hub_->mutex);
    hub_->latch(rank_, ErrorCode::peer_lost, std::move(loss.reason));
  }

  std::byte* peer_memory(int, const std::byte*) override { return nullptr; }

 private:
  void check_peer(int peer) const {
    DUCTILE_CHECK(peer >= 0 && peer < size() && peer != rank_, "rank {} has no peer {}", rank_,
                  peer);
  }

  void throw_if_failed() {
    if (const auto& failure = hub_->ranks[rank_].failure) {
      throw Error(failure->code, failure->text);
    }
  }

  void deliver(int to, std::span<std::byte> into, Transfer* receive, int from,
               std::span<const std::byte> bytes, Transfer* send) {
    if (into.size() != bytes.size()) {
      hub_->settle(to, receive, Transfer::State::failed);
      hub_->settle(from, send, Transfer::State::done);
      hub_->latch(to, ErrorCode::data_loss,
                  fmt::format("rank {} sent {} bytes where {} were expected", from, bytes.size(),
                              into.size()));
      return;
    }
    if (!bytes.empty()) std::memcpy(into.data(), bytes.data(), bytes.size());
    hub_->settle(to, receive, Transfer::State::done);
    hub_->settle(from, send, Transfer::State::done);
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  InprocOptions options_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_inproc_transports(int size,
                                                               const InprocOptions& options) {
  if (size < 1) fail(ErrorCode::invalid_argument, "{} ranks: at least 1 is needed", size);
  auto hub = std::make_shared<Hub>(size);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(std::make_unique<InprocTransport>(hub, rank, options));
  }
  return transports;
}

}  // namespace ductile::comm
