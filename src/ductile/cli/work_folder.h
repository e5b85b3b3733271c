#pragma once

#include <string_view>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

namespace ductile::cli {

// A temporary folder of a command. A process that is killed leaves it, and the next one of the same
// user removes it: whoever has one holds its lock, so one that nobody holds is left over.
class WorkFolder {
 public:
  WorkFolder();  // throws unavailable

  const fs::path& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
  Descriptor lock_;  // of the folder itself
};

}  // namespace ductile::cli
