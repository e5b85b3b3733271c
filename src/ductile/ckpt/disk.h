#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ductile/base/files.h"

namespace ductile::ckpt {

// The seam through which all changes of checkpoints on disk go, so that tests can fail, tear or
// kill at every operation. Reading does not go through it. Every method returns 0 (or a value >=
// 0), or minus the errno of what went wrong. Implementations must be usable from several threads.
class Disk {
 public:
  virtual ~Disk() = default;

  virtual int open_new(const fs::path& path) = 0;  // file descriptor, emptied or new, write only
  // Appends all bytes; on failure any part of them may have been written. Starts write-back, waits
  // for nothing.
  virtual int write(int fd, std::span<const std::byte> bytes) = 0;
  virtual int sync(int fd) = 0;  // until durable
  virtual int rename(const fs::path& from, const fs::path& to) = 0;
  virtual int remove(const fs::path& path) = 0;
  virtual int make_folder(const fs::path& path) = 0;     // fine if it is there
  virtual int sync_folder(const fs::path& path) = 0;     // names in it become durable
  virtual int64_t free_bytes(const fs::path& path) = 0;  // that this user may still write
};

// The disk of the operating system. It is stateless and lives as long as the program. Blocks that
// are aligned to 4096 bytes in memory bypass the page cache if the file system allows it (measured:
// a fifth of the CPU time of buffered writes, and the training data stay cached).
Disk& real_disk();

}  // namespace ductile::ckpt
