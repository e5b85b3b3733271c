#include "ductile/serving/http_server.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/net/peer_user.h"

namespace ductile::serving {
namespace {

constexpr size_t kBlock = size_t{64} << 10;         // read at once
constexpr size_t kFarewell = size_t{1} << 20;       // read of what nobody wants, before the end
constexpr std::chrono::milliseconds kLinger{1000};  // in which a client may read its last answer
constexpr size_t kMostTurnedAway = 256;             // at once; more are not even told why

// What is sent here is not encrypted, and nobody says who he is.
net::Address on_this_machine(const net::Address& at) {
  const std::string host = at.host == "localhost" ? "127.0.0.1" : at.host;
  in_addr number{};
  const bool loopback = host == "::1" || (::inet_pton(AF_INET, host.c_str(), &number) == 1 &&
                                          ntohl(number.s_addr) >> 24 == 127);
  if (!loopback)
    fail(ErrorCode::invalid_argument,
         "{}: this server listens on addresses of this machine alone, such as 127.0.0.1; put a "
         "proxy with TLS before it",
         at.host);
  return {host, at.port};
}

}  // namespace

bool is_own(const HttpRequest& request) {
  const auto user = net::user_at_other_end(request.connection);
  return user && (*user == 0 || *user == ::geteuid());
}

class HttpServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer& server, uint64_t number, net::Socket socket)
      : server_(server),
        number_(number),
        socket_(std::move(socket)),
        reader_(HttpReader::Kind::request, server.options_.limits) {
    watch_ = server_.loop_.watch(socket_.fd(), net::Interest::read,
                                 [this](net::Ready ready) { on_ready(ready); });
    wait_until(server_.options_.patience);
  }

  ~Connection() { server_.held_ -= held_; }

  // Tells the client to come again.
  void turn_away(std::string_view why) {
    HttpResponse response = error_response(503, why);
    response.headers.emplace_back("Retry-After", "1");
    answer(std::move(response), false);
  }
  bool waits() const { return state_ == State::reading && !reader_.started() && input_.empty(); }

 private:
  enum class State { reading, handling, writing, farewell };

  void wait_until(std::chrono::milliseconds wait) {
    timer_ = server_.loop_.after(wait, [this] { on_time(); });
  }

  void on_time() {
    if (state_ == State::reading && reader_.started())
      return answer(error_response(408, "the request did not arrive in time"), false);
    server_.end(number_);
  }

  void on_ready(net::Ready ready) {
    const auto keep = shared_from_this();
    if (state_ == State::farewell) return swallow();
    if (state_ == State::writing) return write();
    if (ready.readable) read();
  }

  void read() {
    char block[kBlock];
    const ssize_t n = ::recv(socket_.fd(), block, sizeof block, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return server_.end(number_);
    input_.append(block, static_cast<size_t>(n));
    held_ += static_cast<size_t>(n);
    server_.held_ += static_cast<size_t>(n);
    if (server_.held_ > server_.options_.most_bytes)
      return turn_away("the server holds too many requests; try again later");
    look();
  }

  // At what has arrived. Requests that come in one piece are answered one after the other.
  void look() {
    if (input_.empty()) return;
    if (!reader_.started()) wait_until(server_.options_.patience);  // the request begins
    input_.erase(0, reader_.take(input_));
    if (reader_.fault()) {
      const HttpFault fault = *reader_.fault();
      return answer(error_response(fault.status, fault.text), false);
    }
    if (reader_.wants_continue()) {  // few enough for any buffer
      constexpr std::string_view kGoOn = "HTTP/1.1 100 Continue\r\n\r\n";
      if (::send(socket_.fd(), kGoOn.data(), kGoOn.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return server_.end(number_);
    }
    if (!reader_.whole()) return;
    state_ = State::handling;
    timer_.cancel();
    watch_.set(net::Interest::none);
    HttpRequest request = reader_.request();
    head_only_ = request.method == "HEAD";
    reader_ = HttpReader(HttpReader::Kind::request, server_.options_.limits);
    keep_alive_ = request.keep_alive;
    request.connection = socket_.fd();
    server_.handler_(std::move(request), [self = weak_from_this()](HttpResponse response) {
      const auto here = self.lock();
      if (here && here->state_ == State::handling) here->answer(std::move(response));
    });
  }

  void answer(HttpResponse response) { answer(std::move(response), keep_alive_); }
  void answer(HttpResponse response, bool keep_alive) {
    const auto keep = shared_from_this();
    keep_alive_ = response.keep_alive = keep_alive && response.keep_alive && !server_.draining_;
    output_ = to_bytes(response);
    // What came after the head would be taken for the next answer.
    if (std::exchange(head_only_, false)) output_.resize(output_.size() - response.body.size());
    server_.held_ -= held_ - input_.size();
    held_ = input_.size();
    sent_ = 0;
    state_ = State::writing;
    wait_until(server_.options_.patience);
    write();
  }

  void write() {
    while (sent_ < output_.size()) {
      const ssize_t n = ::send(socket_.fd(), output_.data() + sent_, output_.size() - sent_,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return watch_.set(net::Interest::write);
      if (n <= 0) return server_.end(number_);
      sent_ += static_cast<size_t>(n);
    }
    output_.clear();
    watch_.set(net::Interest::read);
    if (!keep_alive_ || server_.draining_) return say_farewell();
    state_ = State::reading;
    wait_until(server_.options_.idle);
    if (!input_.empty())  // not from here: many requests in one piece would be as many calls deep
      server_.loop_.post([self = weak_from_this()] {
        const auto here = self.lock();
        if (here && here->state_ == State::reading) here->look();
      });
  }

  // The kernel throws away an answer that is under way where bytes are left unread, so they are
  // read for a moment.
  void say_farewell() {
    state_ = State::farewell;
    ::shutdown(socket_.fd(), SHUT_WR);
    wait_until(std::min(server_.options_.patience, kLinger));
  }

  void swallow() {
    char block[kBlock];
    const ssize_t n = ::recv(socket_.fd(), block, sizeof block, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    swallowed_ += n > 0 ? static_cast<size_t>(n) : 0;
    if (n <= 0 || swallowed_ > kFarewell) server_.end(number_);
  }

  HttpServer& server_;
  const uint64_t number_;
  net::Socket socket_;
  net::Loop::Watch watch_;
  net::Loop::Timer timer_;
  State state_ = State::reading;
  HttpReader reader_;
  std::string input_, output_;
  size_t sent_ = 0, swallowed_ = 0, held_ = 0;
  bool keep_alive_ = true, head_only_ = false;
};

HttpServer::HttpServer(net::Loop& loop, HttpOptions options, Handler handler)
    : loop_(loop),
      options_(std::move(options)),
      handler_(std::move(handler)),
      listener_(on_this_machine(options_.at)) {
  watch_ = loop_.watch(listener_.fd(), net::Interest::read, [this](net::Ready) { accept(); });
}

HttpServer::~HttpServer() = default;

void HttpServer::accept() {
  try {
    net::Socket socket = listener_.try_accept();
    if (!socket) return;
    const uint64_t number = ++last_number_;
    const auto made = std::make_shared<Connection>(*this, number, std::move(socket));
    connections_.emplace(number, made);
    if (connections_.size() > options_.most_connections + kMostTurnedAway) return end(number);
    if (connections_.size() > options_.most_connections)
      made->turn_away("there are too many connections; try again later");
  } catch (const Error&) {  // out of descriptors: others have to end first
    watch_.set(net::Interest::none);
    again_ =
        loop_.after(std::chrono::milliseconds(50), [this] { watch_.set(net::Interest::read); });
  }
}

void HttpServer::end(uint64_t number) {
  connections_.erase(number);
  if (on_quiet_) look_quiet();
}

void HttpServer::look_quiet() {
  if (!connections_.empty()) return;
  loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired() || !connections_.empty() || !on_quiet_) return;
    std::exchange(on_quiet_, {})();
  });
}

void HttpServer::drain(std::function<void()> on_quiet) {
  draining_ = true;
  on_quiet_ = std::move(on_quiet);
  std::erase_if(connections_, [](const auto& one) { return one.second->waits(); });
  look_quiet();
}

}  // namespace ductile::serving
