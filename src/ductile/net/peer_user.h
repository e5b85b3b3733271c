#pragma once

#include <optional>

#include <sys/types.h>

namespace ductile::net {

// The user who has the other end of a TCP connection, where that is on this machine, as the kernel
// says; none: it is elsewhere, gone, or nobody can say. `connection`: our end, a descriptor.
std::optional<uid_t> user_at_other_end(int connection);

// Whether the kernel says such things at all, which it does not in some containers; found by a
// connection of our own. None: no descriptor is left to ask by.
std::optional<bool> kernel_knows_users();

}  // namespace ductile::net
