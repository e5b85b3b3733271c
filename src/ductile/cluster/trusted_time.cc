#include <algorithm>
#include <cmath>

#include "ductile/cluster/trusted_time_impl.h"

namespace ductile::cluster {

std::optional<double> TrustedTime::now(double wall, double steady) {
  if (wall > known_ + kDay) {
    if (!doubt_ || std::abs(wall - doubt_->wall) > kDay) doubt_ = Doubt{steady, wall};
    doubt_->wall = wall;
    if (steady < doubt_->since + kDay) return std::nullopt;
  }
  doubt_.reset();
  known_ = std::max(known_, wall);
  return wall;
}

}  // namespace ductile::cluster
