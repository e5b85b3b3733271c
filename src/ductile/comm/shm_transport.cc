#include "ductile/comm/shm_transport.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/comm/arena_impl.h"
#include "ductile/comm/shm_ring_impl.h"

namespace ductile::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kChunk = size_t{32} << 10;  // of a message that goes through the ring
constexpr size_t kPull = size_t{512} << 10;  // copied at a time, before others get their turn
// The most that send() may copy into the ring. What is longer waits for its receive in any case, so
// where that lies in the arena the sender is told beforehand, and need not ask.
constexpr size_t kMostEager = kRingCapacity / 4;
constexpr int kRecordsAtOnce = 64;

class ShmTransport final : public Transport {
 public:
  ShmTransport(std::shared_ptr<Arena> arena, const ShmTransportOptions& options)
      : arena_(std::move(arena)), impl_(arena_->impl()), options_(options) {
    DUCTILE_CHECK(options.eager_bytes <= kMostEager, "eager_bytes = {}", options.eager_bytes);
    for (int p = 0; p < impl_.size; ++p) {
      peers_.push_back({ShmRing(impl_.ring(p, impl_.rank)), ShmRing(impl_.ring(impl_.rank, p))});
    }
  }

  ~ShmTransport() override {
    settle_all();
    impl_.slots[impl_.rank].left_transport.store(1);
    for (int p = 0; p < impl_.size; ++p) {
      if (p != impl_.rank) impl_.slots[p].doorbell.add(1);
    }
  }

  int rank() const override { return impl_.rank; }
  int size() const override { return impl_.size; }

  void send(int peer, Tag tag, std::span<const std::byte> bytes, Transfer& transfer) override {
    throw_if_failed();
    check_peer(peer);
    transfer.state.store(Transfer::State::pending, std::memory_order_relaxed);
    Peer& to = peers_[peer];
    const uint64_t id = ++next_id_;
    Record record{.tag = tag, .id = id, .length = bytes.size()};
    if (bytes.size() <= options_.eager_bytes) {
      to.queue.push_back({record, bytes, &transfer, {}});
      pump(peer);
      return;
    }
    to.sends[id] = {bytes, &transfer, tag};
    if (const auto found = to.places.find(tag); found != to.places.end()) {
      const Place place = found->second;
      to.places.erase(found);
      if (place.length == bytes.size()) {  // else the peer finds it out by the offer
        begin_push(peer, id, place, /*announced=*/true);
        return;
      }
    }
    record.kind = Record::offer;
    to.queue.push_back(
        {record, {}, nullptr, offset_of(bytes.data(), bytes.size()).value_or(Record::kNoOffset)});
    pump(peer);
  }

  void receive(int peer, Tag tag, std::span<std::byte> bytes, Transfer& transfer) override {
    throw_if_failed();
    check_peer(peer);
    transfer.state.store(Transfer::State::pending, std::memory_order_relaxed);
    Peer& from = peers_[peer];
    const auto early = from.early.find(tag);
    if (early == from.early.end()) {
      const std::optional<uint64_t> offset =
          bytes.size() > kMostEager ? offset_of(bytes.data(), bytes.size()) : std::nullopt;
      from.posted[tag] = {bytes, 0, &transfer, offset.has_value()};
      if (offset) {
        const Record record{.kind = Record::posted, .tag = tag, .length = bytes.size()};
        from.queue.push_back({record, {}, nullptr, offset});
        pump(peer);
      }
      return;
    }
    const Early message = std::move(early->second);
    from.early.erase(early);
    const Inbound receive{bytes, 0, &transfer, false};
    if (!fits(peer, tag, message.record.length, receive)) throw_if_failed();
    if (message.record.kind == Record::offer) {
      start(peer, message.record, message.offset, receive);
      return;
    }
    std::copy(message.payload.begin(), message.payload.end(), bytes.begin());
    settle(&transfer, Transfer::State::done);
  }

  void progress(std::chrono::nanoseconds wait) override {
    const auto start = Clock::now();
    Signal& doorbell = impl_.slots[impl_.rank].doorbell;
    Patience patience(impl_.spins);
    while (true) {
      throw_if_failed();
      const uint32_t seen = doorbell.value.load(std::memory_order_seq_cst);
      const bool moved = poll();
      throw_if_failed();
      const bool woken = wake_.exchange(false);
      if (std::exchange(settled_, false) || woken) return;
      const auto now = Clock::now();
      if (now >= next_look_) {
        next_look_ = now + kNap;
        if (impl_.look_for_dead()) continue;
      }
      if (now - start >= wait) return;
      if (moved) {
        patience = Patience(impl_.spins);
      } else if (!patience.pause()) {
        const auto ready = [this] { return wake_.load() || impl_.failed() || incoming(); };
        doorbell.sleep(seen, std::min<Nanoseconds>(kNap, wait - (now - start)), ready);
      }
    }
  }

  void wake() override {
    wake_.store(true);
    impl_.slots[impl_.rank].doorbell.add(1);
  }

  void fail(PeerLoss loss) override {
    arena_->fail(std::move(loss));
    wake();
  }

  std::byte* peer_memory(int peer, const std::byte* own) override {
    return arena_->peer(peer, own);
  }

 private:
  struct Inbound {
    std::span<std::byte> bytes;
    size_t arrived;
    Transfer* transfer;
    bool announced;  // the sender is told where it lies, and puts the message there
  };
  struct Early {  // arrived before its receive
    Record record;
    uint64_t offset;
    std::vector<std::byte> payload;
  };
  struct Outgoing {
    Record record;
    std::span<const std::byte> payload;
    Transfer* transfer;              // done once this is in the ring
    std::optional<uint64_t> offset;  // instead of the payload
  };
  struct Outbound {
    std::span<const std::byte> bytes;
    Transfer* transfer;
    Tag tag;
  };
  struct Stream {
    uint64_t id;
    size_t sent;
  };
  struct Place {  // of a receive in the peer's region
    uint64_t offset, length;
  };
  struct Peer {
    ShmRing in, out;
    std::unordered_map<Tag, Inbound> posted{};
    std::unordered_map<Tag, Early> early{};
    std::unordered_map<uint64_t, Inbound> inbound{};  // accepted, by the sender's id
    std::unordered_map<uint64_t, Outbound> sends{};   // offered, by the own id
    std::deque<Outgoing> queue{};                     // records that wait for space
    std::deque<Stream> streams{};                     // offers that the peer accepted
    std::unordered_map<Tag, Place> places{};          // of receives that nothing was sent to yet
    int pulls = 0;
    bool busy() const {
      return !posted.empty() || !inbound.empty() || !sends.empty() || pulls > 0 ||
             std::any_of(queue.begin(), queue.end(),
                         [](const Outgoing& o) { return o.transfer != nullptr; });
    }
  };
  struct Pull {
    int peer;
    uint64_t id, offset;
    Inbound receive;
  };
  struct Push {
    int peer;
    uint64_t id, offset;
    size_t sent;
    bool announced;  // the receive is named by its tag, not by the offer's id
  };

  void check_peer(int peer) const {
    if (peer < 0 || peer >= impl_.size || peer == impl_.rank) {
      ductile::fail(ErrorCode::invalid_argument, "rank {} of {} has no peer {}", impl_.rank,
                    impl_.size, peer);
    }
  }

  void settle(Transfer* transfer, Transfer::State state) {
    if (transfer == nullptr) return;
    transfer->state.store(state, std::memory_order_release);
    settled_ = true;
  }

  void settle_all() {
    for (Peer& p : peers_) {
      for (auto& [tag, r] : p.posted) settle(r.transfer, Transfer::State::failed);
      for (auto& [id, r] : p.inbound) settle(r.transfer, Transfer::State::failed);
      for (auto& [id, s] : p.sends) settle(s.transfer, Transfer::State::failed);
      for (Outgoing& o : p.queue) settle(o.transfer, Transfer::State::failed);
      p.posted.clear();
      p.early.clear();
      p.inbound.clear();
      p.sends.clear();
      p.queue.clear();
      p.streams.clear();
      p.places.clear();
    }
    for (Pull& pull : pulls_) settle(pull.receive.transfer, Transfer::State::failed);
    pulls_.clear();
    pushes_.clear();  // their transfers are those of `sends`
  }

  // The first failure, latched with everything settled; thrown by every later call.
  void throw_if_failed() {
    if (!loss_ && impl_.failed()) {
      try {
        impl_.throw_loss();
      } catch (const Error& e) {
        latch(e);
      }
    }
    if (loss_) throw *loss_;
  }
  void latch(Error error) {
    if (loss_) return;
    loss_.emplace(std::move(error));
    settle_all();
  }

  bool fits(int peer, Tag tag, uint64_t length, const Inbound& receive) {
    if (length == receive.bytes.size()) return true;
    const std::string text = fmt::format("message {:#x} from {} has {} bytes, its receive {}", tag,
                                         impl_.label(peer), length, receive.bytes.size());
    settle(receive.transfer, Transfer::State::failed);
    latch(Error(ErrorCode::data_loss, text));
    impl_.fail({{}, fmt::format("{} broke off: {}", impl_.label(impl_.rank), text)});
    return false;
  }

  // Where it lies in the own region, if it does.
  std::optional<uint64_t> offset_of(const std::byte* data, size_t bytes) const {
    if (!arena_->holds(data, bytes)) return std::nullopt;
    return static_cast<uint64_t>(data - impl_.region(impl_.rank));
  }

  bool incoming() const {
    for (int p = 0; p < impl_.size; ++p) {
      if (p == impl_.rank) continue;
      if (!peers_[p].in.empty()) return true;
      if (impl_.slots[p].left_transport.load(std::memory_order_acquire) && peers_[p].busy()) {
        return true;
      }
    }
    return false;
  }

  bool poll() {
    bool moved = false;
    for (int p = 0; p < impl_.size && !loss_; ++p) {
      if (p == impl_.rank) continue;
      // Read before the ring is drained: nothing can follow then.
      const bool left = impl_.slots[p].left_transport.load(std::memory_order_acquire) != 0;
      const bool drained = drain(p, moved);
      if (loss_) return true;
      if (left && drained && peers_[p].busy()) {
        latch(Error(ErrorCode::peer_lost, fmt::format("{} left before it was done with {}",
                                                      impl_.label(p), impl_.label(impl_.rank))));
        return true;
      }
      moved = pump(p) || moved;
    }
    const bool pulled = pull(), pushed = push();
    return pulled || pushed || moved;
  }

  // True if the ring is empty now.
  bool drain(int p, bool& moved) {
    Peer& peer = peers_[p];
    bool starved = false;
    for (int i = 0; i < kRecordsAtOnce && !peer.in.empty() && !loss_; ++i) {
      const Record record = peer.in.front();
      take(p, peer, record);
      starved = peer.in.pop(record) || starved;
      moved = true;
    }
    if (starved) impl_.slots[p].doorbell.add(1);
    return peer.in.empty();
  }

  void take(int p, Peer& peer, const Record& record) {
    switch (record.kind) {
      case Record::eager: {
        const auto posted = peer.posted.find(record.tag);
        if (posted == peer.posted.end()) {
          Early& early = peer.early[record.tag];
          early = {record, 0, std::vector<std::byte>(record.payload)};
          peer.in.copy_payload(early.payload.data(), record.payload);
          return;
        }
        const Inbound receive = posted->second;
        peer.posted.erase(posted);
        if (!fits(p, record.tag, record.length, receive)) return;
        peer.in.copy_payload(receive.bytes.data(), record.payload);
        settle(receive.transfer, Transfer::State::done);
        return;
      }
      case Record::offer: {
        const uint64_t offset = offset_in(peer);
        const auto posted = peer.posted.find(record.tag);
        if (posted == peer.posted.end()) {
          peer.early[record.tag] = {record, offset, {}};
          return;
        }
        const Inbound receive = posted->second;
        if (receive.announced && record.length == receive.bytes.size()) return;  // it is on its way
        peer.posted.erase(posted);
        if (fits(p, record.tag, record.length, receive)) start(p, record, offset, receive);
        return;
      }
      case Record::accept:
        if (record.payload == 0) {
          peer.streams.push_back({record.id, 0});
        } else {
          const auto at = peer.sends.find(record.id);
          DUCTILE_CHECK(at != peer.sends.end(), "no such message was offered");
          begin_push(p, record.id, {offset_in(peer), at->second.bytes.size()},
                     /*announced=*/false);
        }
        return;
      case Record::posted:
        return take_posted(p, peer, record);
      case Record::placed:
        return take_placed(peer, record);
      case Record::chunk: {
        const auto at = peer.inbound.find(record.id);
        DUCTILE_CHECK(at != peer.inbound.end(), "a chunk of no message");
        Inbound& receive = at->second;
        peer.in.copy_payload(receive.bytes.data() + receive.arrived, record.payload);
        receive.arrived += record.payload;
        if (receive.arrived == receive.bytes.size()) {
          settle(receive.transfer, Transfer::State::done);
          peer.inbound.erase(at);
        }
        return;
      }
      case Record::taken: {
        const auto at = peer.sends.find(record.id);
        DUCTILE_CHECK(at != peer.sends.end(), "no such message was offered");
        settle(at->second.transfer, Transfer::State::done);
        peer.sends.erase(at);
        return;
      }
    }
    ductile::fail(ErrorCode::internal, "a record of kind {} from {}", record.kind, impl_.label(p));
  }

  void take_posted(int p, Peer& peer, const Record& record) {
    const Place place{offset_in(peer), record.length};
    const auto offered = std::find_if(peer.sends.begin(), peer.sends.end(), [&](const auto& send) {
      return send.second.tag == record.tag;
    });
    if (offered == peer.sends.end()) {
      peer.places[record.tag] = place;
    } else if (offered->second.bytes.size() == place.length) {  // else the peer finds it out
      begin_push(p, offered->first, place, /*announced=*/true);
    }
  }

  void take_placed(Peer& peer, const Record& record) {
    if (record.id == 0) {
      const auto at = peer.posted.find(record.tag);
      DUCTILE_CHECK(at != peer.posted.end() && at->second.announced, "nobody waits for it");
      settle(at->second.transfer, Transfer::State::done);
      peer.posted.erase(at);
      return;
    }
    const auto at = peer.inbound.find(record.id);
    DUCTILE_CHECK(at != peer.inbound.end(), "no such message was accepted");
    settle(at->second.transfer, Transfer::State::done);
    peer.inbound.erase(at);
  }

  // The payload of the record that is read.
  static uint64_t offset_in(const Peer& peer) {
    uint64_t offset = 0;
    peer.in.copy_payload(reinterpret_cast<std::byte*>(&offset), sizeof offset);
    return offset;
  }

  void begin_push(int p, uint64_t id, const Place& place, bool announced) {
    DUCTILE_CHECK(
        place.offset <= impl_.region_bytes && place.length <= impl_.region_bytes - place.offset,
        "{} bytes at {} of a region of {}", place.length, place.offset, impl_.region_bytes);
    pushes_.push_back({p, id, place.offset, 0, announced});
  }

  void start(int p, const Record& offer, uint64_t offset, const Inbound& receive) {
    if (offset == Record::kNoOffset) {
      peers_[p].inbound[offer.id] = receive;
      peers_[p].queue.push_back({{.kind = Record::accept, .id = offer.id},
                                 {},
                                 nullptr,
                                 offset_of(receive.bytes.data(), receive.bytes.size())});
      pump(p);
      return;
    }
    ++peers_[p].pulls;
    pulls_.push_back({p, offer.id, offset, receive});
  }

  // Writes what there is to write to `p`, as far as there is space.
  bool pump(int p) {
    Peer& peer = peers_[p];
    if (peer.queue.empty() && peer.streams.empty()) return false;
    bool wrote = false, full = false;
    while (!peer.queue.empty()) {
      Outgoing& next = peer.queue.front();
      const uint64_t offset = next.offset.value_or(0);
      const auto payload =
          next.offset ? std::as_bytes(std::span(&offset, 1)) : std::span(next.payload);
      if (!has_room(peer, payload.size())) {
        full = true;
        break;
      }
      peer.out.write(next.record, payload);
      settle(next.transfer, Transfer::State::done);
      peer.queue.pop_front();
      wrote = true;
    }
    while (!full && !peer.streams.empty()) {
      Stream stream = peer.streams.front();
      const Outbound& send = peer.sends.at(stream.id);
      const size_t bytes = std::min(send.bytes.size() - stream.sent, kChunk);
      if (!has_room(peer, bytes)) break;
      peer.streams.pop_front();
      peer.out.write({.kind = Record::chunk, .id = stream.id},
                     send.bytes.subspan(stream.sent, bytes));
      stream.sent += bytes;
      wrote = true;
      if (stream.sent < send.bytes.size()) {
        peer.streams.push_back(stream);  // by turns
      } else {
        settle(send.transfer, Transfer::State::done);
        peer.sends.erase(stream.id);
      }
    }
    if (wrote) impl_.slots[p].doorbell.add(1);
    return wrote;
  }

  static bool has_room(Peer& peer, size_t payload) {
    const auto needed = static_cast<int64_t>((payload + 31) / 32 * 32);
    if (peer.out.room() >= needed) return true;
    peer.out.starve();
    return peer.out.room() >= needed;
  }

  bool pull() {
    if (pulls_.empty()) return false;
    Pull pull = pulls_.front();
    pulls_.pop_front();
    Inbound& receive = pull.receive;
    const size_t bytes = std::min(receive.bytes.size() - receive.arrived, kPull);
    std::memcpy(receive.bytes.data() + receive.arrived,
                impl_.region(pull.peer) + pull.offset + receive.arrived, bytes);
    receive.arrived += bytes;
    // What was copied counts only if its owner was still there: else it may have changed meanwhile.
    const bool left = impl_.slots[pull.peer].left_transport.load(std::memory_order_seq_cst) != 0;
    if (left || receive.arrived < receive.bytes.size()) {
      pulls_.push_back(pull);
      return !left;
    }
    --peers_[pull.peer].pulls;
    // Done only once the sender's word is in the ring: nobody may drive this side after its last
    // transfer, and the sender would wait for ever.
    peers_[pull.peer].queue.push_back(
        {{.kind = Record::taken, .id = pull.id}, {}, receive.transfer, {}});
    pump(pull.peer);
    return true;
  }

  // Puts the next bytes of a message where its receive lies.
  bool push() {
    if (pushes_.empty()) return false;
    Push push = pushes_.front();
    pushes_.pop_front();
    // Who has left may use its memory for something else.
    if (impl_.slots[push.peer].left_transport.load(std::memory_order_seq_cst) != 0) {
      pushes_.push_back(push);
      return false;
    }
    Peer& peer = peers_[push.peer];
    const auto at = peer.sends.find(push.id);
    DUCTILE_CHECK(at != peer.sends.end(), "no such message is under way");
    const Outbound send = at->second;
    const size_t bytes = std::min(send.bytes.size() - push.sent, kPull);
    std::memcpy(impl_.region(push.peer) + push.offset + push.sent, send.bytes.data() + push.sent,
                bytes);
    push.sent += bytes;
    if (push.sent < send.bytes.size()) {
      pushes_.push_back(push);
      return true;
    }
    peer.sends.erase(at);
    const Record record{
        .kind = Record::placed, .tag = send.tag, .id = push.announced ? 0 : push.id};
    peer.queue.push_back({record, {}, send.transfer, {}});
    pump(push.peer);
    return true;
  }

  std::shared_ptr<Arena> arena_;
  Arena::Impl& impl_;
  ShmTransportOptions options_;
  std::vector<Peer> peers_;
  std::deque<Pull> pulls_;
  std::deque<Push> pushes_;
  uint64_t next_id_ = 0;
  Clock::time_point next_look_ = Clock::now() + kNap;
  bool settled_ = false;
  std::atomic<bool> wake_{false};
  std::optional<Error> loss_;
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(std::shared_ptr<Arena> arena,
                                              const ShmTransportOptions& options) {
  return std::make_unique<ShmTransport>(std::move(arena), options);
}

}  // namespace ductile::comm
