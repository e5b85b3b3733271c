// Who may use a service from other machines.
#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/cli/commands.h"
#include "ductile/cluster/access_file.h"
#include "ductile/fleet/service_request_impl.h"
#include "ductile/page/terminal.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string path_of_token(const std::string& name, const char* rest) {
  return "/v1/tokens/" + cluster::percent_encoded(name) + rest;
}

std::string day_of(const Json& seconds) {
  if (seconds.is_null()) return "";
  const auto time = static_cast<std::time_t>(seconds.get<double>());
  std::tm parts{};
  ::localtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

// Throws where the file cannot be written: then nobody would ever have the token, so it is revoked
// again, and its name is free.
void keep_access(const fs::path& file, const cluster::Access& access, const std::string& name,
                 const cluster::Client& client) {
  try {
    cluster::write_access(file, access);
  } catch (Error& error) {
    client.post(path_of_token(name, "/revoke"), nlohmann::json::object());
    throw error.with_context("no token was made");
  }
}

}  // namespace

ExitCode token_add(const ServiceCommand& command, Context& context) {
  return with_service(command, context, [&](const cluster::Client& client) {
    nlohmann::json body = {{"name", command.token}, {"role", command.role}};
    if (!command.team.empty()) body["team"] = command.team;
    if (command.expires > 0) body["seconds"] = command.expires;
    constexpr FieldFlag kOwn[] = {{"name", "NAME"}};
    const Json answer = post_flags(client, "/v1/tokens", body, kOwn);
    const cluster::Access access{answer.at("address"), answer.at("fingerprint"),
                                 answer.at("token")};
    Console& console = context.console;
    if (command.out) {
      keep_access(*command.out, access, command.token, client);
      console.say("{} lets in whoever has it, as {}: it goes to no one else", command.out->string(),
                  command.token);
    } else {
      Json shown = {{"address", access.address}};
      if (!access.fingerprint.empty()) shown["fingerprint"] = access.fingerprint;
      shown["token"] = access.token;
      console.print("{}\n", dump_json(shown, 2));
      console.say("this access file is shown once; it lets in whoever has it, as {}",
                  command.token);
    }
    if (access.address.starts_with("http://"))
      console.say(
          "the service takes no requests from other machines; --https ADDRESS:PORT of "
          "`ductile up` and `ductile server` lets it");
  });
}

ExitCode token_list(const ServiceCommand& command, Context& context) {
  return with_service(command, context, [&](const cluster::Client& client) {
    const Json list = client.get("/v1/tokens").at("tokens");
    if (command.json) {
      context.console.print("{}\n", dump_json(list, 2));
      return;
    }
    std::vector<std::vector<std::string>> rows = {
        {"token", "role", "team", "state", "made", "expires", "revoked"}};
    for (const Json& token : list)
      rows.push_back({token.at("name"), token.at("role"), token.at("team"), token.at("state"),
                      day_of(token.at("made")), day_of(token.at("expires")),
                      day_of(token.at("revoked"))});
    if (rows.size() == 1) {
      context.console.say("there are no tokens; `ductile token add` makes one");
      return;
    }
    context.console.print("{}", page::table(rows));
  });
}

ExitCode token_revoke(const ServiceCommand& command, Context& context) {
  return with_service(command, context, [&](const cluster::Client& client) {
    const Json answer =
        client.post(path_of_token(command.token, "/revoke"), nlohmann::json::object());
    if (command.json) {
      context.console.print("{}\n", dump_json(answer, 2));
    } else {
      context.console.say("the token {} lets nobody in any more", command.token);
    }
  });
}

}  // namespace ductile::cli
