#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/cluster/principal.h"

namespace ductile::cluster {

class Reader;

// What a service knows of a token: not the token.
struct TokenRecord {
  int64_t id = 0;
  std::string name;  // of the principal that it stands for
  Role role = Role::read;
  std::string team;
  std::string digest;  // SHA-256: enough, since a token has 256 random bits
  double made = 0;
  std::optional<double> expires, revoked;
  bool operator==(const TokenRecord&) const = default;
};

// 256 random bits as text.
std::string make_token();
std::string digest_of_token(std::string_view token);

// The tokens of a store, for each request that brings one. Thread-safe.
class Tokens {
 public:
  // `clock`: seconds since 1970.
  explicit Tokens(std::function<double()> clock) : clock_(std::move(clock)) {}

  // What the store says, from now on. Of several at once the one counts that began to read last:
  // it has seen whatever the others have.
  void load(const std::function<std::vector<TokenRecord>()>& read);
  // As long for many tokens as for few: it is asked at each request, and for each write to an event
  // stream.
  Recognition recognise(std::string_view token) const;

 private:
  const std::function<double()> clock_;
  mutable std::mutex mutex_;
  uint64_t begun_ = 0, kept_ = 0;  // loads
  std::map<std::string, TokenRecord> by_digest_;
};

}  // namespace ductile::cluster
