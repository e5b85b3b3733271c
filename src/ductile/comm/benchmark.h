#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ductile/comm/burst.h"
#include "ductile/comm/communicator.h"

namespace ductile::comm {

// Times all-reduces of f32: every algorithm, with the prediction of the cost model.

struct BenchmarkOptions {
  // What to time: algorithms, each with its number of pieces (0: the number that the cost model
  // chooses). Empty: all algorithms that this group of ranks has, and the sum in shared memory if
  // there is one.
  struct Variant {
    Algorithm algorithm = Algorithm::ring;
    int pipeline = 0;
  };
  std::vector<Variant> variants;
  double seconds = 0.15;  // for each variant, about
};

// The parts of a predicted time, each computed as if the others cost nothing. They overlap, so the
// predicted time lies between the largest of them and their sum.
struct PriceParts {
  int64_t rounds = 0;    // steps one after the other
  double latency = 0;    // alpha: seconds of messages of no length
  double transfer = 0;   // beta: seconds of the bytes on the links
  double reduction = 0;  // gamma: seconds of adding
};
PriceParts parts_of(const Price& price, Collective collective, const Fabric& fabric,
                    const Load& load);

struct TimedAlgorithm {
  std::string name;      // "ring", "shared_memory"
  int pipeline = 0;      // pieces of a share; 0: none
  double predicted = 0;  // seconds; 0: no prediction
  Spread measured;       // seconds; 0: not measured, since it is another one by another name
  std::string note;      // why it is another one
  PriceParts parts;
};

struct SizeTimes {
  int64_t bytes = 0;
  std::vector<TimedAlgorithm> algorithms;  // by predicted time, after shared memory
  int chosen = -1;                         // what a call without an algorithm does
  int best = -1;                           // the fastest measured
  bool correct = true;                     // all sums were right
  std::string reason;                      // of the choice

  // How much longer the chosen algorithm took than the best: 0.03 for 3 %; 0 if it was not
  // measured.
  double regret() const;
};

// Times all-reduce of `bytes` in place at `data`, bursts of all variants by turns so that a
// disturbance meets them alike. All ranks call it; the times are those of the slowest rank and
// equal on all.
SizeTimes time_all_reduce(Communicator& comm, float* data, int64_t bytes,
                          const BenchmarkOptions& options);

}  // namespace ductile::comm
