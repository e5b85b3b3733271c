#include "ductile/comm/composite_transport.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::nanoseconds;

// How long to wait on one transport while the other has messages under way, too: doubles up to the
// second while nothing happens.
constexpr Nanoseconds kFirstTurn = std::chrono::microseconds(20);
constexpr Nanoseconds kLongestTurn = std::chrono::milliseconds(1);
// How long to wait on one that alone has messages, before a look at the other's failures.
constexpr Nanoseconds kLook = std::chrono::milliseconds(10);

class CompositeTransport final : public Transport {
 public:
  CompositeTransport(std::unique_ptr<Transport> inside, std::vector<int> local_ranks,
                     std::unique_ptr<Transport> between)
      : inside_{{}, std::move(inside)}, between_{{}, std::move(between)} {
    const int size = between_.transport->size(), local = inside_.transport->size();
    if (static_cast<int>(local_ranks.size()) != local) {
      ductile::fail(ErrorCode::invalid_argument, "{} local ranks for a transport of {}",
                    local_ranks.size(), local);
    }
    local_of_.assign(static_cast<size_t>(size), -1);
    for (int k = 0; k < local; ++k) {
      const int r = local_ranks[k];
      if (r < 0 || r >= size || local_of_[r] >= 0) {
        ductile::fail(ErrorCode::invalid_argument,
                      "local rank {} is to be rank {} of {}: each at most once", k, r, size);
      }
      local_of_[r] = k;
    }
    if (local_of_[between_.transport->rank()] != inside_.transport->rank()) {
      ductile::fail(ErrorCode::invalid_argument,
                    "rank {} is not local rank {}: the order of local_ranks is wrong",
                    between_.transport->rank(), inside_.transport->rank());
    }
  }

  int rank() const override { return between_.transport->rank(); }
  int size() const override { return between_.transport->size(); }

  void send(int peer, Tag tag, std::span<const std::byte> bytes, Transfer& transfer) override {
    on(peer, transfer,
       [&](Transport& t, int to, Transfer& inner) { t.send(to, tag, bytes, inner); });
  }

  void receive(int peer, Tag tag, std::span<std::byte> bytes, Transfer& transfer) override {
    on(peer, transfer,
       [&](Transport& t, int from, Transfer& inner) { t.receive(from, tag, bytes, inner); });
  }

  void progress(Nanoseconds wait) override {
    const auto start = Clock::now();
    Nanoseconds turn = kFirstTurn;
    while (true) {
      guarded([&] {
        inside_.transport->progress(Nanoseconds(0));
        between_.transport->progress(Nanoseconds(0));
      });
      const bool woken = wake_.exchange(false);
      const bool inside = pass_settled(inside_), between = pass_settled(between_);
      if (std::exchange(settled_, false) || inside || between || woken) return;
      const Nanoseconds left = wait - (Clock::now() - start);
      if (left <= Nanoseconds(0)) return;
      guarded([&] {
        if (inside_.pending.empty()) {
          between_.transport->progress(std::min(left, kLook));
        } else if (between_.pending.empty()) {
          inside_.transport->progress(std::min(left, kLook));
        } else {
          inside_.transport->progress(std::min(left, turn));
          if (!any_settled(inside_)) between_.transport->progress(std::min(left, turn));
          turn = std::min(2 * turn, kLongestTurn);
        }
      });
    }
  }

  void wake() override {
    wake_.store(true);
    inside_.transport->wake();
    between_.transport->wake();
  }

  void fail(PeerLoss loss) override {
    PeerLoss local{{}, loss.reason};
    for (const int r : loss.ranks) {
      if (is_local(r)) local.ranks.push_back(local_of_[r]);
    }
    inside_.transport->fail(std::move(local));
    between_.transport->fail(std::move(loss));
    wake();
  }

  std::byte* peer_memory(int peer, const std::byte* own) override {
    return is_local(peer) ? inside_.transport->peer_memory(local_of_[peer], own) : nullptr;
  }

 private:
  // A transport may settle a transfer at any moment, from another thread, too, and its owner may
  // then end its life. So each side has transfers of ours, and the owner's change in calls alone.
  struct Pending {
    Transfer inner;
    Transfer* owner = nullptr;

    void settle(Transfer::State state) const {
      owner->state.store(state, std::memory_order_release);
    }
  };
  struct Side {
    std::vector<std::unique_ptr<Pending>> pending;  // outlives the transport
    std::unique_ptr<Transport> transport;
  };

  bool is_local(int peer) const { return peer >= 0 && peer < size() && local_of_[peer] >= 0; }

  template <class Start>
  void on(int peer, Transfer& transfer, const Start& start) {
    if (loss_) throw *loss_;
    const bool local = is_local(peer);
    Side& side = local ? inside_ : between_;
    side.pending.push_back(new_pending(transfer));
    Pending& pending = *side.pending.back();
    pending.settle(Transfer::State::pending);
    try {
      guarded([&] { start(*side.transport, local ? local_of_[peer] : peer, pending.inner); });
    } catch (const Error& error) {
      if (error.code() == ErrorCode::invalid_argument) {  // refused: it never began
        pending.settle(Transfer::State::idle);
        side.pending.pop_back();
      }
      throw;
    }
    settled_ = pass_settled(side) || settled_;
  }

  std::unique_ptr<Pending> new_pending(Transfer& owner) {
    if (spare_.empty()) spare_.push_back(std::make_unique<Pending>());
    std::unique_ptr<Pending> out = std::move(spare_.back());
    spare_.pop_back();
    out->inner.state.store(Transfer::State::idle, std::memory_order_relaxed);
    out->owner = &owner;
    return out;
  }

  static bool any_settled(const Side& side) {
    return std::ranges::any_of(side.pending, [](const auto& p) { return p->inner.settled(); });
  }

  // Tells the owners. True if there were any.
  bool pass_settled(Side& side) {
    const auto settled = std::ranges::stable_partition(
        side.pending, [](const auto& p) { return !p->inner.settled(); });
    const bool any = !settled.empty();
    for (std::unique_ptr<Pending>& p : settled) {
      p->settle(p->inner.state.load(std::memory_order_acquire));
      spare_.push_back(std::move(p));
    }
    side.pending.erase(settled.begin(), settled.end());
    return any;
  }

  // Passes a failure of one side on to the other, so that everything under way is settled.
  template <class Body>
  void guarded(const Body& body) {
    if (loss_) throw *loss_;
    try {
      body();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::invalid_argument) throw;
      loss_.emplace(error);
      for (Side* side : {&inside_, &between_}) {
        side->transport->fail({{}, error.message()});
        try {
          side->transport->progress(Nanoseconds(0));  // settles what is pending
        } catch (const Error&) {
        }
        // None completes any more, and its memory is not touched again.
        for (const auto& p : side->pending) p->settle(Transfer::State::failed);
        for (auto& p : side->pending) spare_.push_back(std::move(p));
        side->pending.clear();
      }
      throw *loss_;
    }
  }

  std::vector<std::unique_ptr<Pending>> spare_;
  Side inside_;
  Side between_;
  std::vector<int> local_of_;  // by rank; -1: on another host
  bool settled_ = false;       // since the last progress()
  std::atomic<bool> wake_{false};
  std::optional<Error> loss_;
};

}  // namespace

std::unique_ptr<Transport> make_composite_transport(std::unique_ptr<Transport> inside,
                                                    std::vector<int> local_ranks,
                                                    std::unique_ptr<Transport> between) {
  return std::make_unique<CompositeTransport>(std::move(inside), std::move(local_ranks),
                                              std::move(between));
}

}  // namespace ductile::comm
