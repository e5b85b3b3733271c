#include "ductile/cluster/tokens.h"

#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cluster/sha256_impl.h"
#include "ductile/cluster/store.h"
#include "ductile/net/secret.h"

namespace ductile::cluster {
namespace {

constexpr std::string_view kMark = "ductile_";  // so that programs find tokens in what leaks

std::string date_of(double seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

}  // namespace

std::string make_token() { return std::string(kMark) + net::to_hex(net::random_nonce()); }

std::string digest_of_token(std::string_view token) { return sha256(token); }

void Tokens::load(const std::function<std::vector<TokenRecord>()>& read) {
  uint64_t mine = 0;
  {
    const std::lock_guard lock(mutex_);
    mine = ++begun_;
  }
  std::map<std::string, TokenRecord> by_digest;
  for (TokenRecord& record : read()) {
    std::string digest = record.digest;
    by_digest.insert_or_assign(std::move(digest), std::move(record));
  }
  const std::lock_guard lock(mutex_);
  if (mine < kept_) return;
  kept_ = mine;
  by_digest_ = std::move(by_digest);
}

Recognition Tokens::recognise(std::string_view token) const {
  constexpr std::string_view kRemedy = "an admin makes one: ductile token add NAME --role ROLE";
  // How long the search takes says something of the digest of what was given, which nobody can
  // steer towards that of a token without having it.
  const std::string digest = digest_of_token(token);
  TokenRecord found;
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = by_digest_.find(digest); known != by_digest_.end())
      found = known->second;
  }
  if (found.id == 0) return {{}, fmt::format("this token is none of this service's; {}", kRemedy)};
  if (found.revoked)
    return {{},
            fmt::format("the token \"{}\" was revoked on {}; {}", found.name,
                        date_of(*found.revoked), kRemedy)};
  if (found.expires && clock_() >= *found.expires)
    return {{},
            fmt::format("the token \"{}\" expired on {}; {}", found.name, date_of(*found.expires),
                        kRemedy)};
  return {Principal{found.name, found.role, found.team, true}, ""};
}

std::vector<TokenRecord> Reader::tokens() {
  std::vector<TokenRecord> out;
  database_.query(
      "SELECT id, name, role, team, digest, made, expires, revoked FROM tokens ORDER BY id",
      [&](const Row& row) {
        TokenRecord& r = out.emplace_back();
        r.id = row.integer(0);
        r.name = row.text(1);
        r.role = role_from(row.text(2));
        r.team = row.text(3);
        r.digest = row.text(4);
        r.made = row.real(5);
        if (!row.is_null(6)) r.expires = row.real(6);
        if (!row.is_null(7)) r.revoked = row.real(7);
      });
  return out;
}

int64_t Change::add_token(const TokenRecord& token, std::string_view by) {
  if (database_.integer("SELECT count(*) FROM tokens WHERE name = ? AND revoked IS NULL", 0,
                        token.name) > 0)
    fail(ErrorCode::conflict,
         "there is a token \"{}\" already; another name, or first: ductile token revoke {}",
         token.name, token.name);
  database_.run(
      "INSERT INTO tokens (name, role, team, digest, made, expires) VALUES (?, ?, ?, ?, ?, ?)",
      token.name, to_string(token.role), token.team, token.digest, token.made, token.expires);
  const int64_t id = database_.last_insert();
  record(
      0, "token",
      dump_json(nlohmann::json{
          {"name", token.name}, {"role", to_string(token.role)}, {"team", token.team}, {"by", by}}),
      token.made);
  return id;
}

void Change::revoke_token(std::string_view name, std::string_view by, double now) {
  database_.run("UPDATE tokens SET revoked = ? WHERE name = ? AND revoked IS NULL", now, name);
  if (database_.changed_rows() == 0)
    fail(ErrorCode::not_found,
         "there is no token \"{}\" that is not revoked; `ductile token list` lists all", name);
  record(0, "token revoked", dump_json(nlohmann::json{{"name", name}, {"by", by}}), now);
}

}  // namespace ductile::cluster
