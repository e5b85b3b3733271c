#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/link/disk.h"
#include "ductile/net/loop.h"

namespace ductile::server {

// Takes requests of this user's processes at a unix socket in the run folder: one JSON object a
// line, answered by one line each, {"ok": true, ...} or {"error": text, "code": kind}. What is not
// such a request is answered with an error; who sends too much or reads nothing is hung up on.
// Where there is no room for another client, or no descriptor, the one that has been idle for
// longest is hung up on. A socket that somebody removed is made anew. It belongs to a loop's
// thread, and never waits.
class RequestServer {
 public:
  // Takes the answer's fields, or those of error_fields(), now or later; once.
  using Reply = std::function<void(nlohmann::json fields)>;
  // An Error that it throws becomes an error answer.
  using Handler = std::function<void(const nlohmann::json& request, Reply reply)>;

  static nlohmann::json error_fields(const Error& error);

  // `listener` is of listen_unix(run).
  RequestServer(net::Loop& loop, link::Disk& disk, const fs::path& run, Descriptor listener,
                Handler handler);
  ~RequestServer();  // removes the socket

 private:
  struct Client {
    Descriptor fd;
    net::Loop::Watch watch;
    std::string input;
    uint64_t heard = 0;     // when it last said something, or came: the order alone counts
    bool waits = false;     // for an answer; what it says next is read after that
    bool at_work = false;   // its lines are being read
    std::string output{};   // what is left of an answer that is larger than the socket takes
    net::Deadline until{};  // until then it has to read some of that
  };

  void remove_socket();
  void look();
  void replace_listener(Descriptor listener);
  void take_new();
  void take(Descriptor fd);
  void drop_idle();
  void rest();
  void on_ready(uint64_t id);
  bool read_from(uint64_t id);
  bool serve_lines(uint64_t id);
  void answer(uint64_t id, nlohmann::json fields);
  bool send_rest(Client& client);
  bool go_on(uint64_t id);

  net::Loop& loop_;
  link::Disk& disk_;
  const fs::path run_;
  const Handler handler_;
  Descriptor listener_;
  std::map<uint64_t, Client> clients_;
  uint64_t last_ = 0;        // number of clients, and of what was heard, so far
  bool looking_ = false;     // for the socket
  net::Loop::Watch watch_;   // of the listener
  net::Loop::Timer resume_;  // out of descriptors: takes nobody until then
  net::Loop::Timer look_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ductile::server
