#pragma once

#include <cstdint>
#include <string>

// This machine as a cluster file, for `ductile plan --devices`.
namespace ductile::cli {

// A node of so many devices, which share its memory in equal parts, with the link between processes
// as `ductile bench all-reduce` measures it, all of them at once, but at most 16. One device has no
// link. Throws what that command reports, and unavailable where it is not installed.
std::string describe_machine(int64_t devices);

}  // namespace ductile::cli
