#pragma once

#include <string>

#include "ductile/base/descriptor.h"

namespace ductile::server {

// Makes this process the only one of this machine that holds the place `name`, for as long as the
// descriptor lives. A process of the same user that holds it is killed. Throws conflict if one of
// another user holds it, unavailable if the place does not become free in some seconds.
Descriptor sole_agent(const std::string& name);

}  // namespace ductile::server
