#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ductile/base/json_value.h"
#include "ductile/net/socket.h"
#include "ductile/serving/http_message.h"

namespace ductile::serving::testing {

// One connection to a server, which waits for each answer.
class Client {
 public:
  explicit Client(const net::Address& to);
  // The client is another user of this machine, which only root can be.
  static Client of_another_user(const net::Address& to);

  // None: the connection ended before an answer.
  std::optional<HttpResponse> ask(const HttpRequest& request);
  std::optional<HttpResponse> get(const std::string& path);
  std::optional<HttpResponse> post(const std::string& path, std::string body, Headers headers = {});
  // Bytes as they are, and the answer that comes.
  std::optional<HttpResponse> send(std::string_view bytes);
  std::optional<HttpResponse> receive();
  void say(std::string_view bytes);
  std::string rest();  // all bytes until the server ends the connection

 private:
  net::Socket socket_;
  std::string input_;
};

nlohmann::json json_of(const HttpResponse& response);

}  // namespace ductile::serving::testing
