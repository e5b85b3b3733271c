#include <cerrno>
#include <system_error>

#include <nlohmann/json.hpp>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/server/request_server_impl.h"
#include "ductile/server/unix_socket_impl.h"

namespace ductile::server {
namespace {

constexpr size_t kMaxClients = 64;

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) fail_errno("epoll_ctl", errno);
}

}  // namespace

RequestServer::RequestServer(const fs::path& run)
    : run_(run),
      epoll_(process::opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
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

void RequestServer::serve(const Handler& handler) {
  take_new();
  for (auto it = clients_.begin(); it != clients_.end();)
    it = serve(*it, handler) ? std::next(it) : clients_.erase(it);
}

void RequestServer::take_new() {
  while (true) {
    process::Descriptor fd(
        accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() < 0) return;
    if (!same_user(fd.get()) || clients_.size() >= kMaxClients) continue;
    watch(epoll_.get(), fd.get());
    clients_.push_back({std::move(fd), ""});
  }
}

bool RequestServer::serve(Client& client, const Handler& handler) {
  char block[4096];
  while (true) {
    const ssize_t n = recv(client.fd.get(), block, sizeof block, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return false;
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
