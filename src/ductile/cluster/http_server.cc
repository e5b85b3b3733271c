#include "ductile/cluster/http_server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <httplib.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/cluster/lock_impl.h"
#include "ductile/cluster/page_server_impl.h"
#include "ductile/cluster/routes_impl.h"

namespace ductile::cluster {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int64_t kMostRequests = 10000;          // of one connection
constexpr size_t kMostBytes = (size_t{2} << 20);  // of one request, with its head
constexpr int64_t kStreamPage = 200;
constexpr milliseconds kFarewell{1000};  // in which a client may read its last answer

int left(Clock::time_point deadline) {
  const auto rest = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(rest.count(), 0, 1000000));
}

// Without regard to case.
bool same_word(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

bool ready(int fd, short what, Clock::time_point deadline) {
  while (true) {
    pollfd polled{fd, what, 0};
    const int n = ::poll(&polled, 1, left(deadline));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

// A connection as the library sees it. A request has to be whole by its deadline, so that a client
// that sends a byte now and then is not waited for.
class Connection final : public httplib::Stream {
 public:
  Connection(int fd, const HttpOptions& options, const std::optional<Principal>& principal)
      : principal(principal), fd_(fd), options_(options) {}

  // Who is at the other end; over the port that is not known yet.
  const std::optional<Principal>& principal;
  // The next bytes may not be the beginning of a request: the connection ends after this answer.
  // So it is until the library has understood the head of a request.
  bool ends = true;

  void begin() {
    deadline_ = Clock::now() + options_.patience;
    budget_ = kMostBytes;
    ends = true;
  }

  bool is_readable() const override { return ready(fd_, POLLIN, deadline_); }
  bool is_writable() const override {
    return ready(fd_, POLLOUT, Clock::now() + options_.patience);
  }
  ssize_t read(char* to, size_t size) override {
    if (begin_ == end_) {
      if (budget_ == 0 || !is_readable()) return -1;
      const ssize_t n = ::recv(fd_, buffer_, std::min(sizeof buffer_, budget_), 0);
      if (n <= 0) return n;
      begin_ = 0;
      end_ = static_cast<size_t>(n);
      budget_ -= end_;
    }
    const size_t n = std::min(size, end_ - begin_);
    std::memcpy(to, buffer_ + begin_, n);
    begin_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, size_t size) override {
    const auto deadline = Clock::now() + options_.patience;
    size_t done = 0;
    while (done < size) {
      if (!ready(fd_, POLLOUT, deadline)) return -1;
      const ssize_t n = ::send(fd_, from + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n <= 0) return -1;
      done += static_cast<size_t>(n);
    }
    return static_cast<ssize_t>(size);
  }
  // Whether the next request begins within the time between two.
  bool waits_for_more() const {
    return begin_ < end_ || ready(fd_, POLLIN, Clock::now() + options_.idle);
  }
  // The kernel throws away an answer that is under way where bytes are left unread, so they are
  // read.
  void say_farewell() {
    ::shutdown(fd_, SHUT_WR);
    const auto deadline = Clock::now() + std::min(options_.patience, kFarewell);
    while (ready(fd_, POLLIN, deadline) && Clock::now() < deadline) {
      if (::recv(fd_, buffer_, sizeof buffer_, MSG_DONTWAIT) <= 0) break;
    }
    ::shutdown(fd_, SHUT_RDWR);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return fd_; }

 private:
  const int fd_;
  const HttpOptions& options_;
  Clock::time_point deadline_;
  size_t budget_ = 0;
  char buffer_[16384];
  size_t begin_ = 0, end_ = 0;
};

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

// Under the lock of this path, so that no other server of ours is about to serve it. A socket that
// nobody serves any more is removed; nothing else is.
Descriptor listen_unix(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.native().size() >= sizeof address.sun_path)
    fail(ErrorCode::invalid_argument,
         "{}: a socket's path has at most {} bytes; choose a shorter one", path.string(),
         sizeof address.sun_path - 1);
  std::memcpy(address.sun_path, path.c_str(), path.native().size());
  const auto* const where = reinterpret_cast<const sockaddr*>(&address);
  struct stat is {};
  if (::lstat(path.c_str(), &is) == 0) {
    if (!S_ISSOCK(is.st_mode))
      fail(ErrorCode::conflict, "{}: is there and is no socket; choose another path",
           path.string());
    // Without waiting: who does not accept is there all the same.
    const Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::connect(probe.get(), where, sizeof address) == 0 || errno == EAGAIN)
      fail(ErrorCode::conflict, "{}: another process serves it", path.string());
    if (errno == ECONNREFUSED) ::unlink(path.c_str());
  }
  Descriptor out(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (out.get() < 0 || ::bind(out.get(), where, sizeof address) != 0)
    fail_errno(path.string(), errno);
  // Who may do what is decided by who connects.
  if (::chmod(path.c_str(), 0666) != 0 || ::listen(out.get(), SOMAXCONN) != 0)
    fail_errno(path.string(), errno);
  return out;
}

Descriptor listen_loopback(uint16_t port, bool or_any, uint16_t* got) {
  Descriptor out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(out.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  bool bound = out.get() >= 0 && ::bind(out.get(), where, size) == 0;
  if (!bound && or_any && errno == EADDRINUSE) {
    address.sin_port = 0;
    bound = ::bind(out.get(), where, size) == 0;
  }
  if (!bound || ::listen(out.get(), SOMAXCONN) != 0 || ::getsockname(out.get(), where, &size) != 0)
    fail_errno(fmt::format("127.0.0.1:{}", port), errno);
  *got = ntohs(address.sin_port);
  return out;
}

}  // namespace

std::string user_name(uid_t user) {
  passwd entry{};
  passwd* found = nullptr;
  char text[4096];
  ::getpwuid_r(user, &entry, text, sizeof text, &found);
  return found != nullptr ? found->pw_name : std::to_string(user);
}

class HttpServer::Impl : httplib::Server {
 public:
  Impl(Api& api, HttpOptions options);
  ~Impl() override;

  uint16_t port() const { return port_; }

 private:
  // Who is at the other end of a connection; over the port that is not known yet.
  struct Peer {
    std::optional<Principal> principal;
    int64_t share = -1;  // whose connections are counted together
  };
  struct Client {
    Descriptor socket;
    std::thread thread;
    Peer peer;
    std::atomic<bool> over = false;
  };

  void accept_all();
  void accept_one(int listener, bool from_unix);
  void reap(bool all);
  void serve(Client& client);
  std::optional<Principal> principal_of(const httplib::Request& request);
  bool refuse(const httplib::Request& request, httplib::Response& response);
  void answer_with_body(const httplib::Request& request, httplib::Response& response,
                        const httplib::ContentReader& content);
  void answer(const httplib::Request& request, std::string body, httplib::Response& response);
  void stream(const Call& call, std::string_view last, httplib::Response& response);

  Api& api_;
  const HttpOptions options_;
  std::optional<PageServer> page_;
  Descriptor lock_, unix_, loopback_, wake_in_, wake_out_;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::list<Client> clients_;  // of the accepting thread
  std::map<int64_t, int> shares_;
  std::thread thread_;
};

HttpServer::Impl::Impl(Api& api, HttpOptions options) : api_(api), options_(std::move(options)) {
  if (!options_.socket.empty()) {
    lock_ = lock_of(options_.socket);
    unix_ = listen_unix(options_.socket);
  }
  if (options_.port) loopback_ = listen_loopback(*options_.port, options_.or_any_port, &port_);
  if (options_.page != nullptr) {
    options_.page->set_port(port_);
    page_.emplace(*options_.page);
  }
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

HttpServer::Impl::~Impl() {
  stopping_ = true;
  wake_in_.close();
  thread_.join();
  for (Client& client : clients_) ::shutdown(client.socket.get(), SHUT_RDWR);
  reap(true);
  if (unix_.get() >= 0) ::unlink(options_.socket.c_str());
}

void HttpServer::Impl::accept_all() {
  while (!stopping_) {
    pollfd polled[3] = {
        {wake_out_.get(), POLLIN, 0}, {unix_.get(), POLLIN, 0}, {loopback_.get(), POLLIN, 0}};
    if (::poll(polled, 3, 1000) < 0 && errno != EINTR) return;
    if (stopping_) return;
    reap(false);
    if (polled[1].revents != 0) accept_one(unix_.get(), true);
    if (polled[2].revents != 0) accept_one(loopback_.get(), false);
  }
}

void HttpServer::Impl::accept_one(int listener, bool from_unix) {
  Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.get() < 0) {
    // Out of descriptors: others have to end first.
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
      std::this_thread::sleep_for(milliseconds(50));
    return;
  }
  Peer peer;
  if (from_unix) {
    ucred who{};
    socklen_t size = sizeof who;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return;
    const Role role = options_.role_of         ? options_.role_of(who.uid)
                      : who.uid == ::geteuid() ? Role::admin
                                               : Role::submit;
    peer.principal = Principal{user_name(who.uid), role};
    peer.share = static_cast<int64_t>(who.uid);
  } else {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  if (static_cast<int>(clients_.size()) >= options_.most_connections ||
      shares_[peer.share] >= options_.most_connections_of_one) {
    constexpr std::string_view kBusy =
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
        "Content-Length: 0\r\n\r\n";
    [[maybe_unused]] const ssize_t n =
        ::send(socket.get(), kBusy.data(), kBusy.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  Client& client = clients_.emplace_back();
  client.socket = std::move(socket);
  client.peer = std::move(peer);
  ++shares_[client.peer.share];
  try {
    client.thread = std::thread([this, &client] { serve(client); });
  } catch (const std::system_error&) {  // no thread to be had
    --shares_[client.peer.share];
    clients_.pop_back();
  }
}

void HttpServer::Impl::reap(bool all) {
  for (auto it = clients_.begin(); it != clients_.end();) {
    if (!all && !it->over) {
      ++it;
      continue;
    }
    it->thread.join();
    if (--shares_[it->peer.share] == 0) shares_.erase(it->peer.share);
    it = clients_.erase(it);
  }
}

void HttpServer::Impl::serve(Client& client) {
  try {
    Connection connection(client.socket.get(), options_, client.peer.principal);
    t_connection = &connection;
    bool closed = false;
    for (int64_t i = 1; !closed && !stopping_ && connection.waits_for_more(); ++i) {
      connection.begin();
      const bool served =
          process_request(connection, i >= kMostRequests, closed, [&](httplib::Request& request) {
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
      if (!served || connection.ends) break;
    }
    connection.say_farewell();
  } catch (const std::exception&) {
    // Out of memory for this client; it sees the end of its connection.
    ::shutdown(client.socket.get(), SHUT_RDWR);
  }
  client.over = true;
}

std::optional<Principal> HttpServer::Impl::principal_of(const httplib::Request& request) {
  if (t_connection->principal) return t_connection->principal;
  constexpr std::string_view kBearer = "Bearer ";
  const std::string given = request.get_header_value("Authorization");
  if (given.empty() && page_) return page_->principal_of(request);
  if (!options_.principal_of ||
      !same_word(std::string_view(given).substr(0, kBearer.size()), kBearer))
    return std::nullopt;
  return options_.principal_of(std::string_view(given).substr(kBearer.size()));
}

// Whether the head alone decides that the answer is a refusal. Nothing of its body was read then.
bool HttpServer::Impl::refuse(const httplib::Request& request, httplib::Response& response) {
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Cache-Control", "no-store");
  const auto set = [&](int status, std::string_view code, std::string_view text) {
    if (request.get_header_value("Content-Length") != "0") t_connection->ends = true;
    response.status = status;
    response.set_content(dump_json(nlohmann::json{{"error", text}, {"code", code}}),
                         "application/json");
    return true;
  };
  if (const auto refusal = refusal_of(request))
    return set(refusal->status, to_string(refusal->code), refusal->text);
  if (page_ && !t_connection->principal) {
    if (const std::string fault = PageServer::fault(request); !fault.empty())
      return set(403, "refused", fault);
    if (page_->gave_file(request, response)) return true;
    if (PageServer::is_login(request)) return false;
  }
  if (!principal_of(request))
    return set(401, "refused", "a token is wanted: \"Authorization: Bearer ...\"");
  return false;
}

void HttpServer::Impl::answer_with_body(const httplib::Request& request,
                                        httplib::Response& response,
                                        const httplib::ContentReader& content) {
  std::string body;
  const bool whole = content([&](const char* data, size_t size) {
    body.append(data, size);  // unpacked: a small body may become a large one
    return body.size() <= kMostBody;
  });
  if (!whole) t_connection->ends = true;
  if (!whole && body.size() <= kMostBody) {
    response.status = 400;
    response.set_content(R"({"error":"the body is not whole","code":"invalid_argument"})",
                         "application/json");
    return;
  }
  answer(request, std::move(body), response);
}

void HttpServer::Impl::answer(const httplib::Request& request, std::string body,
                              httplib::Response& response) {
  if (page_ && !t_connection->principal && PageServer::is_login(request))
    return page_->answer(request, body, response);
  Call call;
  call.method = request.method == "HEAD" ? "GET" : request.method;
  call.path = request.path;
  for (const auto& [name, value] : request.params) call.query[name] = value;
  call.key = request.get_header_value("Idempotency-Key");
  call.body = std::move(body);
  call.principal = principal_of(request).value_or(Principal{});
  if (call.method == "GET" && call.path == "/v1/events" && request.version != "HTTP/1.0" &&
      request.get_header_value("Accept").find("text/event-stream") != std::string::npos)
    return stream(call, request.get_header_value("Last-Event-ID"), response);
  Answer out = api_.handle(call);
  response.status = out.status;
  for (const auto& [name, value] : out.headers) response.set_header(name, value);
  response.set_content(std::move(out.body), out.type);
}

// Server-sent events. The number of an event is its id, so that a browser whose connection broke
// goes on where it was.
void HttpServer::Impl::stream(const Call& call, std::string_view last,
                              httplib::Response& response) {
  // The list itself says what is wrong with the query.
  Call check = call;
  if (!last.empty()) check.query["after"] = last;
  check.query["limit"] = "1";
  const Answer first = api_.handle(check);
  if (first.status != 200) {
    response.status = first.status;
    response.set_content(first.body, first.type);
    return;
  }
  const auto after_text = check.query.find("after");
  const Revision after =
      after_text == check.query.end() ? 0 : std::stoll(after_text->second);  // it was checked
  const auto job_text = call.query.find("job");
  const JobId job = job_text == call.query.end() ? 0 : api_.find_job(job_text->second);
  response.set_chunked_content_provider(
      "text/event-stream", [this, job, at = after](size_t, httplib::DataSink& sink) mutable {
        if (stopping_) return false;
        std::string text;
        try {
          // Short waits, so that the end of the service is not held up.
          const auto until = Clock::now() + options_.heartbeat;
          while (text.empty() && !stopping_ && Clock::now() < until) {
            const auto wait = std::min<milliseconds>(milliseconds(200), options_.heartbeat);
            for (const Event& event : api_.wait_for_events(at, job, kStreamPage, wait)) {
              text += fmt::format("id: {}\nevent: {}\ndata: {}\n\n", event.seq, event.kind,
                                  dump_json(to_json(event)));
              at = event.seq;
            }
          }
        } catch (const std::exception&) {
          return false;  // the client comes again, and is told why
        }
        if (text.empty()) text = ": nothing new\n\n";
        return sink.write(text.data(), text.size());
      });
}

HttpServer::HttpServer(Api& api, HttpOptions options)
    : impl_(std::make_unique<Impl>(api, std::move(options))) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return impl_->port(); }

}  // namespace ductile::cluster
