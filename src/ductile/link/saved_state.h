#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"

// `membership.json`: {"checksum": "<CRC-32C of the rest>", "state": {...}}.
namespace ductile::link {

fs::path state_file(const fs::path& run);

std::string sealed(const nlohmann::json& state);

// The state in the file; none where there is no file. One of a version that wrote no checksum is
// taken as it is. Throws data_loss, naming the file and the remedy, where it is damaged.
std::optional<nlohmann::json> read_state(const fs::path& file);

// What to do about a damaged one.
std::string state_remedy(const fs::path& file);

}  // namespace ductile::link
