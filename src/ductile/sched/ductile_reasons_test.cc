#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/sched/waiting_claims_impl.h"

namespace ductile::sched {
namespace {

// The twin looks at every claim.
TEST(WaitingClaims, ThoseBeforeAClaimAreAllThatAreWorthMore) {
  Rng rng(14);
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<std::pair<double, int32_t>> all;
    WaitingClaims claims;
    const uint32_t count = rng.below(40);
    for (uint32_t i = 0; i < count; ++i) {
      all.emplace_back(rng.below(8) / 4.0, 1 + rng.below(16));  // many are worth the same
      claims.add(all.back().first, all.back().second);
    }
    claims.sort();
    for (int at = -1; at < 9; ++at) {
      const double worth = at / 4.0;
      WaitingClaims::Before slow;
      for (const auto& [other, devices] : all) {
        if (other <= worth) continue;
        ++slow.jobs;
        slow.devices += devices;
      }
      EXPECT_EQ(claims.before(worth), slow) << turn << ": " << worth;
    }
  }
}

TEST(WaitingClaims, WhereNobodyWaitsNobodyIsBefore) {
  WaitingClaims claims;
  EXPECT_EQ(claims.before(0), WaitingClaims::Before());
  claims.sort();
  EXPECT_EQ(claims.before(0), WaitingClaims::Before());
}

}  // namespace
}  // namespace ductile::sched
