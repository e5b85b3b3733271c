#include <string_view>

#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cluster/page_server_impl.h"
#include "ductile/dashboard/dashboard.h"

namespace ductile::cluster {
namespace {

constexpr std::string_view kLogin = "/login";
constexpr std::string_view kLogout = "/logout";

// The address without its port, which a tunnel (ssh -L) may have changed.
std::string_view host_of(std::string_view authority) {
  if (authority.starts_with('[')) return authority.substr(0, authority.find(']') + 1);
  return authority.substr(0, authority.find(':'));
}

void answer_json(httplib::Response& response, int status, const nlohmann::json& value) {
  response.status = status;
  response.set_content(dump_json(value), "application/json");
}

}  // namespace

// A page of another site that makes its own name point here (DNS rebinding) still sends that name
// as the Host; one that sends requests across sites cannot hide its Origin.
std::string PageServer::fault(const httplib::Request& request) {
  const std::string authority = request.get_header_value("Host");
  const std::string_view host = host_of(authority);
  if (host != "127.0.0.1" && host != "localhost" && host != "[::1]")
    return fmt::format("Host = \"{}\": this port is used as 127.0.0.1 or localhost", authority);
  if (request.has_header("Origin") && request.get_header_value("Origin") != "http://" + authority)
    return "this came from a page of another origin";
  const std::string site = request.get_header_value("Sec-Fetch-Site");
  const bool opens = request.get_header_value("Sec-Fetch-Mode") == "navigate" &&
                     request.get_header_value("Sec-Fetch-Dest") == "document" &&
                     request.method == "GET";
  if (!site.empty() && site != "same-origin" && site != "none" && !opens)
    return "this came from a page of another origin";
  return "";
}

bool PageServer::gave_file(const httplib::Request& request, httplib::Response& response) const {
  if (request.method != "GET" && request.method != "HEAD") return false;
  const auto file = dashboard::file(request.path);
  if (!file) return false;
  response.set_header("Content-Security-Policy",
                      "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                      "connect-src 'self'; base-uri 'none'; form-action 'none'; "
                      "frame-ancestors 'none'");
  response.set_header("X-Frame-Options", "DENY");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_header("Cross-Origin-Opener-Policy", "same-origin");
  response.set_header("Cross-Origin-Resource-Policy", "same-origin");
  response.status = 200;
  response.set_content(file->text.data(), file->text.size(), std::string(file->type));
  return true;
}

bool PageServer::is_login(const httplib::Request& request) {
  return request.method == "POST" && (request.path == kLogin || request.path == kLogout);
}

void PageServer::answer(const httplib::Request& request, const std::string& body,
                        httplib::Response& response) {
  constexpr const char* kCookie = "{}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}";
  if (request.path == kLogout) {
    access_.leave(cookie_of(request));
    response.set_header("Set-Cookie", fmt::format(fmt::runtime(kCookie), cookie_name(), "", 0));
    return answer_json(response, 200, nlohmann::json::object());
  }
  const nlohmann::json given = parse_json(body);
  std::string code;
  if (given.is_object() && given.contains("code") && given["code"].is_string())
    code = given["code"].get<std::string>();
  const auto pass = access_.enter(code);
  if (!pass)
    return answer_json(response, 401,
                       {{"error",
                         "this link was used, or is older than ten minutes; `ductile page` prints "
                         "another one"},
                        {"code", "refused"}});
  response.set_header("Set-Cookie", fmt::format(fmt::runtime(kCookie), cookie_name(), pass->cookie,
                                                static_cast<int64_t>(PageAccess::kPassSeconds)));
  answer_json(response, 200, {{"key", pass->key}});
}

std::optional<Principal> PageServer::principal_of(const httplib::Request& request) {
  return access_.principal_of(cookie_of(request), request.get_header_value("X-Ductile-Key"));
}

// Cookies do not know ports: services of several ports must not overwrite each other's.
std::string PageServer::cookie_name() const { return fmt::format("ductile_{}", access_.port()); }

std::string PageServer::cookie_of(const httplib::Request& request) const {
  const std::string all = request.get_header_value("Cookie");
  const std::string name = cookie_name() + "=";
  for (size_t at = 0; at < all.size();) {
    size_t end = all.find(';', at);
    if (end == std::string::npos) end = all.size();
    while (at < end && all[at] == ' ') ++at;
    const std::string_view one = std::string_view(all).substr(at, end - at);
    if (one.starts_with(name)) return std::string(one.substr(name.size()));
    at = end + 1;
  }
  return "";
}

}  // namespace ductile::cluster
