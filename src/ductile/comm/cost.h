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
// step lists themselves run in virtual time; beyond, closed forms of the same model, for ranks that
// are all alike (cost_test.cc holds the two against each other).
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

// Steps one after the other that a rank takes part in: 2 (P - 1) for a ring, 2 (X - 1) + 2 (Y - 1)
// for a torus ...
int64_t num_rounds(Collective collective, Algorithm algorithm, const Fabric& fabric);

// Closed form; seconds.
double closed_price(Collective collective, Algorithm algorithm, const Fabric& fabric,
                    const Load& load, int pipeline);

// What the model says of one way, by the lists in virtual time or the closed form: the time of one
// of many calls, so that no link carries more than it can for long (Link::sustained).
double price_of(Collective collective, Algorithm algorithm, const Fabric& fabric, const Load& load,
                int pipeline);

// An all-reduce in memory that all ranks share; 0 where the fabric does not know.
double shared_memory_price(const Fabric& fabric, const Load& load);

// The algorithm with its best pipeline. Throws invalid_argument if the collective does not have it.
Price price(Collective collective, Algorithm algorithm, const Fabric& fabric, const Load& load);

// The cheapest algorithm; of two within three percent, the earlier in algorithms_of(). The same on
// all ranks that hold the same fabric.
Choice choose(Collective collective, const Fabric& fabric, const Load& load);

// Tables for people. explain: predicted time of each algorithm (and `measured` seconds in the same
// order as choice.prices, if given) and the choice.
std::string explain(const Choice& choice, std::span<const double> measured = {});
// All-reduce of f32: a line for each size and number of ranks, the fabric's links taken as given.
std::string scale_table(const Fabric& fabric, std::span<const int64_t> ranks,
                        std::span<const int64_t> bytes);

// The smallest bucket, in bytes, whose all-reduce has at least `efficiency` of the bytes per second
// of a very large one: fusing tensors beyond that gains nothing and starts later.
int64_t fusion_bytes(const Fabric& fabric, double efficiency = 0.9);

}  // namespace ductile::comm
