#include "ductile/net/gate.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include <sys/socket.h>

#include "ductile/base/error.h"

namespace ductile::net {
namespace {

using std::chrono::milliseconds;

std::string host_of(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

constexpr milliseconds kRest{100};

}  // namespace

struct Gate::Pending {
  Socket socket;
  Handshake handshake;
  std::optional<Seal> seal;  // once it has authenticated itself
  Deadline deadline;
  Loop::Watch watch;
};

Gate::Gate(Loop& loop, Listener listener, const Secret& secret, Identity self, GateOptions options,
           Admit admit, OnRefusal on_refusal, OnAdmission on_admission)
    : loop_(loop),
      listener_(std::move(listener)),
      secret_(secret),
      self_(std::move(self)),
      options_(options),
      admit_(std::move(admit)),
      on_refusal_(std::move(on_refusal)),
      on_admission_(std::move(on_admission)),
      watch_(loop.watch(listener_.fd(), Interest::read, [this](Ready) { take_waiting(); })) {}

Gate::~Gate() = default;

// Out of descriptors or memory: what waits is taken a little later.
void Gate::pause(const Error& error) {
  watch_.set(Interest::none);
  resume_ = loop_.after(kRest, [this] { take_up(); });
  refuse("(new connection)", error.message());
}

void Gate::take_up() {
  try {
    watch_.set(Interest::read);
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
      return pause(error);
    }
    if (!socket) return;
    make_room();
    const int fd = socket.fd();
    pending_.push_back(Pending{std::move(socket),
                               Handshake::server(secret_, self_, admit_),
                               std::nullopt,
                               loop_.now() + options_.handshake_deadline,
                               {}});
    const auto p = std::prev(pending_.end());
    try {
      p->watch = loop_.watch(fd, Interest::read, [this, p](Ready) { advance(p); });
    } catch (const Error& error) {
      drop(p, error.message());  // it dials again
    }
    await_deadline();
  }
}

void Gate::advance(PendingList::iterator p) {
  try {
    while (take_step(*p)) continue;
  } catch (const Error& error) {
    return drop(p, error.message());
  }
  if (p->handshake.state() == Handshake::State::refused) return drop(p, p->handshake.reason());
  const bool authenticated = p->handshake.state() == Handshake::State::done;
  if (!authenticated || (p->seal && !p->seal->done())) return;
  p->watch.end();
  Admission admission{std::move(p->socket), p->handshake.peer(), std::move(p->seal)};
  pending_.erase(p);
  on_admission_(std::move(admission));
}

// Takes what has come, as far as the present message of the handshake; false: that is all for now.
bool Gate::take_step(Pending& pending) {
  Handshake& handshake = pending.handshake;
  if (handshake.state() == Handshake::State::refused || (pending.seal && pending.seal->done()) ||
      (handshake.state() == Handshake::State::done && !pending.seal))
    return false;
  std::array<std::byte, 256> bytes;
  const size_t wanted = pending.seal ? pending.seal->wanted() : handshake.wanted();
  const ssize_t got = recv(pending.socket.fd(), bytes.data(), std::min(bytes.size(), wanted), 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got < 0 && errno == EINTR) return true;
  if (got < 0) fail(ErrorCode::peer_lost, "broke off the handshake: {}", std::strerror(errno));
  if (got == 0)
    fail(ErrorCode::peer_lost,
         "closed during the handshake: it gave up or ended, or is a stranger, or has another "
         "secret");
  const auto come = std::span(bytes).first(static_cast<size_t>(got));
  std::vector<std::byte> answer;
  std::optional<Error> trouble;
  if (pending.seal) {
    try {
      pending.seal->feed(come);
    } catch (const Error& error) {  // the other end is told, too
      trouble = error;
    }
    answer = pending.seal->take_output();
  } else {
    handshake.feed(come);
    answer = handshake.take_output();
    if (handshake.state() == Handshake::State::done && options_.wire == Wire::sealed)
      pending.seal.emplace(Seal::Side::server, handshake.key());
  }
  // A fresh connection's send buffer has room for a few hundred bytes.
  const bool sent = answer.empty() || ::send(pending.socket.fd(), answer.data(), answer.size(),
                                             MSG_NOSIGNAL) == static_cast<ssize_t>(answer.size());
  if (trouble) throw *trouble;
  if (!sent) fail(ErrorCode::peer_lost, "does not take the handshake's bytes");
  return true;
}

void Gate::drop(PendingList::iterator p, std::string reason) {
  refuse(p->socket.peer(), std::move(reason));
  pending_.erase(p);
}

// All handshakes may take the same time, so the oldest one ends first.
void Gate::await_deadline() {
  if (expiry_.armed() || pending_.empty()) return;
  expiry_ = loop_.at(pending_.front().deadline, [this] {
    while (!pending_.empty() && pending_.front().deadline <= loop_.now()) {
      drop(pending_.begin(),
           fmt::format("handshake not done within {} ms", options_.handshake_deadline.count()));
    }
    await_deadline();
  });
}

// Who has proved itself takes itself for admitted: it goes last.
void Gate::make_room() {
  if (pending_.size() < static_cast<size_t>(options_.max_pending)) return;
  const bool strangers =
      std::ranges::any_of(pending_, [](const Pending& p) { return !p.seal.has_value(); });
  const auto may_go = [&](const Pending& p) { return !strangers || !p.seal; };
  std::map<std::string, int> counts;
  for (const Pending& p : pending_)
    if (may_go(p)) ++counts[host_of(p.socket.peer())];
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto oldest = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) {
    return may_go(p) && host_of(p.socket.peer()) == most->first;
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

WaitingGate::WaitingGate(Listener listener, const Secret& secret, Identity self,
                         GateOptions options, Admit admit, OnRefusal on_refusal)
    : gate_(loop_, std::move(listener), secret, std::move(self), options, std::move(admit),
            std::move(on_refusal), [this](Admission admission) {
              admitted_.push_back(std::move(admission));
              loop_.stop();
            }) {}

std::optional<Admission> WaitingGate::accept(Deadline deadline) {
  if (admitted_.empty()) loop_.run_until(deadline);
  if (admitted_.empty()) return std::nullopt;
  std::optional<Admission> first = std::move(admitted_.front());
  admitted_.pop_front();
  return first;
}

namespace {

// Sends what the handshake has to say, then gives it what comes, until it has come to its end.
// Throws peer_lost where the connection ended in mid-handshake: by a restart, or for want of room.
template <class Machine, class Runs>
void play(Socket& socket, Machine& machine, const Runs& runs, Deadline deadline) {
  std::array<std::byte, 256> bytes;
  while (true) {
    socket.write_all(machine.take_output(), deadline);
    if (!runs()) return;
    const size_t want = std::min(bytes.size(), machine.wanted());
    const size_t got = socket.read_some(std::span(bytes).first(want), deadline);
    if (got == 0) {
      fail(ErrorCode::peer_lost,
           "{}: closed during the handshake; is it a process of this job, with the same secret?",
           socket.peer());
    }
    machine.feed(std::span(bytes).first(got));
  }
}

Admission greet(Socket socket, const Secret& secret, const Identity& self, const Identity& server,
                Wire wire, Deadline deadline) {
  Handshake handshake = Handshake::client(secret, self, server);
  play(
      socket, handshake, [&] { return handshake.state() == Handshake::State::running; }, deadline);
  if (handshake.state() == Handshake::State::refused) {
    fail(handshake.code(), "{}: {}", socket.peer(), handshake.reason());
  }
  if (wire == Wire::plain) return {std::move(socket), handshake.peer(), std::nullopt};
  Seal seal(Seal::Side::client, handshake.key());
  try {
    play(
        socket, seal, [&] { return !seal.done(); }, deadline);
  } catch (Error& error) {
    if (error.code() == ErrorCode::unavailable) error.with_context(socket.peer());
    throw;
  }
  return {std::move(socket), handshake.peer(), std::move(seal)};
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
      return greet(std::move(socket), secret, self, server, options.wire, deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_lost) throw;
      if (!may_wait()) throw Error(ErrorCode::unavailable, error.message());
    }
  }
}

}  // namespace ductile::net
