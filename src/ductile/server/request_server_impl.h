#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"
#include "ductile/net/socket.h"

namespace ductile::server {

// Takes requests of this user's processes at a unix socket in the run folder: one JSON object a
// line, answered by one line each, {"ok": true, ...} or {"error": text, "code": kind}. What is not
// such a request is answered with an error; who sends too much or reads nothing is hung up on.
// Where there is no room for another client, or no descriptor, the one that has been idle for
// longest is hung up on. A socket that somebody removed is made anew. One thread; never waits.
class RequestServer {
 public:
  // The answer's fields; an Error becomes an error answer.
  using Handler = std::function<nlohmann::json(const nlohmann::json& request)>;

  explicit RequestServer(const fs::path& run);
  ~RequestServer();  // removes the socket

  // For an event loop: serve() has something to do when fd() is readable, and at the deadline.
  int fd() const { return epoll_.get(); }
  net::Deadline next_deadline() const { return paused_ ? resume_at_ : net::Deadline::max(); }
  void serve(const Handler& handler);

 private:
  struct Client {
    Descriptor fd;
    std::string input;
    uint64_t heard = 0;  // when it last said something, or came: the order alone counts
  };

  void remove_socket();
  void make_anew();
  void take_new();
  void drop_idle();
  void pause();
  bool serve(Client& client, const Handler& handler);
  static bool answer(Client& client, const std::string& line, const Handler& handler);

  fs::path run_;
  Descriptor epoll_;
  Descriptor listener_;
  std::list<Client> clients_;
  uint64_t heard_ = 0;
  bool paused_ = false;  // out of descriptors: takes nobody until resume_at_
  net::Deadline resume_at_{};
  net::Deadline look_at_{};  // whether the socket is still there
};

}  // namespace ductile::server
