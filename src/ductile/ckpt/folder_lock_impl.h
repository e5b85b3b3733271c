#pragma once

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

namespace ductile::ckpt {

// Exclusive right to change a checkpoint folder, held from construction to destruction (or the
// death of the process, however it dies). Throws conflict, naming the holder, when someone else has
// it.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder);

 private:
  Descriptor fd_;
};

}  // namespace ductile::ckpt
