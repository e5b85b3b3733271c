#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "ductile/net/socket.h"

namespace ductile::serving {

// Hosts on which one replica after the other went silent, although each of them began there: as
// where a host can be told to start replicas, and requests do not reach it. Such a host rests
// before the next one is started on it, for twice as long each time. A function of its calls alone.
class SilentHosts {
 public:
  static constexpr std::chrono::seconds kFirstRest{30}, kLongestRest{300};
  // Without a loss for so long after its last rest a host is like any other again.
  static constexpr std::chrono::seconds kMemory{600};

  // At `now` it counts as lost that a replica which was started on the host at `begun` is silent.
  // How long the host rests from now on; 0: not at all. Replicas that began before the last loss
  // are of the same outage, so that many on one host count as one.
  std::chrono::seconds lost(const std::string& host, net::Deadline begun, net::Deadline now);

  bool rests(const std::string& host, net::Deadline now) const;
  // How often, one after the other; 0: not lately.
  int losses(const std::string& host) const;
  // When the first of the hosts that rest now has rested.
  std::optional<net::Deadline> next_end(net::Deadline now) const;

 private:
  struct Host {
    int losses = 0;
    net::Deadline last{};  // loss
    net::Deadline until{};
  };
  std::map<std::string, Host> hosts_;
};

}  // namespace ductile::serving
