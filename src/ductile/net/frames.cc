#include "ductile/net/frames.h"

#include <array>
#include <cerrno>
#include <utility>

#include <sys/socket.h>

#include "ductile/net/bytes_impl.h"

namespace ductile::net {
namespace {

constexpr size_t kCodeBytes = 16;

Mac frame_code(const Secret& key, uint64_t number, std::span<const std::byte> length_and_payload) {
  std::vector<std::byte> head;
  append_number(head, number);
  return key.mac({head, length_and_payload});
}

}  // namespace

void FrameWriter::append(std::span<const std::byte> payload, std::vector<std::byte>& out) {
  if (payload.size() > max_) {
    fail(ErrorCode::invalid_argument, "a message of {} bytes is too long: at most {}",
         payload.size(), max_);
  }
  const size_t start = out.size();
  append_number(out, static_cast<uint32_t>(payload.size()));
  append_bytes(out, payload);
  const Mac code = frame_code(key_, number_++, std::span(out).subspan(start));
  append_bytes(out, std::span(code).first(kCodeBytes));
}

void FrameReader::feed(std::span<const std::byte> bytes) {
  if (start_ == buffer_.size()) {
    buffer_.clear();
    start_ = 0;
  } else if (start_ > (1 << 16)) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(start_));
    start_ = 0;
  }
  append_bytes(buffer_, bytes);
}

std::optional<std::vector<std::byte>> FrameReader::next() {
  const auto rest = std::span<const std::byte>(buffer_).subspan(start_);
  if (rest.size() < 4) return std::nullopt;
  const size_t length = read_number<uint32_t>(rest, 0);
  if (length > max_) {
    fail(ErrorCode::data_loss, "a message claims {} bytes; at most {} are allowed here", length,
         max_);
  }
  if (rest.size() < length + kFrameOverhead) return std::nullopt;
  const Mac code = frame_code(key_, number_, rest.first(4 + length));
  if (!equal_in_constant_time(rest.subspan(4 + length, kCodeBytes),
                              std::span(code).first(kCodeBytes))) {
    fail(ErrorCode::data_loss, "a message was altered on the way, or is not of this connection");
  }
  ++number_;
  start_ += length + kFrameOverhead;
  const auto payload = rest.subspan(4, length);
  return std::vector<std::byte>(payload.begin(), payload.end());
}

Channel::Channel(Socket socket, const SessionKeys& keys, Side side, size_t max_payload)
    : socket_(std::move(socket)),
      writer_(side == Side::client ? keys.from_client : keys.from_server, max_payload),
      reader_(side == Side::client ? keys.from_server : keys.from_client, max_payload) {}

void Channel::send(std::span<const std::byte> payload, Deadline deadline) {
  std::vector<std::byte> frame;
  writer_.append(payload, frame);
  socket_.write_all(frame, deadline);
}

std::vector<std::byte> Channel::receive(Deadline deadline) {
  std::array<std::byte, 16384> chunk;
  while (true) {
    try {
      if (auto payload = reader_.next()) return std::move(*payload);
    } catch (Error& error) {
      throw error.with_context(socket_.peer());
    }
    const size_t got = socket_.read_some(chunk, deadline);
    if (got == 0) {
      fail(ErrorCode::peer_lost, "{}: connection closed by the other end", socket_.peer());
    }
    reader_.feed(std::span(chunk).first(got));
  }
}

std::optional<std::vector<std::byte>> Channel::try_receive() {
  std::array<std::byte, 16384> chunk;
  while (true) {
    try {
      if (auto payload = reader_.next()) return payload;
    } catch (Error& error) {
      throw error.with_context(socket_.peer());
    }
    const ssize_t got = ::recv(socket_.fd(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (got <= 0) {
      fail(ErrorCode::peer_lost, "{}: connection closed by the other end", socket_.peer());
    }
    reader_.feed(std::span(chunk).first(static_cast<size_t>(got)));
  }
}

}  // namespace ductile::net
