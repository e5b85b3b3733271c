#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ductile::cluster {

// What somebody may do. Each role may do what the ones before it may.
enum class Role : uint8_t {
  read,    // look at everything
  submit,  // submit jobs, and act on those that are their own
  admin,   // act on all jobs, and on nodes
};

std::string_view to_string(Role role);
// Throws invalid_argument for another text, with the nearest one.
Role role_from(std::string_view text);

// Who sends a request: the user behind a connection, or the name of a token.
struct Principal {
  std::string name;
  Role role = Role::read;
};

}  // namespace ductile::cluster
