#include "ductile/optim/loss_scaler.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile::optim {
namespace {

TEST(LossScaler, HalvesAndSkipsOnOverflow) {
  LossScaler scaler(1024.0);
  EXPECT_TRUE(scaler.update(false));
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 512);
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 256);
  EXPECT_EQ(scaler.state().skipped, 2);
}

TEST(LossScaler, DoublesAfterARunOfGoodStepsOnly) {
  LossScaler scaler(1024.0);
  for (int i = 0; i < LossScaler::kPatience - 1; ++i) scaler.update(false);
  scaler.update(true);
  for (int i = 0; i < LossScaler::kPatience - 1; ++i) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 512);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 1024);
}

TEST(LossScaler, StaysBelowItsCeiling) {
  LossScaler scaler(LossScaler::kMax);
  for (int i = 0; i < LossScaler::kPatience; ++i) scaler.update(false);
  EXPECT_EQ(scaler.scale(), LossScaler::kMax);
}

TEST(LossScaler, ReportsAGradientNoScaleCanSave) {
  LossScaler scaler(LossScaler::kMin * 2);
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), LossScaler::kMin);
  try {
    scaler.update(true);
    FAIL() << "went on";
  } catch (const Error& e) {  // as any other divergence is told: no option was wrong by itself
    EXPECT_EQ(e.code(), ErrorCode::conflict);
    EXPECT_NE(std::string(e.what()).find("the run diverged"), std::string::npos) << e.what();
  }
}

TEST(LossScaler, RefusesImpossibleScales) {
  EXPECT_THROW(LossScaler(0.0), Error);
  EXPECT_THROW(LossScaler(-1.0), Error);
  EXPECT_THROW(LossScaler(1e30), Error);
  EXPECT_THROW(LossScaler(std::nan("")), Error);
}

TEST(LossScaler, GoesOnFromASavedState) {
  Rng rng(5);
  LossScaler whole(65536.0);
  LossScaler cut(65536.0);
  for (int i = 0; i < 20'000; ++i) {
    const bool overflow = rng.below(3000) == 0;
    EXPECT_EQ(whole.update(overflow), cut.update(overflow));
    if (i % 777 == 0) cut = LossScaler(LossScaler::State(cut.state()));
    ASSERT_EQ(whole.scale(), cut.scale());
  }
  EXPECT_GT(whole.state().skipped, 0);
}

}  // namespace
}  // namespace ductile::optim
