#include "ductile/net/channel.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/net/send_now_impl.h"

namespace ductile::net {

Channel::Channel(Socket socket, Seal seal, size_t max_payload)
    : socket_(std::move(socket)), seal_(std::move(seal)) {
  seal_.set_max_payload(max_payload);
}

Channel::~Channel() {
  if (!socket_ || !whole_ || !unsent_.empty()) return;
  try {
    std::vector<std::byte> bytes;
    seal_.end(bytes);
    ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } catch (const std::exception&) {  // then it looks cut
  }
}

void Channel::send(std::span<const std::byte> payload, Deadline deadline) {
  seal_.append(payload, unsent_);
  const std::vector<std::byte> bytes = std::exchange(unsent_, {});
  whole_ = false;
  socket_.write_all(bytes, deadline);
  whole_ = true;
}

bool Channel::offer(std::span<const std::byte> payload) {
  if (!unsent_.empty()) return false;
  seal_.append(payload, unsent_);
  flush();
  return true;
}

void Channel::flush() {
  if (const int error = send_now(socket_.fd(), unsent_); error != 0)
    fail(ErrorCode::peer_lost, "{}: connection broke while sending: {}", socket_.peer(),
         std::strerror(error));
}

std::optional<std::vector<std::byte>> Channel::next() {
  try {
    return seal_.next();
  } catch (Error& error) {
    throw error.with_context(socket_.peer());
  }
}

void Channel::lose() const {
  if (seal_.ended())
    fail(ErrorCode::peer_lost, "{}: connection closed by the other end", socket_.peer());
  fail(ErrorCode::peer_lost,
       "{}: the connection was cut: the other end did not say that it ends; it was killed, or "
       "something in between cut it off",
       socket_.peer());
}

std::vector<std::byte> Channel::receive(Deadline deadline) {
  std::array<std::byte, 16384> chunk;
  while (true) {
    if (auto payload = next()) return std::move(*payload);
    const size_t got = seal_.ended() ? 0 : socket_.read_some(chunk, deadline);
    if (got == 0) lose();
    seal_.feed(std::span(chunk).first(got));
  }
}

std::optional<std::vector<std::byte>> Channel::try_receive() {
  std::array<std::byte, 16384> chunk;
  while (true) {
    if (auto payload = next()) return payload;
    if (seal_.ended()) lose();
    const ssize_t got = ::recv(socket_.fd(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (got < 0)
      fail(ErrorCode::peer_lost, "{}: connection broke while receiving: {}", socket_.peer(),
           std::strerror(errno));
    if (got == 0) lose();
    seal_.feed(std::span(chunk).first(static_cast<size_t>(got)));
  }
}

}  // namespace ductile::net
