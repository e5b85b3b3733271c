#include "ductile/serving/testing/client.h"

#include <span>
#include <utility>

#include <sys/fsuid.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"

namespace ductile::serving::testing {
namespace {

net::Deadline soon() { return net::Clock::now() + std::chrono::seconds(60); }

}  // namespace

Client::Client(const net::Address& to) : socket_(net::connect(to, {}, soon())) {}

Client Client::of_another_user(const net::Address& to) {
  const int own = ::setfsuid(65534);  // of this thread; its sockets are this user's
  Client out(to);
  ::setfsuid(static_cast<uid_t>(own));
  return out;
}

void Client::say(std::string_view bytes) {
  try {
    socket_.write_all(std::as_bytes(std::span(bytes)), soon());
  } catch (const Error&) {  // the server has answered already, and ended the connection
  }
}

std::string Client::rest() {
  std::string out = std::exchange(input_, {});
  char block[65536];
  try {
    while (const size_t n = socket_.read_some(std::as_writable_bytes(std::span(block)), soon()))
      out.append(block, n);
  } catch (const Error&) {  // the server ended it
  }
  return out;
}

std::optional<HttpResponse> Client::receive() {
  HttpReader reader(HttpReader::Kind::response, {.body = size_t{1} << 30});
  while (true) {
    input_.erase(0, reader.take(input_));
    if (reader.fault()) return std::nullopt;
    if (reader.whole()) return reader.response();
    char block[65536];
    size_t n = 0;
    try {
      n = socket_.read_some(std::as_writable_bytes(std::span(block)), soon());
    } catch (const Error&) {
      return std::nullopt;
    }
    if (n == 0) return std::nullopt;
    input_.append(block, n);
  }
}

std::optional<HttpResponse> Client::send(std::string_view bytes) {
  say(bytes);
  return receive();
}

std::optional<HttpResponse> Client::ask(const HttpRequest& request) {
  return send(to_bytes(request, "localhost"));
}

std::optional<HttpResponse> Client::get(const std::string& path) {
  return ask({"GET", path, {}, "", true});
}

std::optional<HttpResponse> Client::post(const std::string& path, std::string body,
                                         Headers headers) {
  return ask({"POST", path, std::move(headers), std::move(body), true});
}

nlohmann::json json_of(const HttpResponse& response) {
  return parse_json(response.body, "the answer", ErrorCode::internal);
}

}  // namespace ductile::serving::testing
