#include <algorithm>
#include <cerrno>

#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/comm/tcp_connection_impl.h"

namespace ductile::comm {
namespace {

constexpr size_t kReadBudget = 2 << 20;  // bytes a call of read(), for fairness between peers
constexpr int kMaxVectors = 64;

}  // namespace

TcpConnection::TcpConnection(MeshLink link, Limits limits)
    : link_(std::move(link)), limits_(limits) {}

int TcpConnection::settle(Transfer* transfer) {
  transfer->state.store(Transfer::State::done, std::memory_order_release);
  return 1;
}

void TcpConnection::lose(const std::string& how) const {
  fail(ErrorCode::peer_lost, "rank {} ({}) {}", link_.peer, link_.socket.peer(), how);
}

void TcpConnection::check_length(Tag tag, size_t got, size_t posted) const {
  if (got != posted) {
    fail(ErrorCode::data_loss,
         "rank {} sent {} bytes under tag {:#x}, {} were to be received; do all ranks run the same "
         "collectives in the same order?",
         link_.peer, got, tag, posted);
  }
}

int TcpConnection::send(Tag tag, std::span<const std::byte> bytes, Transfer& transfer) {
  if (left_) lose("has left the job");
  transfer.state.store(Transfer::State::pending, std::memory_order_relaxed);
  queue_.push_back({{tag, bytes.size()}, bytes, &transfer, 0});
  return queue_.size() == 1 ? write() : 0;
}

int TcpConnection::write() {
  int settled = 0;
  while (writable_ && !queue_.empty()) {
    std::array<iovec, kMaxVectors> vectors;
    int count = 0;
    for (auto out = queue_.begin(); out != queue_.end() && count + 2 <= kMaxVectors; ++out) {
      const size_t header_sent = std::min(out->sent, sizeof(TcpHeader));
      const size_t sent = out->sent - header_sent;
      if (header_sent < sizeof(TcpHeader)) {
        vectors[count++] = {reinterpret_cast<std::byte*>(&out->header) + header_sent,
                            sizeof(TcpHeader) - header_sent};
      }
      if (sent < out->bytes.size()) {
        vectors[count++] = {const_cast<std::byte*>(out->bytes.data()) + sent,
                            out->bytes.size() - sent};
      }
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t written = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        writable_ = false;
        break;
      }
      lose(fmt::format("takes no more data: {}", std::strerror(errno)));
    }
    for (auto left = static_cast<size_t>(written); left > 0 || !queue_.empty();) {
      Outgoing& out = queue_.front();
      const size_t part = std::min(left, sizeof(TcpHeader) + out.bytes.size() - out.sent);
      out.sent += part;
      left -= part;
      if (out.sent < sizeof(TcpHeader) + out.bytes.size()) break;
      settled += settle(out.transfer);
      queue_.pop_front();
    }
  }
  return settled;
}

int TcpConnection::receive(Tag tag, std::span<std::byte> bytes, Transfer& transfer) {
  transfer.state.store(Transfer::State::pending, std::memory_order_relaxed);
  if (const auto found = unexpected_.find(tag); found != unexpected_.end()) {
    Unexpected& message = found->second;
    check_length(tag, message.length, bytes.size());
    if (incoming_ && incoming_->unexpected == &message) {
      // The rest of it can take the direct way.
      const size_t got = message.length - incoming_->rest.size();
      std::memcpy(bytes.data(), message.bytes.get(), got);
      incoming_->rest = bytes.subspan(got);
      incoming_->transfer = &transfer;
      incoming_->unexpected = nullptr;
      unexpected_bytes_ -= message.length;
      unexpected_.erase(found);
      return 0;
    }
    if (!bytes.empty()) std::memcpy(bytes.data(), message.bytes.get(), bytes.size());
    unexpected_bytes_ -= message.length;
    unexpected_.erase(found);
    return settle(&transfer);
  }
  if (left_) lose("has left the job");
  posted_[tag] = {bytes, &transfer};
  if (!held_) return 0;
  // Reading stopped for want of a receive: there is one now.
  const TcpHeader header = *held_;
  held_.reset();
  int settled = begin(header);
  settled += use_ahead();
  return settled;
}

int TcpConnection::read() {
  int settled = 0;
  size_t budget = kReadBudget;
  if (held_ && closing_) {
    const TcpHeader header = *held_;
    held_.reset();
    settled += begin(header);
    settled += use_ahead();
  }
  while (wants_reading() && budget > 0) {
    const size_t got = fill();
    settled += use_ahead();
    if (incoming_ && incoming_->rest.empty()) settled += complete();
    budget -= std::min(budget, got);
  }
  return settled;
}

// One system call: the rest of the arriving message into its place, what follows into ahead_.
size_t TcpConnection::fill() {
  if (ahead_begin_ > 0) {
    std::memmove(ahead_.data(), ahead_.data() + ahead_begin_, ahead_end_ - ahead_begin_);
    ahead_end_ -= std::exchange(ahead_begin_, 0);
  }
  std::array<iovec, 2> vectors;
  size_t count = 0;
  size_t wanted = 0;
  if (incoming_) vectors[count++] = {incoming_->rest.data(), incoming_->rest.size()};
  vectors[count++] = {ahead_.data() + ahead_end_, ahead_.size() - ahead_end_};
  for (size_t i = 0; i < count; ++i) wanted += vectors[i].iov_len;
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count;
  const ssize_t read = recvmsg(fd(), &message, MSG_DONTWAIT);
  if (read < 0) {
    if (errno == EINTR) return 0;
    readable_ = false;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (!left_) lose(fmt::format("is gone: {}", std::strerror(errno)));
    ended_ = true;
    return 0;
  }
  if (read == 0) {
    if (!left_) lose("closed its connection");
    ended_ = true;
    return 0;
  }
  auto got = static_cast<size_t>(read);
  // Fewer than asked for: the socket is empty, and the next arrival raises another edge; after the
  // peer's end there is none, so the end has to be read.
  if (got < wanted && !closing_) readable_ = false;
  const size_t direct = incoming_ ? std::min(got, incoming_->rest.size()) : 0;
  if (incoming_) incoming_->rest = incoming_->rest.subspan(direct);
  ahead_end_ += got - direct;
  return got;
}

// Takes messages out of ahead_ for as far as it goes.
int TcpConnection::use_ahead() {
  int settled = 0;
  while (!held_) {
    if (incoming_) {
      const size_t part = std::min(incoming_->rest.size(), ahead_end_ - ahead_begin_);
      if (part > 0) std::memcpy(incoming_->rest.data(), ahead_.data() + ahead_begin_, part);
      ahead_begin_ += part;
      incoming_->rest = incoming_->rest.subspan(part);
      if (!incoming_->rest.empty()) break;
      settled += complete();
    } else {
      if (ahead_end_ - ahead_begin_ < sizeof(TcpHeader)) break;
      TcpHeader header;
      std::memcpy(&header, ahead_.data() + ahead_begin_, sizeof header);
      ahead_begin_ += sizeof header;
      settled += begin(header);
    }
  }
  return settled;
}

int TcpConnection::begin(const TcpHeader& header) {
  if (header.length == kGoodbye) {
    on_goodbye();
    return 0;
  }
  if (const auto found = posted_.find(header.tag); found != posted_.end()) {
    check_length(header.tag, header.length, found->second.into.size());
    incoming_ = Incoming{header, found->second.into, found->second.transfer, nullptr};
    posted_.erase(found);
    return header.length == 0 ? complete() : 0;
  }
  const size_t total = unexpected_bytes_ + header.length;
  if (header.length > limits_.hard || total > limits_.hard) {
    fail(ErrorCode::data_loss,
         "rank {} sent {} bytes that nobody receives (the last under tag {:#x}), more than the {} "
         "allowed; post receives about in the order of the sends",
         link_.peer, total, header.tag, limits_.hard);
  }
  if (total > limits_.soft && posted_.empty() && !closing_) {
    held_ = header;
    return 0;
  }
  Unexpected& message = unexpected_[header.tag];
  message.bytes = std::make_unique_for_overwrite<std::byte[]>(header.length);
  message.length = header.length;
  unexpected_bytes_ += header.length;
  incoming_ = Incoming{header, {message.bytes.get(), header.length}, nullptr, &message};
  return header.length == 0 ? complete() : 0;
}

int TcpConnection::complete() {
  Transfer* transfer = incoming_->transfer;
  incoming_.reset();
  return transfer != nullptr ? settle(transfer) : 0;
}

void TcpConnection::on_goodbye() {
  left_ = true;
  if (!posted_.empty() || !queue_.empty()) lose("has left the job");
}

void TcpConnection::abandon() {
  const auto give_up = [](Transfer* transfer) {
    if (transfer != nullptr)
      transfer->state.store(Transfer::State::failed, std::memory_order_release);
  };
  for (Outgoing& out : queue_) give_up(out.transfer);
  for (auto& [tag, posted] : posted_) give_up(posted.transfer);
  if (incoming_) give_up(incoming_->transfer);
  queue_.clear();
  posted_.clear();
  incoming_.reset();
}

void TcpConnection::say_goodbye() {
  // Behind half a message it would be taken for its payload; the closed connection then tells.
  if (!queue_.empty()) return;
  const TcpHeader header{0, kGoodbye};
  ::send(fd(), &header, sizeof header, MSG_NOSIGNAL | MSG_DONTWAIT);
  // With unread bytes close() would reset the connection and drop what is on its way to the peer.
  std::array<std::byte, 65536> ignored;
  for (int i = 0; i < 64; ++i) {
    if (recv(fd(), ignored.data(), ignored.size(), MSG_DONTWAIT) <= 0) break;
  }
}

}  // namespace ductile::comm
