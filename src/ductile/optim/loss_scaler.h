#pragma once

#include <cstdint>

namespace ductile::optim {

// Dynamic loss scaling for fp16 (Micikevicius et al., "Mixed precision training", ICLR'18, section
// 3.2): the loss is multiplied by scale() before the backward pass, so that small gradients do not
// vanish; a step whose gradient overflowed is skipped and the scale halved, and after `kPatience`
// good steps in a row it is doubled. A plain value; saved and restored through state().
class LossScaler {
 public:
  static constexpr int64_t kPatience = 2000;
  static constexpr double kMin = 1.0 / 65536;
  static constexpr double kMax = 16777216;  // 2^24

  struct State {
    double scale = 65536;
    int64_t good_steps = 0;  // since the scale last changed
    int64_t skipped = 0;     // steps lost to overflow, in all
  };

  // Throws invalid_argument when the scale is not within [kMin, kMax].
  explicit LossScaler(double first_scale) : LossScaler(State{.scale = first_scale}) {}
  explicit LossScaler(const State& state);

  double scale() const { return state_.scale; }

  // Takes note of the step's gradient (`overflow`: its norm is not finite) and returns whether the
  // update may be applied. Throws conflict if the gradient overflows even at the smallest
  // scale: then it is itself not finite, and no scale can help.
  bool update(bool overflow);

  const State& state() const { return state_; }

 private:
  State state_;
};

}  // namespace ductile::optim
