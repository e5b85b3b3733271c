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
#include "ductile/net/socket.h"

namespace ductile::cluster {

// A user's name, or the number where there is none. Throws unavailable where it cannot be found out
// now: a job that is submitted under the number would not be its owner's later.
std::string user_name(uid_t user);

// What clients may have. One client: a principal; before it has said who it is, its address, or its
// user where that is on this machine.
struct HttpLimits {
  int connections = 2048;        // in all; more are told to come again
  int strangers = 1024;          // of these, of those who have not said who they are
  int connections_of_one = 256;  // of one client
  int streams = 1024;            // of events, in all
  int streams_of_one = 64;
  int requests_of_one = 8;           // worked at together; others of this client wait
  double rate = 1000, burst = 2000;  // requests a second of one client
  double strangers_rate = 20, strangers_burst = 100;  // that say nobody, or wrongly
};

// Beyond this machine: TLS 1.3 alone, for programs that bring a token.
struct HttpTls {
  net::Address address;       // where to listen; port 0: any free one
  fs::path certificate, key;  // PEM
  bool make = false;          // where neither of the two is there
};

struct HttpOptions {
  // A unix socket. Who connects is known from the kernel, so it needs no token. Everybody on this
  // machine may connect; what a user may do is `role_of`'s answer. Empty: none.
  fs::path socket;
  std::function<Role(uid_t)> role_of;  // default: the service's own user is admin, others submit
  // Asked once for each user, on a thread of its own, since a network may have to be asked and may
  // not answer; it may be called until it has returned, also after the end of the server. Who has
  // no name now is told to come again.
  std::function<std::string(uid_t)> name_of = user_name;

  // A port of the loopback interface for programs that bring a token ("Authorization: Bearer ...")
  // and, where `page` is given (it outlives the server), for browsers. 0: any free one; none: no
  // port is opened. `or_any_port`: any free one where this one is taken.
  std::optional<uint16_t> port;
  bool or_any_port = false;
  PageAccess* page = nullptr;

  std::optional<HttpTls> tls;  // needs principal_of
  std::function<Recognition(std::string_view token)> principal_of;

  HttpLimits limits;
  std::chrono::milliseconds patience = std::chrono::seconds(30);  // for a whole request, or a write
  std::chrono::milliseconds strangers_patience = std::chrono::seconds(10);  // until it is known who
  std::chrono::milliseconds idle = std::chrono::seconds(60);                // between two requests
  std::chrono::milliseconds heartbeat = std::chrono::seconds(15);           // of an event stream
};

// The Api on sockets, by HTTP 1.1. Each connection has a thread; a client that is slow, silent or
// gone holds up nothing but its own connection, and that not for long.
class HttpServer {
 public:
  // Throws conflict if another process serves the socket, unavailable if it cannot be made,
  // invalid_argument where something would be open beyond this machine to those without a token.
  HttpServer(Api& api, HttpOptions options);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // ends all connections

  uint16_t port() const;           // of the loopback interface; 0: none
  uint16_t tls_port() const;       // 0: none
  const std::string& pin() const;  // of the certificate's key (tls_impl.h); empty: no TLS

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::cluster
