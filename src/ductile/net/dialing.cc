#include "ductile/net/dialing.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "ductile/net/bytes_impl.h"
#include "ductile/net/send_now_impl.h"

namespace ductile::net {
namespace {

// Who has taken nothing for so long is gone, also where nobody says so.
constexpr int kUserTimeout = 20'000;  // milliseconds

// A connection that is being made; the first write tells whether that worked. `error`: that it
// could not even be begun, as where there is no way to the host.
Socket begin_to_connect(const Address& to, int& error) {
  sockaddr_in four{};
  sockaddr_in6 six{};
  const sockaddr* address = nullptr;
  socklen_t size = 0;
  if (::inet_pton(AF_INET, to.host.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(to.port);
    address = reinterpret_cast<const sockaddr*>(&four);
    size = sizeof four;
  } else if (::inet_pton(AF_INET6, to.host.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(to.port);
    address = reinterpret_cast<const sockaddr*>(&six);
    size = sizeof six;
  } else {
    fail(ErrorCode::invalid_argument, "{}: the host is to be a number here, and not a name",
         to.to_string());
  }
  Socket out(::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
             to.to_string());
  if (!out) fail_errno(to.to_string() + ": cannot make a socket", errno);
  const int on = 1;
  ::setsockopt(out.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(out.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeout, sizeof kUserTimeout);
  if (::connect(out.fd(), address, size) != 0 && errno != EINPROGRESS) error = errno;
  return out;
}

}  // namespace

Dialing::Dialing(Loop& loop, const Address& to, const Secret& secret, const Identity& self,
                 const Identity& server, std::chrono::milliseconds patience, OnDone on_done)
    : handshake_(Handshake::client(secret, self, server)),
      on_done_(std::move(on_done)),
      unsent_(handshake_.take_output()) {
  int error = 0;
  socket_ = begin_to_connect(to, error);
  if (error != 0) {
    limit_ = loop.after(std::chrono::seconds(0), [this, error] {
      end(Error(ErrorCode::unavailable,
                fmt::format("{}: cannot connect: {}", socket_.peer(), std::strerror(error))));
    });
    return;
  }
  watch_ = loop.watch(socket_.fd(), Interest::both, [this](Ready) { advance(); });
  limit_ = loop.after(patience, [this, patience] {
    end(Error(ErrorCode::deadline,
              fmt::format("{}: no answer within {} ms; check the address, routes and firewalls",
                          socket_.peer(), patience.count())));
  });
}

void Dialing::advance() {
  std::optional<Outcome> outcome;
  try {
    while (take_step(outcome)) continue;
  } catch (const Error& error) {
    outcome.emplace(error);
  }
  if (outcome) end(std::move(*outcome));
}

// False: that is all for now, or there is an outcome.
bool Dialing::take_step(std::optional<Outcome>& outcome) {
  if (!flush()) return false;
  if (handshake_.state() == Handshake::State::refused)
    fail(handshake_.code(), "{}: {}", socket_.peer(), handshake_.reason());
  if (seal_ && seal_->done()) {
    watch_.end();
    outcome.emplace(Admission{std::move(socket_), handshake_.peer(), std::move(seal_)});
    return false;
  }
  if (!seal_ && handshake_.state() == Handshake::State::done) {
    seal_.emplace(Seal::Side::client, handshake_.key());
    unsent_ = seal_->take_output();
    return true;
  }
  std::array<std::byte, 256> bytes;
  const size_t wanted = seal_ ? seal_->wanted() : handshake_.wanted();
  const ssize_t got = ::recv(socket_.fd(), bytes.data(), std::min(bytes.size(), wanted), 0);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got < 0)
    fail(ErrorCode::unavailable, "{}: cannot connect: {}", socket_.peer(), std::strerror(errno));
  if (got == 0)
    fail(ErrorCode::unavailable,
         "{}: closed during the handshake; is it a process of this job, with the same secret?",
         socket_.peer());
  const auto come = std::span(bytes).first(static_cast<size_t>(got));
  if (!seal_) {
    handshake_.feed(come);
    unsent_ = handshake_.take_output();
    return true;
  }
  try {
    seal_->feed(come);
  } catch (Error& error) {
    throw error.with_context(socket_.peer());
  }
  unsent_ = seal_->take_output();
  return true;
}

// False: the socket takes no more now.
bool Dialing::flush() {
  if (const int error = send_now(socket_.fd(), unsent_); error != 0)
    fail(ErrorCode::unavailable, "{}: cannot connect: {}; is the process there running?",
         socket_.peer(), std::strerror(error));
  watch_.set(unsent_.empty() ? Interest::read : Interest::both);
  return unsent_.empty();
}

void Dialing::end(Outcome outcome) {
  watch_.end();
  limit_.cancel();
  const OnDone call = std::exchange(on_done_, {});
  if (call) call(std::move(outcome));
}

}  // namespace ductile::net
