#pragma once

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

namespace ductile::cli {

// A temporary folder of a command. A process that is killed leaves it, and the next one of the same
// user removes it. It is recognised by a file in it, the mark, which names it, and whose lock its
// process holds: no other folder is touched, whatever its name.
class WorkFolder {
 public:
  WorkFolder();  // throws unavailable
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const fs::path& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
  Descriptor mark_;
};

}  // namespace ductile::cli
