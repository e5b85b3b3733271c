#pragma once

#include <cstdint>

#include "ductile/net/socket.h"

namespace ductile::serving {

// A connection to a port of this machine that is being made, in a socket that does not block; the
// first write tells whether that worked.
net::Socket begin_connect_here(uint16_t port);

}  // namespace ductile::serving
