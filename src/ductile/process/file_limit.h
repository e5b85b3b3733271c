#pragma once

namespace ductile::process {

// Lets this process open as many files as the system allows it, for programs with a descriptor for
// each of many others. What spawn() starts later has the limit that this process was given: a
// program may use select(), or close all numbers up to its limit. To be called before there are
// threads.
void raise_file_limit();

}  // namespace ductile::process
