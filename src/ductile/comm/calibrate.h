#pragma once

#include <filesystem>

#include "ductile/comm/communicator.h"
#include "ductile/comm/fabric.h"

namespace ductile::comm {

struct CalibrationOptions {
  size_t large_bytes = 256 << 10;  // of the messages that measure bandwidth
  int repeats = 6;                 // of each message; the fastest counts
  // Where the result is kept for the next start of the same arrangement; read and written by rank 0
  // alone. Empty: nowhere. Remove the file to measure anew.
  std::filesystem::path cache;
};

// Measures the links between the ranks of a communicator that nothing else uses: pairs of ranks of
// one host, and of the first ranks of neighbouring hosts on every rail, exchange messages forth and
// back; the slowest pair of a kind stands for all of that kind. Takes tens of milliseconds on links
// of 200 Mbit/s. All ranks call it and get the same fabric, which is also set on the communicator.
// What no pair of ranks could measure keeps its value.
Fabric calibrate(Communicator& comm, const CalibrationOptions& options = {});

}  // namespace ductile::comm
