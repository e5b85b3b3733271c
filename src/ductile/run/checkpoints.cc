#include "ductile/run/checkpoints.h"

#include <system_error>

namespace ductile::run {

fs::path checkpoints_of(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path / "manifests", error)) return path;
  return RunFolder::open(path).checkpoints();
}

fs::path initial_weights_of(const RunFolder& folder) { return folder.path() / kInitialWeights; }

}  // namespace ductile::run
