#include "ductile/cluster/client.h"

#include <httplib.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/net/secret.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTries = 3;

httplib::Client client_of(const fs::path& socket) {
  httplib::Client client(socket.string());
  client.set_address_family(AF_UNIX);
  client.set_connection_timeout(5);
  client.set_read_timeout(60);
  return client;
}

Json answer_of(const httplib::Result& result, const fs::path& socket) {
  if (!result)
    fail(ErrorCode::unavailable, "{}: no service answers there; `ductile up` starts one",
         socket.string());
  Json answer = parse_json<Json>(result->body);
  if (result->status >= 300) {
    const bool known = answer.is_object() && answer.contains("error");
    const std::string code = known ? answer.value("code", "internal") : "internal";
    // Refused to this user: no other attempt helps, as with what a state forbids.
    fail(code == "refused" ? ErrorCode::conflict : error_code_from(code), "{}",
         known ? answer.at("error").get<std::string>()
               : fmt::format("{}: HTTP status {}", socket.string(), result->status));
  }
  return answer;
}

}  // namespace

bool Client::reachable() const {
  std::error_code ignored;
  return fs::is_socket(socket_, ignored) && client_of(socket_).Get("/v1/jobs?limit=1");
}

Json Client::get(const std::string& path) const {
  return answer_of(client_of(socket_).Get(path), socket_);
}

Json Client::post(const std::string& path, const nlohmann::json& body) const {
  const httplib::Headers headers = {{"Idempotency-Key", net::to_hex(net::random_nonce())}};
  const std::string text = dump_json(body);
  for (int i = 1;; ++i) {
    const auto result = client_of(socket_).Post(path, headers, text, "application/json");
    const bool lost = !result && result.error() != httplib::Error::Connection;
    if (!lost || i == kTries) return answer_of(result, socket_);
  }
}

std::string percent_encoded(std::string_view text) {
  constexpr std::string_view kPlain = "-_.~";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                        (byte >= '0' && byte <= '9');
    if (letter || kPlain.find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", byte);
    }
  }
  return out;
}

fs::path usual_folder(const char* const* environment) {
  std::string home, state;
  for (const char* const* at = environment; *at != nullptr; ++at) {
    const std::string_view text = *at;
    if (text.starts_with("HOME=")) home = text.substr(5);
    if (text.starts_with("XDG_STATE_HOME=")) state = text.substr(15);
  }
  if (!state.empty()) return fs::path(state) / "ductile";
  if (home.empty())
    fail(ErrorCode::invalid_argument,
         "neither HOME nor XDG_STATE_HOME says where a service keeps its state; --folder does");
  return fs::path(home) / ".local" / "state" / "ductile";
}

}  // namespace ductile::cluster
