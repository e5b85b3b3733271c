#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"

// `membership.json`: {"checksum": "<CRC-32C of the rest>", "state": {...}}.
namespace ductile::link {

fs::path state_file(const fs::path& run);

std::string sealed(const nlohmann::json& state);

// The state in the file, if there is a file. A file from a version that wrote no checksum is
// accepted unchecked. Throws data_loss, naming the file and the remedy, if it is damaged.
std::optional<nlohmann::json> read_state(const fs::path& file);

// The remedy for a damaged file.
std::string state_remedy(const fs::path& file);

}  // namespace ductile::link
