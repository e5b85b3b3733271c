#pragma once

#include <chrono>

namespace ductile {

// The time of day in seconds since 1970. It may be set back while a program runs.
inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Seconds of a clock that nobody sets; where it begins says nothing.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace ductile
