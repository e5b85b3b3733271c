#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/ckpt/manifest_impl.h"

namespace ductile::ckpt {

struct ManifestFile {
  int64_t step = 0;
  fs::path path;
};

fs::path manifest_path(const fs::path& folder, int64_t step);

// The manifests of a checkpoint folder by their names, newest step first; none where the folder
// does not exist. Throws unavailable when it cannot be listed.
std::vector<ManifestFile> list_manifests(const fs::path& folder);

// Reads and checks one. Throws as parse_manifest does, not_found when it is gone.
Manifest load_manifest(const ManifestFile& file);

}  // namespace ductile::ckpt
