#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ductile/base/error.h"

namespace ductile::serving {

// What a replica's process says of itself on its progress pipe.
struct ReplicaLine {
  std::optional<Error> failed;         // why it is about to end
  std::optional<std::string> told;     // for people
  std::optional<std::string> address;  // where it can be asked from now on
  std::optional<int64_t> version;      // of its weights, beside the address
  std::string place;                   // of that address: link::PeerAddress::place; may be empty
  std::optional<std::string> door;     // for a front in another place (replica_link.h)
};

// nullopt for a line that is none of a worker's.
std::optional<ReplicaLine> read_replica_line(std::string_view line);

}  // namespace ductile::serving
