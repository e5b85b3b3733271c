#include "ductile/cluster/access_file.h"

#include <string_view>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/cluster/tls_impl.h"
#include "ductile/net/socket.h"

namespace ductile::cluster {
namespace {

// The token must not travel where others can read it.
void require_address(const std::string& address, const std::string& where) {
  constexpr std::string_view kSealed = "https://", kPlain = "http://";
  if (address.starts_with(kSealed)) {
    net::Address::parse(address.substr(kSealed.size()));
    return;
  }
  if (!address.starts_with(kPlain))
    fail(ErrorCode::invalid_argument, "{}: address = \"{}\": write https://HOST:PORT", where,
         address);
  const std::string host = net::Address::parse(address.substr(kPlain.size())).host;
  if (host != "127.0.0.1" && host != "localhost" && host != "::1")
    fail(ErrorCode::invalid_argument,
         "{}: address = \"{}\": over a network a token travels by https:// alone", where, address);
}

}  // namespace

Access read_access(const fs::path& file) {
  require_private(file, "access file");
  const std::string name = file.string();
  const nlohmann::json json = parse_json(read_text(file), name, ErrorCode::invalid_argument);
  const JsonFields fields(json, name);
  fields.only({"address", "fingerprint", "token"});
  Access out{fields.text("address"), fields.text("fingerprint", ""), fields.text("token")};
  require_address(out.address, name);
  const bool odd = out.token.empty() || out.token.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789_-.") != std::string::npos;
  if (odd) fail(ErrorCode::invalid_argument, "{}: token: this is none", name);
  if (!out.fingerprint.empty() && !out.fingerprint.starts_with("sha256//"))
    fail(ErrorCode::invalid_argument,
         "{}: fingerprint = \"{}\": write sha256//..., or leave it out", name, out.fingerprint);
  return out;
}

void write_access(const fs::path& file, const Access& access) {
  nlohmann::ordered_json json = {{"address", access.address}};
  if (!access.fingerprint.empty()) json["fingerprint"] = access.fingerprint;
  json["token"] = access.token;
  write_private_file(file, dump_json(json, 2) + "\n");
}

}  // namespace ductile::cluster
