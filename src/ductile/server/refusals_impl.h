#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "ductile/net/gate.h"

namespace ductile::server {

// Who was refused at a job's door, for its event log: anybody can knock, as often as he likes, and
// must not fill a disk. The first few are told one by one, then there is a line a minute at most,
// and as they go on one every two, four ... up to sixty. After an hour without any it begins anew.
class Refusals {
 public:
  // The lines for those refused since the last call. `now` never decreases.
  std::vector<std::string> take(const std::vector<net::Refusal>& refused, net::Deadline now);
  // For those not told yet, at the end.
  std::vector<std::string> rest();

 private:
  static constexpr int kAlone = 20;
  static constexpr std::chrono::minutes kFirst{1}, kLongest{60};

  int told_ = 0;
  int64_t untold_ = 0;
  net::Refusal last_;
  net::Deadline heard_at_{}, next_{};
  std::chrono::minutes window_ = kFirst;
};

}  // namespace ductile::server
