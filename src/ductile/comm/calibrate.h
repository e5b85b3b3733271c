#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "ductile/comm/communicator.h"
#include "ductile/comm/fabric.h"

namespace ductile::comm {

struct CalibrationOptions {
  size_t large_bytes = 256 << 10;  // of the messages that measure bandwidth
  int repeats = 3;                 // of each measurement, at least; the median counts
  // A folder that keeps results for the next start, such as calibration_cache(): a file for each
  // combination of host names, ranks, links, transport and version of this library. Only rank 0
  // reads and writes it. Empty: nothing is kept.
  std::filesystem::path cache;
  std::string transport;  // "tcp", "ucx": what carries the messages, for the cache to tell apart
  bool anew = false;      // measure although the cache has a result
};

struct Calibration {
  Fabric fabric;
  double seconds = 0;          // what measuring took; 0: from the cache
  std::filesystem::path file;  // of the cache; on rank 0, where there is one
};

// $XDG_CACHE_HOME/ductile, or ~/.cache/ductile; empty where neither variable is set.
std::filesystem::path calibration_cache();

// Measures the links between the ranks of a communicator that nothing else uses: the ranks of each
// host among themselves, and the first ranks of all hosts on every rail. All of them send and
// receive at the same time, as in a collective, through lists that the engine runs, so that a time
// includes what the engine, and ranks that share the cores, add to it. The measurements are a row
// of small messages, each of which waits for the one before (latency); one message to every other
// rank at once (the processor time per message); and a large message in pieces (bandwidth). For
// each kind of link the slowest rank counts. If the ranks share memory, sums in it are timed too.
// This takes tens of milliseconds on one host, and a fifth of a second on links of 200 Mbit/s and 1
// ms.
//
// All ranks call it, with equal options except the cache, and get the same fabric, which is also
// set on the communicator. Values that no rank could measure stay unchanged.
Calibration calibrate(Communicator& comm, const CalibrationOptions& options = {});

}  // namespace ductile::comm
