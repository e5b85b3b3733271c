#include "ductile/run/checkpoints.h"

#include <system_error>

#include "ductile/run/folder.h"

namespace ductile::run {

fs::path checkpoints_of(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path / "manifests", error)) return path;
  return RunFolder::open(path).checkpoints();
}

}  // namespace ductile::run
