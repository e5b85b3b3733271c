#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"
#include "ductile/net/socket.h"

namespace ductile::cluster {

// A unix socket that all users of this machine may connect to. To be called under the lock of this
// path, so that no other server of ours is about to serve it. A socket that nobody serves any more
// is removed; nothing else is.
Descriptor listen_unix(const fs::path& path);

// A port of the loopback interface; `or_any`: any free one where that one is taken.
Descriptor listen_loopback(uint16_t port, bool or_any, uint16_t* got);

// A port that other machines reach.
Descriptor listen_beyond(const net::Address& address, uint16_t* got);

// How limits call a client that has not said who it is: the user at the other end of a loopback
// connection where the kernel knows it, else its address (of IPv6 the network of 64 bits, which one
// client has the whole of).
std::string stranger_at(int connection);

}  // namespace ductile::cluster
