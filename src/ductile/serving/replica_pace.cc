#include "ductile/serving/replica_pace.h"

#include <algorithm>

namespace ductile::serving {

void ReplicaPace::lost() {
  ++lost_;
  timer_ = loop_.after(pause_, [this] {
    lost_ = 0;
    again_();
  });
  pause_ = std::min(2 * pause_, kLongestPause);
}

int64_t ReplicaPace::to_start(int64_t wanted, int64_t there) const {
  return std::max<int64_t>(0, wanted - there - lost_);
}

}  // namespace ductile::serving
