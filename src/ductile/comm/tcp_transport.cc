#include "ductile/comm/tcp_transport.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <utility>

#include <fmt/ranges.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/comm/loss_latch_impl.h"
#include "ductile/comm/tcp_connection_impl.h"

namespace ductile::comm {
namespace {

using std::chrono::nanoseconds;

class TcpTransport final : public Transport {
 public:
  TcpTransport(const Group& group, const TcpOptions& options, std::vector<MeshLink> links)
      : group_(group), num_rails_(options.links.size()), spin_(options.spin), loss_(group) {
    epoll_ = opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    wake_ = opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    watch(wake_.get(), nullptr, EPOLLIN);
    by_peer_.resize(static_cast<size_t>(group.size) * num_rails_);
    for (MeshLink& link : links) {
      auto& place =
          by_peer_[static_cast<size_t>(link.peer) * num_rails_ + static_cast<size_t>(link.lane)];
      place = std::make_unique<TcpConnection>(
          std::move(link), TcpConnection::Limits{options.unexpected_soft, options.unexpected_hard});
      watch(place->fd(), place.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    }
  }

  ~TcpTransport() override {
    for (auto& connection : by_peer_) {
      if (!connection) continue;
      if (!loss_.failed()) connection->say_goodbye();
      connection->abandon();
    }
    by_peer_.clear();
  }

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  void send(int peer, Tag tag, std::span<const std::byte> bytes, Transfer& transfer) override {
    guarded(&transfer, [&] { settled_ += connection(peer, tag).send(tag, bytes, transfer); });
  }

  void receive(int peer, Tag tag, std::span<std::byte> bytes, Transfer& transfer) override {
    guarded(&transfer, [&] {
      TcpConnection& from = connection(peer, tag);
      settled_ += from.receive(tag, bytes, transfer);
      if (from.wants_reading()) again_.push_back(&from);
    });
  }

  void progress(nanoseconds wait) override {
    guarded(nullptr, [&] {
      const auto start = std::chrono::steady_clock::now();
      const auto deadline = start + std::min<nanoseconds>(wait, std::chrono::hours(1));
      auto now = start;
      while (true) {
        const bool sleep = settled_ == 0 && again_.empty() && now >= start + spin_;
        poll(sleep ? std::max(nanoseconds(0), nanoseconds(deadline - now)) : nanoseconds(0));
        if (settled_ > 0 || woken_ || loss_.failed()) break;
        now = std::chrono::steady_clock::now();
        if (now >= deadline && again_.empty()) break;
        if (!sleep && again_.empty()) sched_yield();
      }
      settled_ = 0;
      woken_ = false;
    });
  }

  void wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  }

  void fail(PeerLoss loss) override {
    loss_.latch(ErrorCode::peer_lost, std::move(loss));
    wake();
  }

  std::byte* peer_memory(int, const std::byte*) override { return nullptr; }

 private:
  void watch(int fd, TcpConnection* connection, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = connection;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail_errno("epoll_ctl", errno);
  }

  TcpConnection& connection(int peer, Tag tag) {
    if (peer < 0 || peer >= group_.size || peer == group_.rank) {
      ductile::fail(ErrorCode::invalid_argument, "rank {} of {} has no connection to rank {}",
                    group_.rank, group_.size, peer);
    }
    lost_peer_ = {peer};
    const size_t rail = static_cast<size_t>(rail_of(tag)) % num_rails_;
    return *by_peer_[static_cast<size_t>(peer) * num_rails_ + rail];
  }

  template <class Body>
  void guarded(Transfer* transfer, const Body& body) {
    loss_.guard(transfer, lost_peer_, body, [&] {
      for (auto& connection : by_peer_) {
        if (connection) connection->abandon();
      }
      again_.clear();
    });
  }

  void poll(nanoseconds wait) {
    std::array<epoll_event, 64> events;
    timespec timeout;
    timeout.tv_sec = static_cast<time_t>(wait.count() / 1'000'000'000);
    timeout.tv_nsec = static_cast<long>(wait.count() % 1'000'000'000);
    const int count = epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   &timeout, nullptr);
    if (count < 0 && errno != EINTR) fail_errno("epoll_pwait2", errno);
    std::vector<TcpConnection*> ready = std::exchange(again_, {});
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      auto* connection = static_cast<TcpConnection*>(event.data.ptr);
      if (connection == nullptr) {
        uint64_t ignored;
        woken_ = read(wake_.get(), &ignored, sizeof ignored) > 0;
        continue;
      }
      if (event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) connection->set_closing();
      if (event.events & ~static_cast<uint32_t>(EPOLLOUT)) connection->set_readable();
      if (event.events & ~static_cast<uint32_t>(EPOLLIN)) connection->set_writable();
      if (std::find(ready.begin(), ready.end(), connection) == ready.end()) {
        ready.push_back(connection);
      }
    }
    for (TcpConnection* connection : ready) {
      lost_peer_ = {connection->peer()};
      settled_ += connection->write();
      settled_ += connection->read();
      if (connection->wants_reading()) again_.push_back(connection);
    }
  }

  const Group group_;
  const size_t num_rails_;
  const nanoseconds spin_;
  Descriptor epoll_;
  Descriptor wake_;
  std::vector<std::unique_ptr<TcpConnection>> by_peer_;  // peer * num_rails_ + rail
  std::vector<TcpConnection*> again_;                    // have more to read than one turn took
  std::vector<int> lost_peer_;                           // whose connection is at work
  int settled_ = 0;                                      // since progress() last returned
  bool woken_ = false;

  LossLatch loss_;
};

}  // namespace

std::unique_ptr<Transport> connect_tcp(const Group& group, net::Store& store,
                                       const net::Secret& secret, const TcpOptions& options,
                                       net::Deadline deadline) {
  MeshOptions mesh;
  mesh.role = "transport";
  mesh.wire = net::Wire::plain;
  mesh.links = options.links;
  mesh.socket = options.socket;
  mesh.given_up = options.given_up;
  mesh.connect_patience = options.connect_patience;
  mesh.on_refusal = options.on_refusal;
  return std::make_unique<TcpTransport>(group, options,
                                        connect_mesh(group, store, secret, mesh, deadline));
}

}  // namespace ductile::comm
