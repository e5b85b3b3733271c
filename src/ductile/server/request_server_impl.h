#pragma once

#include <functional>
#include <list>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/process/descriptor.h"

namespace ductile::server {

// Takes requests of this user's processes at a unix socket in the run folder: one JSON object a
// line, answered by one line each, {"ok": true, ...} or {"error": text, "code": kind}. What is not
// such a request is answered with an error; who sends too much or reads nothing is hung up on. One
// thread; never waits.
class RequestServer {
 public:
  // The answer's fields; an Error becomes an error answer.
  using Handler = std::function<nlohmann::json(const nlohmann::json& request)>;

  explicit RequestServer(const fs::path& run);
  ~RequestServer();  // removes the socket

  int fd() const { return epoll_.get(); }  // readable when serve() has something to do
  void serve(const Handler& handler);

 private:
  struct Client {
    process::Descriptor fd;
    std::string input;
  };

  void remove_socket();
  void take_new();
  bool serve(Client& client, const Handler& handler);
  static bool answer(Client& client, const std::string& line, const Handler& handler);

  fs::path run_;
  process::Descriptor epoll_;
  process::Descriptor listener_;
  std::list<Client> clients_;
};

}  // namespace ductile::server
