#pragma once

#include <string>

#include "ductile/base/descriptor.h"

namespace ductile::server {

// Makes this process the only one of this machine that holds the place `name`, for as long as the
// descriptor lives. An agent of the same user that holds it is killed. Throws conflict, which names
// the process, if it is one of another user or no agent: nobody else is ever killed, whoever the
// socket was passed on to. Throws unavailable if the place does not become free in some seconds.
Descriptor sole_agent(const std::string& name);

}  // namespace ductile::server
