#include "ductile/net/gate.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile::net {
namespace {

using std::chrono::milliseconds;

std::string host_of(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

void watch(int epoll, int fd, void* who) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = who;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
    fail_errno("cannot watch a connection", errno);
}

}  // namespace

struct Gate::Pending {
  Socket socket;
  Handshake handshake;
  Deadline deadline;
  PendingList::iterator self;
};

Gate::Gate(Listener listener, const Secret& secret, Identity self, GateOptions options, Admit admit,
           OnRefusal on_refusal)
    : listener_(std::move(listener)),
      secret_(secret),
      self_(std::move(self)),
      options_(options),
      admit_(std::move(admit)),
      on_refusal_(std::move(on_refusal)) {
  epoll_ = opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  wake_ = opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
  watch(epoll_.get(), listener_.fd(), &listener_);
  watch(epoll_.get(), wake_.get(), &wake_);
}

Gate::~Gate() = default;

Deadline Gate::next_deadline() const {
  Deadline next = pending_.empty() ? Deadline::max() : pending_.front().deadline;
  return paused_ ? std::min(next, resume_at_) : next;
}

void Gate::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

std::optional<Admission> Gate::accept(Deadline deadline) {
  while (true) {
    if (paused_ && Clock::now() >= resume_at_) take_up();
    std::array<epoll_event, 32> events;
    const int wait = poll_milliseconds(std::min(deadline, next_deadline()));
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait);
    if (count < 0 && errno != EINTR) fail_errno("epoll_wait", errno);
    std::optional<Admission> admitted;
    bool woken = false;
    bool connections = false;
    for (int i = 0; i < count; ++i) {
      void* who = events[static_cast<size_t>(i)].data.ptr;
      if (who == &wake_) {
        uint64_t ignored;
        woken = read(wake_.get(), &ignored, sizeof ignored) > 0;
      } else if (who == &listener_) {
        connections = true;
      } else if (!admitted) {  // the others stay readable
        advance(static_cast<Pending*>(who)->self, admitted);
      }
    }
    // Last: making room drops handshakes that the events above may name.
    if (connections) take_waiting();
    drop_expired();
    if (admitted || woken) return admitted;
    if (Clock::now() >= deadline) return std::nullopt;
  }
}

// Out of descriptors or memory: what waits is taken a little later.
void Gate::pause(const Error& error) {
  paused_ = true;
  resume_at_ = Clock::now() + milliseconds(100);
  refuse("(new connection)", error.message());
}

void Gate::take_up() {
  try {
    watch(epoll_.get(), listener_.fd(), &listener_);
    paused_ = false;
  } catch (const Error& error) {
    pause(error);
  }
}

void Gate::take_waiting() {
  // A bound for each round keeps a flood of connections from starving those under way.
  for (int i = 0; i < 64; ++i) {
    Socket socket;
    try {
      socket = listener_.try_accept();
    } catch (const Error& error) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.fd(), nullptr);
      return pause(error);
    }
    if (!socket) return;
    make_room();
    const int fd = socket.fd();
    pending_.push_back(Pending{std::move(socket),
                               Handshake::server(secret_, self_, admit_),
                               Clock::now() + options_.handshake_deadline,
                               {}});
    pending_.back().self = std::prev(pending_.end());
    try {
      watch(epoll_.get(), fd, &pending_.back());
    } catch (const Error& error) {
      drop(std::prev(pending_.end()), error.message());  // it dials again
    }
  }
}

void Gate::advance(PendingList::iterator p, std::optional<Admission>& admitted) {
  Handshake& handshake = p->handshake;
  while (handshake.state() == Handshake::State::running) {
    std::array<std::byte, 256> bytes;
    const size_t want = std::min(bytes.size(), handshake.wanted());
    const ssize_t got = recv(p->socket.fd(), bytes.data(), want, 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return drop(p, fmt::format("broke off the handshake: {}", std::strerror(errno)));
    if (got == 0) return drop(p, "closed during the handshake: a stranger, or another secret");
    handshake.feed(std::span(bytes).first(static_cast<size_t>(got)));
    const std::vector<std::byte> answer = handshake.take_output();
    // A fresh connection's send buffer has room for a few hundred bytes.
    if (!answer.empty() && ::send(p->socket.fd(), answer.data(), answer.size(), MSG_NOSIGNAL) !=
                               static_cast<ssize_t>(answer.size())) {
      return drop(p, "does not take the handshake's bytes");
    }
  }
  if (handshake.state() == Handshake::State::refused) return drop(p, handshake.reason());
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, p->socket.fd(), nullptr);
  admitted = Admission{std::move(p->socket), handshake.peer(), handshake.keys()};
  pending_.erase(p);
}

void Gate::drop(PendingList::iterator p, std::string reason) {
  refuse(p->socket.peer(), std::move(reason));
  pending_.erase(p);
}

void Gate::drop_expired() {
  const Deadline now = Clock::now();
  while (!pending_.empty() && pending_.front().deadline <= now) {
    drop(pending_.begin(),
         fmt::format("handshake not done within {} ms", options_.handshake_deadline.count()));
  }
}

void Gate::make_room() {
  if (pending_.size() < static_cast<size_t>(options_.max_pending)) return;
  std::map<std::string, int> counts;
  for (const Pending& p : pending_) ++counts[host_of(p.socket.peer())];
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto oldest = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) {
    return host_of(p.socket.peer()) == most->first;
  });
  drop(oldest, fmt::format("too many handshakes at once ({} from this address)", most->second));
}

void Gate::refuse(const std::string& address, std::string reason) {
  if (!on_refusal_) return;
  const Deadline now = Clock::now();
  if (now >= log_second_ + std::chrono::seconds(1)) {
    if (unlogged_ > 0) {
      on_refusal_({"(several)", fmt::format("{} more refused within a second", unlogged_)});
    }
    log_second_ = now;
    logs_ = unlogged_ = 0;
  }
  if (logs_ >= options_.max_logs_a_second) {
    ++unlogged_;
    return;
  }
  ++logs_;
  on_refusal_({address, std::move(reason)});
}

namespace {

// Throws peer_lost where the connection ended in mid-handshake: by a restart, or for want of room.
Admission greet(Socket socket, const Secret& secret, const Identity& self, const Identity& server,
                Deadline deadline) {
  Handshake handshake = Handshake::client(secret, self, server);
  std::array<std::byte, 256> bytes;
  while (true) {
    socket.write_all(handshake.take_output(), deadline);
    if (handshake.state() != Handshake::State::running) break;
    const size_t want = std::min(bytes.size(), handshake.wanted());
    const size_t got = socket.read_some(std::span(bytes).first(want), deadline);
    if (got == 0) {
      fail(ErrorCode::peer_lost,
           "{}: closed during the handshake; is it a process of this job, with the same secret?",
           socket.peer());
    }
    handshake.feed(std::span(bytes).first(got));
  }
  if (handshake.state() == Handshake::State::refused) {
    fail(handshake.code(), "{}: {}", socket.peer(), handshake.reason());
  }
  return {std::move(socket), handshake.peer(), handshake.keys()};
}

}  // namespace

Admission dial(const Address& to, const Secret& secret, const Identity& self,
               const Identity& server, const DialOptions& options, Deadline deadline) {
  milliseconds pause{2};
  const auto may_wait = [&] {
    if (!options.wait_for_server || Clock::now() + pause >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(100));
    return true;
  };
  while (true) {
    Socket socket;
    try {
      socket = connect(to, options.socket, deadline);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::unavailable && may_wait()) continue;
      throw;
    }
    try {
      return greet(std::move(socket), secret, self, server, deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_lost) throw;
      if (!may_wait()) throw Error(ErrorCode::unavailable, error.message());
    }
  }
}

}  // namespace ductile::net
