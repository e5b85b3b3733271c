#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include <httplib.h>

#include "ductile/cluster/event_streams_impl.h"
#include "ductile/cluster/http_server.h"
#include "ductile/cluster/limits_impl.h"
#include "ductile/cluster/principal.h"

struct ssl_st;
struct ssl_ctx_st;

namespace ductile::cluster {

using Clock = std::chrono::steady_clock;

// The bytes of one connection, plain or sealed. Every call ends by its deadline.
class Wire {
 public:
  explicit Wire(int fd) : fd_(fd) {}
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  virtual ~Wire() = default;

  int fd() const { return fd_; }
  // At least one byte, 0 at the end, -1 for a failure or at the deadline.
  virtual ssize_t read(char* to, size_t size, Clock::time_point deadline);
  // At least one byte, or -1.
  virtual ssize_t write(const char* from, size_t size, Clock::time_point deadline);
  // Waits for nothing: 0 where no byte can be taken now. What was not taken is to be given again.
  virtual ssize_t try_write(const char* from, size_t size);
  virtual bool readable(Clock::time_point deadline);
  virtual void end() {}  // says that nothing more is written

 protected:
  bool ready(short what, Clock::time_point deadline) const;

 private:
  const int fd_;
};

// TLS over a socket that does not block.
class TlsWire final : public Wire {
 public:
  TlsWire(int fd, ssl_ctx_st* context);
  // False where the client does not speak TLS 1.3, or not by its deadline.
  bool shake_hands(Clock::time_point deadline);

  ssize_t read(char* to, size_t size, Clock::time_point deadline) override;
  ssize_t write(const char* from, size_t size, Clock::time_point deadline) override;
  ssize_t try_write(const char* from, size_t size) override;
  bool readable(Clock::time_point deadline) override;
  void end() override;

 private:
  bool wait_for(int result, Clock::time_point deadline);

  struct Free {
    void operator()(ssl_st* ssl) const;
  };
  std::unique_ptr<ssl_st, Free> ssl_;
  bool broken_ = false;
};

// A connection as the library sees it. A request has to be whole by its deadline, so that a client
// that sends a byte now and then is not waited for.
class Connection final : public httplib::Stream {
 public:
  Connection(Wire& wire, const HttpOptions& options, const std::optional<Principal>& known,
             const std::string& stranger, Limits::Seat& seat, bool has_page)
      : known(known),
        stranger(stranger),
        has_page(has_page),
        seat(seat),
        welcome(known.has_value()),
        wire_(wire),
        options_(options) {}

  // Who is at the other end, where that is known before it says anything; else how limits call it.
  const std::optional<Principal>& known;
  const std::string& stranger;
  const bool has_page;  // it came over the port that browsers use, too
  Limits::Seat& seat;
  Limits::Seat work;  // of the request that is worked at
  Principal who;      // who sent it
  // The next bytes may not be the beginning of a request: the connection ends after this answer.
  // So it is until the library has understood the head of a request.
  bool ends = true;
  bool welcome;        // it has said who it is
  bool hasty = false;  // it asked faster than it may
  int refused = 0;     // the status of a request that was refused by its head
  // From the head of its answer on the connection is this stream, and this thread's no more.
  std::optional<EventStreams::Stream> stream;

  void begin();  // a request
  void begin_body();

  bool is_readable() const override { return wire_.readable(deadline_); }
  bool is_writable() const override;
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  // Whether the next request begins within the time between two.
  bool waits_for_more() const;
  // The kernel throws away an answer that is under way where bytes are left unread, so they are
  // read.
  void say_farewell();
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return wire_.fd(); }

 private:
  Wire& wire_;
  const HttpOptions& options_;
  Clock::time_point deadline_;
  size_t budget_ = 0;
  int lines_ = 0;  // that its head may still have
  char buffer_[16384];
  size_t begin_ = 0, end_ = 0;
};

}  // namespace ductile::cluster
