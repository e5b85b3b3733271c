#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <system_error>
#include <utility>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/server/request_server_impl.h"
#include "ductile/server/unix_socket_impl.h"

namespace ductile::server {
namespace {

constexpr size_t kMaxClients = 64;
constexpr std::chrono::milliseconds kPause{100};
constexpr std::chrono::milliseconds kLook{500};

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) fail_errno("epoll_ctl", errno);
}

}  // namespace

RequestServer::RequestServer(const fs::path& run)
    : run_(run),
      epoll_(opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      listener_(listen_unix(run)) {
  try {
    watch(epoll_.get(), listener_.get());
  } catch (const Error&) {
    remove_socket();
    throw;
  }
}

RequestServer::~RequestServer() { remove_socket(); }

void RequestServer::remove_socket() {
  std::error_code ignored;
  fs::remove(run_ / kRequestSocket, ignored);
}

// Those who are here first: who still is idle then may have to go.
void RequestServer::serve(const Handler& handler) {
  const auto serve_all = [&] {
    for (auto it = clients_.begin(); it != clients_.end();)
      it = serve(*it, handler) ? std::next(it) : clients_.erase(it);
  };
  make_anew();
  serve_all();
  take_new();
  serve_all();
}

// Without its socket a controller can be neither asked nor replaced: its lock keeps others away.
void RequestServer::make_anew() {
  if (paused_ || net::Clock::now() < look_at_) return;
  look_at_ = net::Clock::now() + kLook;
  std::error_code error;
  if (fs::exists(fs::symlink_status(run_ / kRequestSocket, error))) return;
  try {
    Descriptor listener = listen_unix(run_);
    watch(epoll_.get(), listener.get());
    listener_ = std::move(listener);  // closing the other one takes it out
  } catch (const Error&) {            // a full disk, no descriptors: later
  }
}

void RequestServer::take_new() {
  if (paused_ && net::Clock::now() < resume_at_) return;
  if (paused_) {
    try {
      watch(epoll_.get(), listener_.get());
    } catch (const Error&) {  // no memory: later
      return pause();
    }
    paused_ = false;
  }
  while (true) {
    Descriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      if (clients_.empty()) return pause();
      drop_idle();
      continue;
    }
    if (!same_user(fd.get())) continue;
    if (clients_.size() >= kMaxClients) drop_idle();
    try {
      watch(epoll_.get(), fd.get());
    } catch (const Error&) {  // no memory: this one alone is hung up on
      continue;
    }
    clients_.push_back({std::move(fd), "", ++heard_});
  }
}

void RequestServer::drop_idle() {
  clients_.erase(std::min_element(clients_.begin(), clients_.end(),
                                  [](const auto& a, const auto& b) { return a.heard < b.heard; }));
}

// A listener that cannot be served stays readable: looking at it again and again helps nobody.
void RequestServer::pause() {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  paused_ = true;
  resume_at_ = net::Clock::now() + kPause;
}

bool RequestServer::serve(Client& client, const Handler& handler) {
  char block[4096];
  while (true) {
    const ssize_t n = recv(client.fd.get(), block, sizeof block, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return false;
    client.heard = ++heard_;
    client.input.append(block, static_cast<size_t>(n));
    for (size_t end; (end = client.input.find('\n')) != std::string::npos;) {
      const std::string line = client.input.substr(0, end);
      client.input.erase(0, end + 1);
      if (!answer(client, line, handler)) return false;
    }
    if (client.input.size() > kMaxRequest) return false;
  }
}

bool RequestServer::answer(Client& client, const std::string& line, const Handler& handler) {
  nlohmann::json reply;
  try {
    const nlohmann::json request = parse_json(line);
    if (!request.is_object())
      fail(ErrorCode::invalid_argument, "a request is one JSON object a line");
    reply = handler(request);
    reply["ok"] = true;
  } catch (const Error& e) {
    reply = {{"error", e.what()}, {"code", to_string(e.code())}};
  }
  const std::string text = dump_json(reply) + "\n";
  return send(client.fd.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(text.size());
}

}  // namespace ductile::server
