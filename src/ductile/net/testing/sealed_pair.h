#pragma once

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "ductile/net/bytes_impl.h"
#include "ductile/net/seal.h"

namespace ductile::net::testing {

inline Mac key_number(int i) {
  Mac key{};
  key[0] = static_cast<std::byte>(i);
  return key;
}

// May alter what passes; `to_server` says which way it goes.
using Tamper = std::function<void(bool to_server, std::vector<std::byte>& bytes)>;

// Gives `seal` the bytes of a handshake, at most `most` at a time and never more than it waits for;
// what is left over once it is done comes behind.
inline void give(Seal& seal, std::span<const std::byte> bytes, size_t most = SIZE_MAX) {
  while (!bytes.empty()) {
    const size_t room = seal.done() ? bytes.size() : seal.wanted();
    const auto part = bytes.first(std::min({most, room, bytes.size()}));
    seal.feed(part);
    bytes = bytes.subspan(part.size());
  }
}

// Carries the bytes of a handshake to and fro until nobody has any left. Throws what the ends do.
inline void shake_hands(Seal& client, Seal& server, const Tamper& tamper = {},
                        size_t most = SIZE_MAX) {
  for (bool more = true; more;) {
    more = false;
    for (const bool to_server : {true, false}) {
      std::vector<std::byte> bytes = to_server ? client.take_output() : server.take_output();
      if (bytes.empty()) continue;
      more = true;
      if (tamper) tamper(to_server, bytes);
      give(to_server ? server : client, bytes, most);
    }
  }
}

// Two ends whose handshake is done.
struct SealedPair {
  Seal client{Seal::Side::client, key_number(1)};
  Seal server{Seal::Side::server, key_number(1)};
  SealedPair() { shake_hands(client, server); }
};

inline std::vector<std::byte> sealed(Seal& from, std::string_view text) {
  std::vector<std::byte> out;
  from.append(bytes_of(text), out);
  return out;
}

}  // namespace ductile::net::testing
