#include <algorithm>
#include <cerrno>
#include <cstring>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/cluster/connection_impl.h"

namespace ductile::cluster {
namespace {

using std::chrono::milliseconds;

// A head of many short lines would take many times its size.
constexpr size_t kMostHead = (size_t{32} << 10);  // bytes of a request before its body
constexpr int kMostLines = 100;                   // of these
constexpr size_t kMostBytes = (size_t{2} << 20);  // of its body, as it is sent
constexpr milliseconds kFarewell{1000};           // in which a client may read its last answer

int milliseconds_to(Clock::time_point deadline) {
  const auto rest = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(rest.count(), 0, 1000000));
}

}  // namespace

bool Wire::ready(short what, Clock::time_point deadline) const {
  while (true) {
    pollfd polled{fd_, what, 0};
    const int n = ::poll(&polled, 1, milliseconds_to(deadline));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

bool Wire::readable(Clock::time_point deadline) { return ready(POLLIN, deadline); }

ssize_t Wire::read(char* to, size_t size, Clock::time_point deadline) {
  while (readable(deadline)) {
    const ssize_t n = ::recv(fd_, to, size, MSG_DONTWAIT);
    if (n >= 0 || (errno != EAGAIN && errno != EINTR)) return n;
  }
  return -1;
}

ssize_t Wire::write(const char* from, size_t size, Clock::time_point deadline) {
  while (ready(POLLOUT, deadline)) {
    const ssize_t n = ::send(fd_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) return n;
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) return -1;
  }
  return -1;
}

ssize_t Wire::try_write(const char* from, size_t size) {
  while (true) {
    const ssize_t n = ::send(fd_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) return n;
    if (n == 0 || errno == EAGAIN) return 0;
    if (errno != EINTR) return -1;
  }
}

void TlsWire::Free::operator()(ssl_st* ssl) const { SSL_free(ssl); }

TlsWire::TlsWire(int fd, ssl_ctx_st* context) : Wire(fd), ssl_(SSL_new(context)) {
  if (!ssl_ || SSL_set_fd(ssl_.get(), fd) != 1) throw std::bad_alloc();
}

// Whether what could not be done now may be tried again.
bool TlsWire::wait_for(int result, Clock::time_point deadline) {
  const int error = SSL_get_error(ssl_.get(), result);
  // Looked at here, since a peer that sends what brings no data never makes poll() wait.
  if (Clock::now() < deadline) {
    if (error == SSL_ERROR_WANT_READ) return ready(POLLIN, deadline);
    if (error == SSL_ERROR_WANT_WRITE) return ready(POLLOUT, deadline);
  }
  broken_ = error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE;
  ERR_clear_error();
  return false;
}

bool TlsWire::shake_hands(Clock::time_point deadline) {
  while (true) {
    ERR_clear_error();
    const int done = SSL_accept(ssl_.get());
    if (done == 1) return true;
    if (!wait_for(done, deadline)) {
      broken_ = true;
      return false;
    }
  }
}

ssize_t TlsWire::read(char* to, size_t size, Clock::time_point deadline) {
  while (!broken_) {
    ERR_clear_error();
    size_t got = 0;
    const int done = SSL_read_ex(ssl_.get(), to, size, &got);
    if (done == 1) return static_cast<ssize_t>(got);
    if (SSL_get_error(ssl_.get(), done) == SSL_ERROR_ZERO_RETURN) return 0;
    if (!wait_for(done, deadline)) return -1;
  }
  return -1;
}

ssize_t TlsWire::write(const char* from, size_t size, Clock::time_point deadline) {
  while (!broken_) {
    ERR_clear_error();
    size_t put = 0;
    const int done = SSL_write_ex(ssl_.get(), from, size, &put);
    if (done == 1) return static_cast<ssize_t>(put);
    if (!wait_for(done, deadline)) return -1;
  }
  return -1;
}

ssize_t TlsWire::try_write(const char* from, size_t size) {
  if (broken_) return -1;
  ERR_clear_error();
  size_t put = 0;
  const int done = SSL_write_ex(ssl_.get(), from, size, &put);
  if (done == 1) return static_cast<ssize_t>(put);
  const int error = SSL_get_error(ssl_.get(), done);
  broken_ = error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE;
  ERR_clear_error();
  return broken_ ? -1 : 0;
}

bool TlsWire::readable(Clock::time_point deadline) {
  return SSL_has_pending(ssl_.get()) == 1 || Wire::readable(deadline);
}

void TlsWire::end() {
  ERR_clear_error();
  if (!broken_) SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

void Connection::begin() {
  deadline_ = Clock::now() + (welcome ? options_.patience
                                      : std::min(options_.patience, options_.strangers_patience));
  budget_ = kMostHead;
  lines_ = kMostLines;
  ends = true;
}

void Connection::begin_body() {
  budget_ = kMostBytes;
  lines_ = -1;
}

bool Connection::is_writable() const { return true; }  // write() waits

ssize_t Connection::read(char* to, size_t size) {
  if (begin_ == end_) {
    if (budget_ == 0) return -1;
    const ssize_t n = wire_.read(buffer_, std::min(sizeof buffer_, budget_), deadline_);
    if (n <= 0) return n;
    begin_ = 0;
    end_ = static_cast<size_t>(n);
    budget_ -= end_;
  }
  const size_t n = std::min(size, end_ - begin_);
  std::memcpy(to, buffer_ + begin_, n);
  begin_ += n;
  if (lines_ >= 0) {
    lines_ -= static_cast<int>(std::count(to, to + n, '\n'));
    if (lines_ < 0) return -1;
  }
  return static_cast<ssize_t>(n);
}

ssize_t Connection::write(const char* from, size_t size) {
  const auto deadline = Clock::now() + options_.patience;
  for (size_t done = 0; done < size;) {
    const ssize_t n = wire_.write(from + done, size - done, deadline);
    if (n <= 0) return -1;
    done += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(size);
}

bool Connection::waits_for_more() const {
  const auto patience =
      welcome ? options_.idle : std::min(options_.idle, options_.strangers_patience);
  return begin_ < end_ || wire_.readable(Clock::now() + patience);
}

void Connection::say_farewell() {
  wire_.end();
  ::shutdown(wire_.fd(), SHUT_WR);
  const auto deadline = Clock::now() + std::min(options_.patience, kFarewell);
  Wire plain(wire_.fd());  // what comes is not looked at
  while (Clock::now() < deadline && plain.read(buffer_, sizeof buffer_, deadline) > 0) {
  }
  ::shutdown(wire_.fd(), SHUT_RDWR);
}

}  // namespace ductile::cluster
