#include "ductile/serving/silent_hosts.h"

#include <algorithm>

namespace ductile::serving {

std::chrono::seconds SilentHosts::lost(const std::string& host, net::Deadline begun,
                                       net::Deadline now) {
  Host& known = hosts_[host];
  if (known.losses > 0 && begun <= known.last) return std::chrono::seconds(0);
  if (known.losses > 0 && now - known.until > kMemory) known = {};
  ++known.losses;
  known.last = known.until = now;
  if (known.losses < 2) return std::chrono::seconds(0);  // one may have had trouble of its own
  constexpr int kMostDoublings = 10;
  const std::chrono::seconds rest =
      std::min(kLongestRest, kFirstRest * (1 << std::min(known.losses - 2, kMostDoublings)));
  known.until = now + rest;
  return rest;
}

bool SilentHosts::rests(const std::string& host, net::Deadline now) const {
  const auto found = hosts_.find(host);
  return found != hosts_.end() && now < found->second.until;
}

int SilentHosts::losses(const std::string& host) const {
  const auto found = hosts_.find(host);
  return found == hosts_.end() ? 0 : found->second.losses;
}

std::optional<net::Deadline> SilentHosts::next_end(net::Deadline now) const {
  std::optional<net::Deadline> out;
  for (const auto& [name, host] : hosts_)
    if (now < host.until && (!out || host.until < *out)) out = host.until;
  return out;
}

}  // namespace ductile::serving
