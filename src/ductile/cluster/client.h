#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"

namespace ductile::cluster {

// Requests to a service on this machine, over its unix socket. Errors of the service come as the
// Error that they were there.
class Client {
 public:
  // `folder`: of the service.
  explicit Client(const fs::path& folder) : socket_(folder / "api.sock") {}

  // Whether a service answers.
  bool reachable() const;

  // Throw unavailable if nobody answers. `path` has its query, if any, percent-encoded.
  nlohmann::ordered_json get(const std::string& path) const;
  // Carried out once, though it is sent again where the answer was lost.
  nlohmann::ordered_json post(const std::string& path, const nlohmann::json& body) const;

 private:
  const fs::path socket_;
};

// A text as part of a path or a query.
std::string percent_encoded(std::string_view text);

// Where a service keeps what it keeps if nobody says otherwise: $XDG_STATE_HOME/ductile, or
// ~/.local/state/ductile.
fs::path usual_folder(const char* const* environment);

}  // namespace ductile::cluster
