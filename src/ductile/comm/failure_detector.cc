#include "ductile/comm/failure_detector.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <fmt/ranges.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

using net::Clock;
using net::Deadline;
using std::chrono::milliseconds;

constexpr size_t kMaxFrame = 1 << 16;

enum class FrameKind : uint8_t { heartbeat = 1, goodbye = 2, loss = 3 };

// Frames hold the fields as they lie in memory: all our hosts are little-endian.
struct Heartbeat {
  uint64_t operation;
  uint64_t progress;
  uint64_t inside;
};

template <class T>
void append(std::vector<std::byte>& to, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

// The thread owns everything but what mutex_ guards and the atomics.
class FailureDetector::Loop {
 public:
  Loop(const Group& group, DetectorOptions options, OnLoss on_loss, OnStall on_stall,
       std::vector<MeshLink> links)
      : group_(group),
        options_(std::move(options)),
        on_loss_(std::move(on_loss)),
        on_stall_(std::move(on_stall)) {
    epoll_ = opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    wake_ = opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    watch(wake_.get(), nullptr, EPOLL_CTL_ADD, EPOLLIN);
    for (MeshLink& link : links) {
      auto [place, fresh] = peers_.try_emplace(link.peer, std::move(link));
      watch(place->second.link.socket.fd(), &place->second, EPOLL_CTL_ADD, EPOLLIN);
    }
    thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
  }

  ~Loop() {
    thread_.request_stop();
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
    thread_.join();
    const std::array<std::byte, 1> goodbye{static_cast<std::byte>(FrameKind::goodbye)};
    for (auto& [rank, peer] : peers_) {
      if (peer.state == Peer::State::alive) transmit(peer, goodbye);
    }
  }

  void report(const Position& p) {
    progress_.store(p.progress, std::memory_order_relaxed);
    // One word, so that the thread never sees a new number with an old end.
    operation_.store(p.operation << 1 | (p.inside ? 1 : 0), std::memory_order_release);
  }

  PeerLoss losses() const {
    const std::lock_guard lock(mutex_);
    return losses_;
  }

 private:
  struct Peer {
    explicit Peer(MeshLink l) : link(std::move(l)) { link.seal->set_max_payload(kMaxFrame); }
    enum class State { alive, left, lost };
    MeshLink link;
    State state = State::alive;
    Position position;
    Deadline heard = Clock::now();
    std::vector<std::byte> unsent;
  };

  void watch(int fd, Peer* peer, int operation, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = peer;
    if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) fail_errno("epoll_ctl", errno);
  }

  Position own() const {
    const uint64_t word = operation_.load(std::memory_order_acquire);
    return {word >> 1, progress_.load(std::memory_order_relaxed), (word & 1) != 0};
  }

  void run(const std::stop_token& stop) {
    Deadline next_beat = Clock::now();
    while (!stop.stop_requested()) {
      if (Clock::now() >= next_beat) {
        beat();
        next_beat = std::max(next_beat + options_.interval, Clock::now());
      }
      Deadline next = next_beat;
      for (const auto& [rank, peer] : peers_) {
        if (peer.state == Peer::State::alive) next = std::min(next, peer.heard + options_.deadline);
      }
      // Everything that is there is read before anybody is judged, and by the time at which the
      // last look began: this process may itself be stopped between any two lines.
      Deadline looked;
      int wait = net::poll_milliseconds(next);
      do {
        looked = Clock::now();
      } while (handle_events(std::exchange(wait, 0)));
      judge(looked);
      watch_own_operation();
    }
  }

  // False: it looked without waiting and there was nothing.
  bool handle_events(int wait) {
    std::array<epoll_event, 64> events;
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait);
    bool any = count < 0 || wait > 0;  // a stop and continue interrupts the wait: look again
    for (int i = 0; i < count; ++i) {
      auto* peer = static_cast<Peer*>(events[static_cast<size_t>(i)].data.ptr);
      if (peer == nullptr) return false;  // stop
      any = true;
      if (peer->state == Peer::State::alive) read_from(*peer);
    }
    return any;
  }

  void read_from(Peer& peer) {
    std::array<std::byte, 16384> chunk;
    const ssize_t got = recv(peer.link.socket.fd(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      return lose(
          peer, got == 0 ? "its process ended: it closed the heartbeat connection"
                         : fmt::format("its heartbeat connection broke: {}", std::strerror(errno)));
    }
    try {
      peer.link.seal->feed(std::span(chunk).first(static_cast<size_t>(got)));
      while (auto frame = peer.link.seal->next()) {
        peer.heard = Clock::now();  // what is not its own does not count
        if (peer.state == Peer::State::alive) handle(peer, *frame);
      }
    } catch (const Error& error) {
      lose(peer, fmt::format("its heartbeats are not its own: {}", error.what()));
    }
  }

  void handle(Peer& peer, std::span<const std::byte> frame) {
    if (frame.empty()) return;
    const auto kind = static_cast<FrameKind>(frame[0]);
    const auto body = frame.subspan(1);
    if (kind == FrameKind::goodbye) {
      retire(peer, Peer::State::left);
    } else if (kind == FrameKind::heartbeat && body.size() == sizeof(Heartbeat)) {
      Heartbeat h;
      std::memcpy(&h, body.data(), sizeof h);
      peer.position = {h.operation, h.progress, h.inside != 0};
    } else if (kind == FrameKind::loss && body.size() >= sizeof(int32_t)) {
      int32_t rank;
      std::memcpy(&rank, body.data(), sizeof rank);
      const auto text = body.subspan(sizeof rank);
      const std::string reason =
          fmt::format("rank {} says: {}", peer.link.peer,
                      std::string_view(reinterpret_cast<const char*>(text.data()), text.size()));
      if (rank == group_.rank) return record(rank, reason);
      const auto found = peers_.find(rank);
      if (found == peers_.end() || found->second.state != Peer::State::alive) return;
      retire(found->second, Peer::State::lost);
      record(rank, reason);
    }
  }

  // The socket stays open until the end: who was lost is told so when it wakes up.
  void retire(Peer& peer, Peer::State state) {
    peer.state = state;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.link.socket.fd(), nullptr);
  }

  void lose(Peer& peer, const std::string& how) {
    retire(peer, Peer::State::lost);
    const int32_t rank = peer.link.peer;
    const std::string reason =
        fmt::format("rank {} ({}) is lost: {}", rank, peer.link.socket.peer(), how);
    std::vector<std::byte> news{static_cast<std::byte>(FrameKind::loss)};
    append(news, rank);
    for (const char c : reason) news.push_back(static_cast<std::byte>(c));
    for (auto& [other, to] : peers_) {
      if (to.state == Peer::State::alive || &to == &peer) transmit(to, news);
    }
    record(rank, reason);
  }

  void record(int rank, const std::string& reason) {
    {
      const std::lock_guard lock(mutex_);
      auto& ranks = losses_.ranks;
      const auto place = std::lower_bound(ranks.begin(), ranks.end(), rank);
      if (place != ranks.end() && *place == rank) return;
      ranks.insert(place, rank);
      if (!losses_.reason.empty()) losses_.reason += "; ";
      losses_.reason += reason;
    }
    if (on_loss_) on_loss_({{rank}, reason});
  }

  void beat() {
    const Position p = own();
    std::vector<std::byte> frame{static_cast<std::byte>(FrameKind::heartbeat)};
    append(frame, Heartbeat{p.operation, p.progress, p.inside ? 1u : 0u});
    for (auto& [rank, peer] : peers_) {
      // A peer that takes nothing needs no further heartbeats, and no further memory.
      if (peer.state == Peer::State::alive && peer.unsent.size() < kMaxFrame) {
        transmit(peer, frame);
      }
    }
  }

  void transmit(Peer& peer, std::span<const std::byte> payload) {
    try {
      peer.link.seal->append(payload, peer.unsent);
    } catch (const Error&) {  // altered bytes came from there; the other end hears that by an alert
      const std::vector<std::byte> alert = peer.link.seal->take_output();
      peer.unsent.insert(peer.unsent.end(), alert.begin(), alert.end());
    }
    const ssize_t sent = ::send(peer.link.socket.fd(), peer.unsent.data(), peer.unsent.size(),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    // A broken connection shows when reading.
    if (sent > 0) peer.unsent.erase(peer.unsent.begin(), peer.unsent.begin() + sent);
  }

  void judge(Deadline now) {
    for (auto& [rank, peer] : peers_) {
      if (peer.state == Peer::State::alive && now >= peer.heard + options_.deadline) {
        lose(peer,
             fmt::format("no heartbeat for {:.1f} s (deadline {:.1f} s); stopped, or the link "
                         "is cut",
                         seconds(now - peer.heard), seconds(options_.deadline)));
      }
    }
  }

  void watch_own_operation() {
    const Position p = own();
    const Deadline now = Clock::now();
    if (!p.inside || p.operation != seen_.operation || p.progress != seen_.progress) {
      seen_ = p;
      seen_since_ = now;
      return;
    }
    if (now < seen_since_ + options_.soft_deadline || reported_ == p.operation) return;
    reported_ = p.operation;
    if (on_stall_) on_stall_(describe_stall(p, now));
  }

  GroupStall describe_stall(const Position& p, Deadline now) const {
    GroupStall stall;
    stall.own = p;
    stall.positions.resize(static_cast<size_t>(group_.size));
    stall.positions[static_cast<size_t>(group_.rank)] = p;
    // Missing: who has not even begun it; if all have, who has come least far in it.
    const auto behind = [&](const Position& q) { return q.operation < p.operation; };
    uint64_t least = p.progress;
    bool any_behind = false;
    for (const auto& [rank, peer] : peers_) {
      const Position& q = peer.position;
      stall.positions[static_cast<size_t>(rank)] = q;
      any_behind |= behind(q);
      if (q.operation == p.operation && q.inside) least = std::min(least, q.progress);
    }
    std::vector<std::string> where;
    for (const auto& [rank, peer] : peers_) {
      const Position& q = peer.position;
      const bool missing = any_behind ? behind(q)
                                      : q.operation == p.operation && q.inside &&
                                            q.progress == least && least < p.progress;
      if (!missing) continue;
      stall.missing.push_back(rank);
      where.push_back(fmt::format("rank {} is {} operation {}, progress {}", rank,
                                  q.inside ? "in" : "after", q.operation, q.progress));
    }
    const double waited = seconds(now - seen_since_);
    stall.text = stall.missing.empty()
                     ? fmt::format(
                           "operation {} has not moved for {:.1f} s on rank {} (progress {}); "
                           "no rank is behind it",
                           p.operation, waited, group_.rank, p.progress)
                     : fmt::format("operation {} has waited {:.1f} s for ranks {}: {}", p.operation,
                                   waited, fmt::join(stall.missing, ", "), fmt::join(where, "; "));
    return stall;
  }

  const Group group_;
  const DetectorOptions options_;
  const OnLoss on_loss_;
  const OnStall on_stall_;
  Descriptor epoll_;
  Descriptor wake_;
  std::map<int, Peer> peers_;
  Position seen_;
  Deadline seen_since_ = Clock::now();
  uint64_t reported_ = 0;
  std::atomic<uint64_t> operation_{0};
  std::atomic<uint64_t> progress_{0};
  mutable std::mutex mutex_;
  PeerLoss losses_;
  std::jthread thread_;
};

FailureDetector::FailureDetector(const Group& group, net::Store& store, const net::Secret& secret,
                                 const DetectorOptions& options, OnLoss on_loss, OnStall on_stall,
                                 net::Deadline deadline) {
  if (options.interval <= milliseconds(0) || options.deadline <= options.interval) {
    fail(ErrorCode::invalid_argument,
         "heartbeats every {} ms with a deadline of {} ms: the deadline must be several intervals",
         options.interval.count(), options.deadline.count());
  }
  MeshOptions mesh;
  mesh.role = "detector";
  mesh.links = {options.link};
  mesh.socket.user_timeout = options.deadline;
  mesh.given_up = options.given_up;
  mesh.on_refusal = options.on_refusal;
  loop_ = std::make_unique<Loop>(group, options, std::move(on_loss), std::move(on_stall),
                                 connect_mesh(group, store, secret, mesh, deadline));
}

FailureDetector::~FailureDetector() = default;

void FailureDetector::report(const Position& position) { loop_->report(position); }

PeerLoss FailureDetector::losses() const { return loop_->losses(); }

}  // namespace ductile::comm
