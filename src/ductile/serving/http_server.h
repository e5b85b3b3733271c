#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "ductile/net/loop.h"
#include "ductile/net/socket.h"
#include "ductile/serving/http_message.h"

namespace ductile::serving {

// Whether the request is one of the user of this process, or of root, as the kernel says of its
// connection. All others of this machine may ask, and change nothing. While its handler is called.
bool is_own(const HttpRequest& request);

struct HttpOptions {
  net::Address at{"127.0.0.1", 0};
  HttpLimits limits;
  size_t most_connections = 1024;         // more are told to come again, or, if far more, nothing
  size_t most_bytes = size_t{256} << 20;  // of requests that are not answered, all together
  std::chrono::milliseconds patience = std::chrono::seconds(30);  // for a whole request, an answer
  std::chrono::milliseconds idle = std::chrono::seconds(60);      // between two requests
};

// HTTP 1.1 on a TCP port, in a loop, without a thread of its own. A client that is slow, silent or
// gone holds up nothing but its own connection, and that for `patience` at most. All methods and
// callbacks belong to the loop's thread.
class HttpServer {
 public:
  // Answers one request, at any later time, from the loop's thread. Called once or never; a client
  // that has gone is not told.
  using Reply = std::function<void(HttpResponse)>;
  using Handler = std::function<void(HttpRequest, Reply)>;

  // Throws as net::Listener does.
  HttpServer(net::Loop& loop, HttpOptions options, Handler handler);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // ends all connections

  net::Address address() const { return listener_.address(); }
  size_t connections() const { return connections_.size(); }

  // From now on every answer ends its connection, and connections that wait for a request end.
  // New ones are still accepted, so that the handler can say where to go. `on_quiet` is called when
  // every request that was begun has been answered and its connection has ended.
  void drain(std::function<void()> on_quiet);

 private:
  class Connection;

  void accept();
  void end(uint64_t number);
  void look_quiet();

  net::Loop& loop_;
  const HttpOptions options_;
  const Handler handler_;
  net::Listener listener_;
  net::Loop::Watch watch_;
  net::Loop::Timer again_;
  uint64_t last_number_ = 0;
  size_t held_ = 0;  // bytes of requests that are not answered
  std::map<uint64_t, std::shared_ptr<Connection>> connections_;
  bool draining_ = false;
  std::function<void()> on_quiet_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ductile::serving
