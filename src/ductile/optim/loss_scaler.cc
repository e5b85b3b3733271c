#include "ductile/optim/loss_scaler.h"

#include <algorithm>

#include "ductile/base/error.h"

namespace ductile::optim {

LossScaler::LossScaler(const State& state) : state_(state) {
  if (!(state.scale >= kMin && state.scale <= kMax)) {
    fail(ErrorCode::invalid_argument, "train.loss_scale = {} is outside [{}, {}]", state.scale,
         kMin, kMax);
  }
}

bool LossScaler::update(bool overflow) {
  if (!overflow) {
    if (++state_.good_steps == kPatience) {
      state_.scale = std::min(state_.scale * 2, kMax);
      state_.good_steps = 0;
    }
    return true;
  }
  ++state_.skipped;
  state_.good_steps = 0;
  if (state_.scale == kMin) {
    fail(ErrorCode::conflict,
         "the gradient is not finite even at the smallest loss scale, {}: the run diverged; try a "
         "smaller optimizer.lr, optimizer.clip_norm or train.precision = \"bf16\"",
         kMin);
  }
  state_.scale = std::max(state_.scale / 2, kMin);
  return false;
}

}  // namespace ductile::optim
