#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <sys/types.h>

#include "ductile/base/files.h"
#include "ductile/cluster/api.h"
#include "ductile/cluster/page_access.h"

namespace ductile::cluster {

// A user's name, or the number where there is none.
std::string user_name(uid_t user);

struct HttpOptions {
  // A unix socket. Who connects is known from the kernel, so it needs no token. Everybody on this
  // machine may connect; what a user may do is `role_of`'s answer. Empty: none.
  fs::path socket;
  std::function<Role(uid_t)> role_of;  // default: the service's own user is admin, others submit

  // A port of the loopback interface for programs that bring a token ("Authorization: Bearer ...")
  // and, where `page` is given (it outlives the server), for browsers. 0: any free one; none: no
  // port is opened. `or_any_port`: any free one where this one is taken.
  std::optional<uint16_t> port;
  bool or_any_port = false;
  PageAccess* page = nullptr;
  std::function<std::optional<Principal>(std::string_view token)> principal_of;

  int most_connections = 1024;                                    // more are told to come again
  int most_connections_of_one = 256;                              // of one user, or over the port
  std::chrono::milliseconds patience = std::chrono::seconds(30);  // for a whole request, or a write
  std::chrono::milliseconds idle = std::chrono::seconds(60);      // between two requests
  std::chrono::milliseconds heartbeat = std::chrono::seconds(15);  // of an event stream
};

// The Api on sockets, by HTTP 1.1. Each connection has a thread; a client that is slow, silent or
// gone holds up nothing but its own connection, and that not for long.
class HttpServer {
 public:
  // Throws conflict if another process serves the socket, unavailable if it cannot be made.
  HttpServer(Api& api, HttpOptions options);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // ends all connections

  uint16_t port() const;  // 0: no port

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::cluster
