#pragma once

#include "ductile/net/handshake.h"
#include "ductile/server/pilot.h"

namespace ductile::server {

bool is_withdrawn(const PilotTicket& ticket);
// Throws conflict if another pilot was first.
void claim(const PilotTicket& ticket, const PilotClaim& by);

// Both ends of the connection between a service and a pilot.
net::Identity pilot_identity(const PilotTicket& ticket);
net::Identity caller_identity(const PilotTicket& ticket);

}  // namespace ductile::server
