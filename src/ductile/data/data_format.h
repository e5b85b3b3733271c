#pragma once

#include <string>

#include "ductile/base/files.h"

namespace ductile::data {

// The data.format that fits what lies at `path`, by file names alone: "idx", "cifar10", "cifar100",
// "folder", "tar", "records" or "tokens". Throws not_found where nothing is there, and
// invalid_argument, naming the formats, where the names tell nothing.
std::string guess_data_format(const fs::path& path);

}  // namespace ductile::data
