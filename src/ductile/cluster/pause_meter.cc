#include <algorithm>

#include "ductile/cluster/pause_meter_impl.h"

namespace ductile::cluster {

void PauseMeter::begin(double now) {
  if (!measures_) stopped_ = now;
  begun_ = now;
  measures_ = true;
  first_.reset();
}

void PauseMeter::formed() {
  if (!known_) known_ = Reached{-1, 0, 0};
}

std::optional<double> PauseMeter::see(double now, const Reached& reached) {
  if (now - begun_ > kLongest) measures_ = false;
  if (!measures_) {
    known_ = reached;
    return {};
  }
  if (!known_) known_ = reached;
  if (reached.generation <= known_->generation) {
    if (reached.step > known_->step) stopped_ = now;
    known_ = reached;
    return {};
  }
  if (first_ && first_->at.generation != reached.generation) first_.reset();
  if (reached.step <= reached.start) return {};
  if (!first_) {
    first_ = {now, reached};
    return {};
  }
  const int64_t later = reached.step - first_->at.step;
  if (later <= 0) return {};
  const double step = (now - first_->time) / static_cast<double>(later);
  const double steps = step * static_cast<double>(first_->at.step - first_->at.start);
  measures_ = false;
  known_ = reached;
  return std::max(0.0, first_->time - stopped_ - steps);
}

}  // namespace ductile::cluster
