#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "ductile/cluster/principal.h"

namespace ductile::cluster {

// Who may use the page of a service, which any user of this machine can reach over its port. A link
// with a code that is good once lets a browser in as the user who got the link. From then on the
// browser has to show two things: a cookie, and a key that only scripts of the page's own origin
// can read, since a cookie is also sent to other ports of this machine, which may be another
// user's.
//
// Everything is in memory, so it ends with the service: while no service runs, somebody else may
// take its port and be shown what browsers have. Thread-safe; the number of links and of browsers
// is bounded for each user, the oldest go first.
class PageAccess {
 public:
  // `clock`: seconds that rise with real time alone; without one, those since the machine started.
  explicit PageAccess(std::function<double()> clock = {});

  void set_port(uint16_t port) { port_ = port; }
  uint16_t port() const { return port_; }

  // The address of the page with a code that is good once, for ten minutes.
  std::string link_for(const Principal& who);

  struct Pass {
    std::string cookie, key;
  };
  // Nothing: the code is unknown, old, or was used.
  std::optional<Pass> enter(std::string_view code);
  std::optional<Principal> principal_of(std::string_view cookie, std::string_view key);
  void leave(std::string_view cookie);

  static constexpr double kLinkSeconds = 600;
  static constexpr double kPassSeconds = 30 * 86400.0;
  static constexpr size_t kMostOfOne = 32;  // links, and browsers, of one user

 private:
  struct Entry {
    Principal who;
    std::string key;  // of a pass
    double made = 0;
    uint64_t number = 0;
  };
  // By the digest of the code or the cookie: how long a look-up takes says nothing about either.
  using Entries = std::map<std::string, Entry, std::less<>>;

  void add(Entries& entries, const std::string& secret, Entry entry, double seconds);

  const std::function<double()> clock_;
  std::atomic<uint16_t> port_ = 0;
  std::mutex mutex_;
  Entries links_, passes_;
  uint64_t made_ = 0;
};

}  // namespace ductile::cluster
