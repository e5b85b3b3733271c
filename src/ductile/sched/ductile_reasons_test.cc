#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/sched/waiting_claims_impl.h"

namespace ductile::sched {
namespace {

// The twin looks at every claim.
TEST(WaitingClaims, ThoseBeforeAClaimAreAllThatAreWorthMoreOrAsMuchAndOlder) {
  Rng rng(14);
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<std::pair<WaitingClaims::Turn, int32_t>> all;
    WaitingClaims claims;
    const uint32_t count = rng.below(40);
    for (uint32_t i = 0; i < count; ++i) {
      // Many are worth the same, and some came at one moment.
      all.push_back(
          {{rng.below(8) / 4.0, rng.below(5) / 1.0, i}, static_cast<int32_t>(1 + rng.below(16))});
      claims.add(all.back().first, all.back().second);
    }
    claims.sort();
    for (const auto& [own, of_own] : all) {
      WaitingClaims::Before slow;
      for (const auto& [other, devices] : all) {
        const bool older =
            other.arrival != own.arrival ? other.arrival < own.arrival : other.job < own.job;
        if (other.worth < own.worth || (other.worth == own.worth && !older)) continue;
        ++slow.jobs;
        slow.devices += devices;
      }
      EXPECT_EQ(claims.before(own), slow) << turn << ": " << own.worth << ", " << own.arrival;
    }
  }
}

TEST(WaitingClaims, WhereNobodyWaitsNobodyIsBefore) {
  WaitingClaims claims;
  EXPECT_EQ(claims.before({}), WaitingClaims::Before());
  claims.sort();
  EXPECT_EQ(claims.before({}), WaitingClaims::Before());
}

}  // namespace
}  // namespace ductile::sched
