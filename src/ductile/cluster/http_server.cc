#include "ductile/cluster/http_server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <iterator>
#include <list>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <httplib.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/log.h"
#include "ductile/cluster/connection_impl.h"
#include "ductile/cluster/limits_impl.h"
#include "ductile/cluster/listeners_impl.h"
#include "ductile/cluster/lock_impl.h"
#include "ductile/cluster/page_server_impl.h"
#include "ductile/cluster/routes_impl.h"
#include "ductile/cluster/tls_impl.h"
#include "ductile/cluster/user_names_impl.h"

namespace ductile::cluster {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kMostRequests = 10000;  // of one connection
constexpr size_t kMostLogin = 4096;       // bytes of a body that comes before it is known who
constexpr milliseconds kNap{50};          // of a connection that asks faster than it may

// Without regard to case.
bool same_word(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

// The connection that this thread serves: the library hands its handlers none.
thread_local Connection* t_connection = nullptr;

struct Refusal {
  int status;
  ErrorCode code;
  std::string text;
};

// What is wrong with the head of a request. Where its body ends has to be beyond doubt: a proxy
// that saw another end than this server would take one client's bytes for another one's request.
std::optional<Refusal> refusal_of(const httplib::Request& request) {
  const auto bad = [](std::string text, int status = 400) {
    return Refusal{status, ErrorCode::invalid_argument, std::move(text)};
  };
  for (const char* name :
       {"Authorization", "Content-Encoding", "Cookie", "Content-Length", "Host", "Idempotency-Key",
        "Last-Event-ID", "Origin", "Transfer-Encoding", "X-Ductile-Key"}) {
    if (request.get_header_value_count(name) > 1)
      return bad(fmt::format("the header {} stands there more than once", name));
  }
  const std::string length = request.get_header_value("Content-Length");
  const bool chunked = request.has_header("Transfer-Encoding");
  if (chunked && !length.empty())
    return bad("Content-Length and Transfer-Encoding contradict each other; send one of them");
  if (chunked && !same_word(request.get_header_value("Transfer-Encoding"), "chunked"))
    return bad("Transfer-Encoding can only be \"chunked\"");
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (!std::ranges::all_of(length, digit) || length.size() > 18)
    return bad(fmt::format("Content-Length = \"{}\": write a number", length));
  const int64_t size = length.empty() ? 0 : std::stoll(length);
  if (request.method != "POST" && (chunked || size > 0))
    return bad(fmt::format("{} takes no body", request.method));
  if (size > static_cast<int64_t>(kMostBody)) return bad("the body is larger than 1 MiB", 413);
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (!request.path.starts_with('/') || std::ranges::any_of(request.path, control))
    return bad("a path begins with a slash and has no control characters");
  return std::nullopt;
}

// `fault`: what this client has too much of; empty: all of them together have.
void tell_to_come_again(int socket, std::string_view fault = "") {
  const std::string body =
      fault.empty() ? "" : dump_json(nlohmann::json{{"error", fault}, {"code", "unavailable"}});
  const std::string text = fmt::format(
      "HTTP/1.1 {}\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: "
      "application/json\r\nContent-Length: {}\r\n\r\n{}",
      fault.empty() ? "503 Service Unavailable" : "429 Too Many Requests", body.size(), body);
  [[maybe_unused]] const ssize_t n =
      ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// How limits call a principal.
std::string client_of(const Principal& principal) { return "=" + principal.name; }

}  // namespace

class HttpServer::Impl : httplib::Server {
 public:
  Impl(Api& api, HttpOptions options);
  ~Impl() override;

  uint16_t port() const { return port_; }
  uint16_t tls_port() const { return tls_port_; }
  const std::string& pin() const { return pin_; }

 private:
  enum class Door : uint8_t { socket, loopback, tls };
  struct Client {
    Descriptor socket;
    Door door = Door::socket;
    uid_t user = 0;  // of the unix socket, as are
    Role role = Role::read;
    std::optional<Principal> principal;  // once its user's name is known
    std::string stranger;                // how limits call it until it is known who it is
    Limits::Seat seat;                   // of its thread once it is known
    enum class Handshake : uint8_t { going, done, given_up };
    std::atomic<Handshake> handshake = Handshake::going;
    std::unique_ptr<Wire> wire;
    std::thread thread;
    std::atomic<bool> left = false;  // by its thread: it is a stream
    std::atomic<bool> over = false;  // nobody uses it any more
  };

  void open_tls();
  bool find_principal(Client& client);
  void accept_all();
  void accept_one(int listener, Door door);
  Limits::Seat seat_of_half_open(const std::string& stranger);
  void reap(bool all);
  void serve(Client& client);
  bool open_wire(Client& client);
  std::optional<EventStreams::Stream> serve_requests(Client& client);
  Recognition recognise(const httplib::Request& request, const std::optional<Principal>& known,
                        bool has_page);
  bool refuse(const httplib::Request& request, httplib::Response& response);
  bool refuse_stranger(const std::string& fault, const httplib::Request& request,
                       httplib::Response& response);
  bool refuse_haste(const Principal& who, const httplib::Request& request,
                    httplib::Response& response);
  void answer_with_body(const httplib::Request& request, httplib::Response& response,
                        const httplib::ContentReader& content);
  void answer(const httplib::Request& request, std::string body, httplib::Response& response);
  void stream(const Call& call, const httplib::Request& request, httplib::Response& response);

  Api& api_;
  const HttpOptions options_;
  std::optional<PageServer> page_;
  std::optional<TlsContext> tls_context_;
  std::string pin_;
  Descriptor lock_, unix_, loopback_, tls_, wake_in_, wake_out_;
  uint16_t port_ = 0, tls_port_ = 0;
  std::atomic<bool> stopping_ = false;
  Limits limits_;
  UserNames names_;
  std::list<Client> clients_;  // of the accepting thread
  EventStreams streams_;
  std::thread thread_;
};

HttpServer::Impl::Impl(Api& api, HttpOptions options)
    : api_(api),
      options_(std::move(options)),
      limits_(options_.limits),
      names_(options_.name_of),
      streams_(api, options_.patience, options_.heartbeat) {
  if (!options_.socket.empty()) {
    lock_ = lock_of(options_.socket);
    unix_ = listen_unix(options_.socket);
  }
  if (options_.port) loopback_ = listen_loopback(*options_.port, options_.or_any_port, &port_);
  if (options_.page != nullptr) {
    options_.page->set_port(port_);
    page_.emplace(*options_.page);
  }
  if (options_.tls) open_tls();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  wake_out_ = Descriptor(ends[0]);
  wake_in_ = Descriptor(ends[1]);

  svr_sock_ = wake_out_.get();  // the library ends streams where its own socket is closed
  set_payload_max_length(kMostBody);
  // Only a POST has a body that is read, and only after its head was found good.
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    if (refuse(request, response)) return HandlerResponse::Handled;
    if (request.method == "POST") return HandlerResponse::Unhandled;
    answer(request, "", response);
    return HandlerResponse::Handled;
  });
  Post("/.*", [this](const httplib::Request& request, httplib::Response& response,
                     const httplib::ContentReader& content) {
    answer_with_body(request, response, content);
  });
  thread_ = std::thread([this] { accept_all(); });
}

void HttpServer::Impl::open_tls() {
  const HttpTls& tls = *options_.tls;
  if (!options_.principal_of)
    fail(ErrorCode::invalid_argument,
         "{}: nothing listens beyond this machine without tokens, and this service knows none",
         tls.address.to_string());
  if (tls.make) make_certificate(tls.certificate, tls.key, tls.address.host);
  tls_context_.emplace(tls.certificate, tls.key);
  pin_ = tls_context_->pin();
  tls_ = listen_beyond(tls.address, &tls_port_);
}

HttpServer::Impl::~Impl() {
  stopping_ = true;
  wake_in_.close();
  thread_.join();
  names_.end();
  streams_.end();
  for (Client& client : clients_) ::shutdown(client.socket.get(), SHUT_RDWR);
  reap(true);
  if (unix_.get() >= 0) ::unlink(options_.socket.c_str());
}

void HttpServer::Impl::accept_all() {
  while (!stopping_) {
    pollfd polled[4] = {{wake_out_.get(), POLLIN, 0},
                        {unix_.get(), POLLIN, 0},
                        {loopback_.get(), POLLIN, 0},
                        {tls_.get(), POLLIN, 0}};
    if (::poll(polled, 4, 1000) < 0 && errno != EINTR) return;
    if (stopping_) return;
    reap(false);
    if (polled[1].revents != 0) accept_one(unix_.get(), Door::socket);
    if (polled[2].revents != 0) accept_one(loopback_.get(), Door::loopback);
    if (polled[3].revents != 0) accept_one(tls_.get(), Door::tls);
  }
}

void HttpServer::Impl::accept_one(int listener, Door door) {
  Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() < 0) {
    // Out of descriptors: others have to end first.
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
      std::this_thread::sleep_for(milliseconds(50));
    return;
  }
  ucred who{};
  Role role = Role::read;
  std::optional<Principal> principal;
  std::string stranger;
  if (door == Door::socket) {
    socklen_t size = sizeof who;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return;
    role = options_.role_of         ? options_.role_of(who.uid)
           : who.uid == ::geteuid() ? Role::admin
                                    : Role::submit;
    if (const auto name = names_.known(who.uid)) principal = Principal{*name, role};
    stranger = fmt::format("#{}", who.uid);  // known, but not yet by name
  } else {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    stranger = stranger_at(socket.get());
  }
  const std::string who_asks = principal ? client_of(*principal) : stranger;
  Limits::Seat seat = limits_.connection(who_asks, !principal && door != Door::socket);
  if (!seat && door == Door::tls) seat = seat_of_half_open(stranger);
  if (!seat) {
    // A handshake would cost what the limit saves.
    if (door != Door::tls)
      tell_to_come_again(socket.get(), limits_.refused_connection(
                                           who_asks, principal ? principal->name : "this client"));
    return;
  }
  Client& client = clients_.emplace_back();
  client.socket = std::move(socket);
  client.door = door;
  client.user = who.uid;
  client.role = role;
  client.principal = std::move(principal);
  client.stranger = std::move(stranger);
  client.seat = std::move(seat);
  try {
    client.thread = std::thread([this, &client] { serve(client); });
  } catch (const std::system_error&) {  // no thread to be had
    clients_.pop_back();
  }
}

// An address whose connections all wait for their handshakes may be that of many: the oldest of
// these makes room, so that who has a token gets in beside one who only opens connections.
Limits::Seat HttpServer::Impl::seat_of_half_open(const std::string& stranger) {
  for (Client& client : clients_) {
    auto going = Client::Handshake::going;
    if (client.door != Door::tls || client.stranger != stranger ||
        !client.handshake.compare_exchange_strong(going, Client::Handshake::given_up))
      continue;
    ::shutdown(client.socket.get(), SHUT_RDWR);
    return std::move(client.seat);
  }
  return {};
}

void HttpServer::Impl::reap(bool all) {
  for (auto it = clients_.begin(); it != clients_.end();) {
    const bool over = all || it->over;
    if ((over || it->left) && it->thread.joinable()) it->thread.join();  // its stack goes
    it = over ? clients_.erase(it) : std::next(it);
  }
}

// On the client's own thread, since a network may have to be asked for the name.
bool HttpServer::Impl::find_principal(Client& client) {
  if (client.principal) return true;
  try {
    const auto until = Clock::now() + options_.patience;
    const Principal who{names_.find(client.user, until), client.role};
    if (limits_.becomes(client.seat, client_of(who))) {
      client.principal = who;
      return true;
    }
  } catch (const Error& error) {
    log_line(error.message());
  }
  tell_to_come_again(client.socket.get());
  return false;
}

// A client that becomes an event stream is that stream's from then on.
void HttpServer::Impl::serve(Client& client) {
  try {
    if (open_wire(client)) {
      if (auto stream = serve_requests(client)) {
        stream->wire = client.wire.get();
        stream->over = [&client] {
          client.wire->end();
          ::shutdown(client.socket.get(), SHUT_RDWR);
          client.over = true;
        };
        client.left = streams_.add(std::move(*stream));
        if (client.left) return;
      }
    }
  } catch (const std::exception&) {
    // Out of memory for this client; it sees the end of its connection.
  }
  ::shutdown(client.socket.get(), SHUT_RDWR);
  client.over = true;
}

bool HttpServer::Impl::open_wire(Client& client) {
  if (client.door != Door::tls) {
    client.wire = std::make_unique<Wire>(client.socket.get());
    return client.door == Door::loopback || find_principal(client);
  }
  auto wire = std::make_unique<TlsWire>(client.socket.get(), tls_context_->get());
  const auto patience = std::min(options_.patience, options_.strangers_patience);
  auto going = Client::Handshake::going;
  const bool good = wire->shake_hands(Clock::now() + patience) &&
                    client.handshake.compare_exchange_strong(going, Client::Handshake::done);
  client.wire = std::move(wire);
  return good;
}

// Until the connection ends, or is to be the stream that it gives.
std::optional<EventStreams::Stream> HttpServer::Impl::serve_requests(Client& client) {
  Connection connection(*client.wire, options_, client.principal, client.stranger, client.seat,
                        client.door == Door::loopback);
  t_connection = &connection;
  bool closed = false;
  for (int64_t i = 1; !closed && !stopping_ && connection.waits_for_more(); ++i) {
    connection.begin();
    const bool served =
        process_request(connection, i >= kMostRequests, closed, [&](httplib::Request& request) {
          connection.begin_body();
          // The library is less strict about where chunks end than it should be.
          connection.ends = request.has_header("Transfer-Encoding") || refusal_of(request) ||
                            same_word(request.get_header_value("Connection"), "close");
          if (connection.ends) {
            request.headers.erase("Connection");
            request.headers.emplace("Connection", "close");
          }
          // Without a length it would read until the client closes.
          if (!request.has_header("Transfer-Encoding") && !request.has_header("Content-Length"))
            request.headers.emplace("Content-Length", "0");
          // Neither parts of answers, each a copy of its own, nor forms are served.
          request.ranges.clear();
          for (const char* name : {"Range", "Content-Type"}) request.headers.erase(name);
        });
    connection.work.release();
    if (const int status = std::exchange(connection.refused, 0)) api_.count_refusal(status);
    if (std::exchange(connection.hasty, false)) std::this_thread::sleep_for(kNap);
    if (connection.stream) return std::move(connection.stream);
    if (!served || connection.ends) break;
  }
  connection.say_farewell();
  return std::nullopt;
}

Recognition HttpServer::Impl::recognise(const httplib::Request& request,
                                        const std::optional<Principal>& known, bool has_page) {
  constexpr std::string_view kBearer = "Bearer ";
  if (known) return {known, ""};
  const std::string given = request.get_header_value("Authorization");
  if (given.empty() && page_ && has_page)
    return {page_->principal_of(request), "log in by a link; `ductile page` prints one"};
  if (!options_.principal_of ||
      !same_word(std::string_view(given).substr(0, kBearer.size()), kBearer))
    return {{}, "a token is wanted: \"Authorization: Bearer ...\""};
  return options_.principal_of(std::string_view(given).substr(kBearer.size()));
}

namespace {

// A refusal by the head alone. The body, of which nothing was read, ends the connection.
bool refuse_with(const httplib::Request& request, httplib::Response& response, int status,
                 std::string_view code, std::string_view text) {
  if (request.get_header_value("Content-Length") != "0") t_connection->ends = true;
  t_connection->refused = status;
  response.status = status;
  response.set_content(dump_json(nlohmann::json{{"error", text}, {"code", code}}),
                       "application/json");
  return true;
}

}  // namespace

// Whether the head alone decides that the answer is a refusal. Nothing of its body was read then.
bool HttpServer::Impl::refuse(const httplib::Request& request, httplib::Response& response) {
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Cache-Control", "no-store");
  if (const auto refusal = refusal_of(request))
    return refuse_with(request, response, refusal->status, to_string(refusal->code), refusal->text);
  if (page_ && t_connection->has_page) {
    if (const std::string fault = PageServer::fault(request); !fault.empty())
      return refuse_with(request, response, 403, "refused", fault);
    if (page_->gave_file(request, response)) return true;
    if (PageServer::is_login(request)) return false;
  }
  const Recognition who = recognise(request, t_connection->known, t_connection->has_page);
  if (!who.principal) return refuse_stranger(who.fault, request, response);
  return refuse_haste(*who.principal, request, response);
}

// Those who say nobody, or wrongly, are answered slowly.
bool HttpServer::Impl::refuse_stranger(const std::string& fault, const httplib::Request& request,
                                       httplib::Response& response) {
  if (limits_.pace(t_connection->stranger, true, Clock::now()) == 0)
    return refuse_with(request, response, 401, "refused", fault);
  t_connection->ends = true;
  response.set_header("Retry-After", "1");
  return refuse_with(request, response, 429, "unavailable",
                     "too many requests came from there without a token that is known");
}

// Whether this client has to wait, since it has as much as it may. Else its request may be worked
// at.
bool HttpServer::Impl::refuse_haste(const Principal& who, const httplib::Request& request,
                                    httplib::Response& response) {
  const auto slow_down = [&](int64_t seconds, std::string_view text) {
    response.set_header("Retry-After", std::to_string(seconds));
    return refuse_with(request, response, 429, "unavailable", text);
  };
  t_connection->welcome = true;
  t_connection->who = who;
  const std::string client = client_of(who);
  if (!limits_.becomes(t_connection->seat, client)) {
    t_connection->ends = true;
    const std::string fault = limits_.refused_connection(client, who.name);
    return slow_down(1, fault.empty() ? "too many connections a moment ago; try again" : fault);
  }
  const auto now = Clock::now();
  if (const double wait = limits_.pace(client, false, now); wait > 0) {
    t_connection->hasty = true;
    return slow_down(static_cast<int64_t>(std::ceil(wait)),
                     fmt::format("{} sends more than {:g} requests a second; try again in a moment",
                                 who.name, options_.limits.rate));
  }
  // From here on it may take memory for a body.
  t_connection->work = limits_.work(client, now + options_.patience);
  if (!t_connection->work)
    return slow_down(
        1, fmt::format("{} has {} requests under way; try again when they are answered", who.name,
                       options_.limits.requests_of_one));
  return false;
}

void HttpServer::Impl::answer_with_body(const httplib::Request& request,
                                        httplib::Response& response,
                                        const httplib::ContentReader& content) {
  const size_t most =
      t_connection->has_page && PageServer::is_login(request) ? kMostLogin : kMostBody;
  std::string body;
  const bool whole = content([&](const char* data, size_t size) {
    body.append(data, size);  // unpacked: a small body may become a large one
    return body.size() <= most;
  });
  if (!whole) t_connection->ends = true;
  if (!whole && body.size() <= most) {
    response.status = 400;
    response.set_content(R"({"error":"the body is not whole","code":"invalid_argument"})",
                         "application/json");
    return;
  }
  if (body.size() > most && most < kMostBody) {
    response.status = 413;
    response.set_content(R"({"error":"a log-in is small","code":"invalid_argument"})",
                         "application/json");
    return;
  }
  answer(request, std::move(body), response);
}

void HttpServer::Impl::answer(const httplib::Request& request, std::string body,
                              httplib::Response& response) {
  if (page_ && t_connection->has_page && PageServer::is_login(request))
    return page_->answer(request, body, response);
  Call call;
  call.method = request.method == "HEAD" ? "GET" : request.method;
  call.path = request.path;
  for (const auto& [name, value] : request.params) call.query[name] = value;
  call.key = request.get_header_value("Idempotency-Key");
  call.body = std::move(body);
  call.principal = t_connection->who;
  if (call.method == "GET" && call.path == "/v1/events" && request.version != "HTTP/1.0" &&
      request.get_header_value("Accept").find("text/event-stream") != std::string::npos)
    return stream(call, request, response);
  Answer out = api_.handle(call);
  response.status = out.status;
  for (const auto& [name, value] : out.headers) response.set_header(name, value);
  response.set_content(std::move(out.body), out.type);
}

// Server-sent events. The number of an event is its id, so that a browser whose connection broke
// goes on where it was. A stream ends when its client may no longer see it.
void HttpServer::Impl::stream(const Call& call, const httplib::Request& request,
                              httplib::Response& response) {
  // The list itself says what is wrong with the query.
  Call check = call;
  if (request.has_header("Last-Event-ID"))
    check.query["after"] = request.get_header_value("Last-Event-ID");
  check.query["limit"] = "1";
  const Answer first = api_.handle(check);
  if (first.status != 200) {
    response.status = first.status;
    response.set_content(first.body, first.type);
    return;
  }
  EventStreams::Stream stream;
  stream.seat = limits_.stream(client_of(t_connection->who));
  if (!stream.seat) {
    response.set_header("Retry-After", "1");
    refuse_with(request, response, 429, "unavailable",
                limits_.refused_stream(client_of(t_connection->who), t_connection->who.name));
    return;
  }
  t_connection->work.release();
  const auto after_text = check.query.find("after");
  if (after_text != check.query.end()) stream.at = std::stoll(after_text->second);  // was checked
  const auto job_text = call.query.find("job");
  if (job_text != call.query.end()) stream.job = api_.find_job(job_text->second);
  stream.welcome = [this, asked = std::make_shared<const httplib::Request>(request),
                    known = t_connection->known, page = t_connection->has_page] {
    return recognise(*asked, known, page).principal.has_value();
  };
  // The library writes the head, and asks for the rest, which is not this thread's.
  const auto shared = std::make_shared<EventStreams::Stream>(std::move(stream));
  response.set_chunked_content_provider("text/event-stream", [shared](size_t, httplib::DataSink&) {
    t_connection->stream = std::move(*shared);
    return false;
  });
}

HttpServer::HttpServer(Api& api, HttpOptions options)
    : impl_(std::make_unique<Impl>(api, std::move(options))) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return impl_->port(); }
uint16_t HttpServer::tls_port() const { return impl_->tls_port(); }
const std::string& HttpServer::pin() const { return impl_->pin(); }

}  // namespace ductile::cluster
