#pragma once

#include <optional>

#include <sys/types.h>

namespace ductile::net {

// The user who has the other end of a TCP connection, where that is on this machine, as the kernel
// says; none: it is elsewhere, gone, or nobody can say. `connection`: our end, a descriptor.
std::optional<uid_t> user_at_other_end(int connection);

}  // namespace ductile::net
