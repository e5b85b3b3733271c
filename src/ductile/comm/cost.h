#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/comm/fabric.h"
#include "ductile/comm/schedule.h"
#include "ductile/comm/virtual_time.h"

namespace ductile::comm {

// What a collective costs on a fabric, and which algorithm to take. Up to kExactRanks ranks the
// step lists themselves run in virtual time; for more ranks there are closed forms of the same
// model, which take all ranks as alike (cost_test.cc compares the two).
constexpr int64_t kExactRanks = 8;

struct Price {
  Algorithm algorithm = Algorithm::ring;
  int pipeline = 1;
  double seconds = 0;
  std::string note;  // of a fallback
};

struct Choice {
  Price best;
  std::vector<Price> prices;  // the best of each algorithm, cheapest first
  std::string reason;         // one sentence for people
};

// The number of successive steps in which a rank takes part: 2 (P - 1) for a ring, 2 (X - 1) + 2 (Y
// - 1) for a torus ...
int64_t num_rounds(Collective collective, Algorithm algorithm, const Fabric& fabric);

// Closed form; seconds.
double closed_price(Collective collective, Algorithm algorithm, const Fabric& fabric,
                    const Load& load, int pipeline);

// The time that the model predicts, from the lists in virtual time or from the closed form. It is
// the time of one of many calls, so that no link carries more than it can sustain
// (Link::sustained).
double price_of(Collective collective, Algorithm algorithm, const Fabric& fabric, const Load& load,
                int pipeline);

// The time of an all-reduce in memory that all ranks share; 0 if the fabric does not contain it.
double shared_memory_price(const Fabric& fabric, const Load& load);

// The algorithm with its best pipeline. Throws invalid_argument if the collective does not have it.
Price price(Collective collective, Algorithm algorithm, const Fabric& fabric, const Load& load);

// The cheapest algorithm. If two are within three percent, it is the earlier one in
// algorithms_of(). The choice is the same on all ranks that have the same fabric.
Choice choose(Collective collective, const Fabric& fabric, const Load& load);

// Tables for people. explain: predicted time of each algorithm (and `measured` seconds in the same
// order as choice.prices, if given) and the choice.
std::string explain(const Choice& choice, std::span<const double> measured = {});
// A table for an all-reduce of f32 over these links: one line per size and number of ranks.
std::string scale_table(const Fabric& fabric, std::span<const int64_t> ranks,
                        std::span<const int64_t> bytes);

// The smallest bucket, in bytes, whose all-reduce has at least `efficiency` of the bytes per second
// of a very large one: fusing tensors beyond that gains nothing and starts later.
int64_t fusion_bytes(const Fabric& fabric, double efficiency = 0.9);

}  // namespace ductile::comm
