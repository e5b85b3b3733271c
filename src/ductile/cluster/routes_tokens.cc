// Routes about tokens. What a token is stands in one answer, and nowhere else.
#include <optional>
#include <string>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/cluster/routes_impl.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLongest = 100 * 365 * 86400.0;

}  // namespace

Answer list_tokens(Request& request) {
  Json tokens = Json::array();
  for (const TokenRecord& token : request.reader.tokens()) {
    const std::string state = token.revoked                                      ? "revoked"
                              : token.expires && request.now() >= *token.expires ? "expired"
                                                                                 : "good";
    Json& one = tokens.emplace_back(Json{{"name", token.name},
                                         {"role", to_string(token.role)},
                                         {"team", token.team},
                                         {"state", state},
                                         {"made", token.made},
                                         {"expires", nullptr},
                                         {"revoked", nullptr}});
    if (token.expires) one["expires"] = *token.expires;
    if (token.revoked) one["revoked"] = *token.revoked;
  }
  return json_answer({{"tokens", std::move(tokens)}});
}

// The answer that the store keeps for a request that is sent again has no token in it.
Answer add_token(Request& request) {
  if (request.address().empty())
    fail(ErrorCode::conflict,
         "this service takes requests over its unix socket alone, where nobody needs a token; "
         "`ductile up` and `ductile server` take --https ADDRESS:PORT");
  const nlohmann::json body = request.object();
  const JsonFields fields(body, "body");
  fields.only({"name", "role", "team", "seconds"});
  TokenRecord record;
  record.name = fields.text("name");
  require_plain_name(record.name, "body: name");
  record.role = role_from(fields.text("role"));
  record.team = fields.text("team", "");
  require_line(record.team, "body: team");
  record.made = request.now();
  if (fields.has("seconds")) record.expires = record.made + fields.number("seconds", 1, kLongest);
  const std::string token = make_token();
  record.digest = digest_of_token(token);
  bool made = false;
  Answer answer = request.commit(201, [&](Change& change) -> nlohmann::json {
    made = true;
    change.add_token(record, request.call.principal.name);
    return {{"name", record.name}, {"role", to_string(record.role)}, {"team", record.team}};
  });
  if (!made)
    fail(ErrorCode::conflict,
         "the token \"{}\" was made, and shown once, in an answer before; if that was lost: "
         "ductile token revoke {}",
         record.name, record.name);
  request.load_tokens();
  Json shown = parse_json<Json>(answer.body);
  shown["token"] = token;
  shown["address"] = request.address();
  shown["fingerprint"] = request.pin();
  answer.body = dump_json(shown);
  return answer;
}

// When this is answered the token lets nobody in, and streams that it opened are ending.
Answer revoke_token(Request& request) {
  const std::string name(request.argument);
  const auto write = [&](Change& change) -> nlohmann::json {
    change.revoke_token(name, request.call.principal.name, request.now());
    return {{"name", name}, {"revoked", true}};
  };
  Answer answer = request.commit(200, write, CommitQueue::Room::kept);
  request.load_tokens();
  return answer;
}

}  // namespace ductile::cluster
