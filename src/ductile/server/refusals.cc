#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "ductile/server/refusals_impl.h"

namespace ductile::server {

std::vector<std::string> Refusals::take(const std::vector<net::Refusal>& refused,
                                        net::Deadline now) {
  std::vector<std::string> lines;
  if (!refused.empty() && untold_ == 0 && now >= heard_at_ + kLongest) *this = {};
  for (const net::Refusal& one : refused) {
    heard_at_ = now;
    if (told_ < kAlone) {
      ++told_;
      next_ = now + window_;
      lines.push_back(one.address + ": " + one.reason);
    } else {
      ++untold_;
      last_ = one;
    }
  }
  if (untold_ > 0 && now >= next_) {
    lines = rest();
    window_ = std::min(2 * window_, kLongest);
    next_ = now + window_;
  }
  return lines;
}

std::vector<std::string> Refusals::rest() {
  if (untold_ == 0) return {};
  return {fmt::format("{} more refused, the last: {}: {}", std::exchange(untold_, 0), last_.address,
                      last_.reason)};
}

}  // namespace ductile::server
