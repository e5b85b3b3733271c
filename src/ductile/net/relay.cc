#include "ductile/net/relay.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/net/send_now_impl.h"

namespace ductile::net {
namespace {

constexpr size_t kPiece = size_t{64} << 10;  // of one message
constexpr int kMostPieces = 16;              // in one turn, so that others have theirs
constexpr std::chrono::seconds kLastBytes{5};

void send_some(const Socket& to, std::vector<std::byte>& bytes) {
  if (const int error = send_now(to.fd(), bytes); error != 0)
    fail(ErrorCode::peer_lost, "{}: {}", to.peer(), std::strerror(error));
}

// How many bytes; 0: the other end has ended; -1: none now.
ssize_t receive_some(const Socket& from, std::span<std::byte> into) {
  while (true) {
    const ssize_t n = ::recv(from.fd(), into.data(), into.size(), MSG_DONTWAIT);
    if (n >= 0) return n;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return -1;
    if (errno != EINTR) fail(ErrorCode::peer_lost, "{}: {}", from.peer(), std::strerror(errno));
  }
}

}  // namespace

Relay::Relay(Loop& loop, Socket near, Admission far, std::function<void()> on_end)
    : loop_(loop),
      near_(std::move(near)),
      far_(std::move(far.socket)),
      seal_(std::move(*far.seal)),
      on_end_(std::move(on_end)) {
  seal_.set_max_payload(kPiece);
  near_watch_ = loop_.watch(near_.fd(), Interest::both, [this](Ready) { turn(); });
  far_watch_ = loop_.watch(far_.fd(), Interest::both, [this](Ready) { turn(); });
}

void Relay::turn() {
  try {
    bool more = true;
    for (int piece = 0; more && piece < kMostPieces && !is_over(); ++piece) {
      const bool out = move_out(), in = move_in();
      more = out || in;
    }
    if (!is_over()) return look_again(more);
  } catch (const Error&) {  // cut, broken or altered: both sides see an end within what was said
  }
  end();
}

// One side has ended, and the other one has all that came before.
bool Relay::is_over() const { return (near_ended_ && out_.empty()) || (far_ended_ && in_.empty()); }

// From near to far, a message at a time. False: nothing can be done now.
bool Relay::move_out() {
  send_some(far_, out_);
  if (!out_.empty() || near_ended_) return false;
  std::array<std::byte, kPiece> piece;
  const ssize_t n = receive_some(near_, piece);
  if (n < 0) return false;
  if (n > 0) {
    seal_.append(std::span(piece).first(static_cast<size_t>(n)), out_);
  } else {
    near_ended_ = true;
    seal_.end(out_);
  }
  send_some(far_, out_);
  return true;
}

// Likewise back. Nobody reads any more what comes for a side that has ended.
bool Relay::move_in() {
  if (near_ended_) return false;
  send_some(near_, in_);
  if (!in_.empty() || far_ended_) return false;
  if (auto message = seal_.next()) {
    in_ = std::move(*message);
    send_some(near_, in_);
    return true;
  }
  if (seal_.ended()) {
    far_ended_ = true;
    return false;
  }
  std::array<std::byte, kPiece> piece;
  const ssize_t n = receive_some(far_, piece);
  if (n < 0) return false;
  if (n == 0) fail(ErrorCode::peer_lost, "{}: the connection was cut", far_.peer());
  seal_.feed(std::span(piece).first(static_cast<size_t>(n)));
  return true;
}

// `more`: at once, since there may be messages that have come already, of which the socket says
// nothing. That the near side takes bytes is all that is needed for these.
void Relay::look_again(bool more) {
  const auto interest = [](bool reads, bool writes) {
    if (reads) return writes ? Interest::both : Interest::read;
    return writes ? Interest::write : Interest::none;
  };
  near_watch_.set(interest(out_.empty() && !near_ended_, more || !in_.empty()));
  far_watch_.set(interest(in_.empty() && !far_ended_ && !near_ended_, !out_.empty()));
  if (near_ended_ || far_ended_) loop_.arm_once(linger_, kLastBytes, [this] { end(); });
}

void Relay::end() {
  near_watch_.end();
  far_watch_.end();
  linger_.cancel();
  near_.close();
  far_.close();
  const std::function<void()> call = std::exchange(on_end_, {});
  if (call) call();
}

}  // namespace ductile::net
