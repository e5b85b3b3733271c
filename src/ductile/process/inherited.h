#pragma once

#include <string>

namespace ductile::process {

// What a program that this thread starts takes over from it, beside its arguments, environment,
// descriptors and blocked signals: user and rights, limits, folder, namespaces, control groups,
// priorities, cores, ignored signals. As a text, which is the same as long as all of that is; what
// cannot be read is left out.
std::string inherited();

}  // namespace ductile::process
