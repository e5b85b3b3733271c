#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ductile::cluster {

// What somebody may do. Each role may do what the ones before it may.
enum class Role : uint8_t {
  read,    // look at everything
  submit,  // submit jobs, and act on those that are their own or their team's
  admin,   // act on all jobs, on nodes and on tokens
};

std::string_view to_string(Role role);
// Throws invalid_argument for another text, with the nearest one.
Role role_from(std::string_view text);

// Who sends a request: the user behind a connection, or the name of a token.
struct Principal {
  std::string name;
  Role role = Role::read;
  std::string team;       // whose jobs are its own, too; empty: none's
  bool by_token = false;  // known by a token alone, which may be revoked
  bool operator==(const Principal&) const = default;
};

// Whom a token stands for, or why nobody.
struct Recognition {
  std::optional<Principal> principal;
  std::string fault;
};

}  // namespace ductile::cluster
