#pragma once

#include <string_view>

namespace ductile {

// A line for the log of this process, which is its standard error: whoever started it keeps it (the
// worker.log of a run). Written at once and whole, so that lines of several threads and processes
// do not mix. One that cannot be written is lost; nothing waits or fails for the log.
void log_line(std::string_view text);

}  // namespace ductile
