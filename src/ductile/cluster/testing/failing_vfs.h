#pragma once

#include <atomic>
#include <cstdint>

// A file system for SQLite that counts what changes files (writes, truncations, syncs, deletions,
// new files) and lets the n-th one fail, or end the process before it is done. It writes through to
// real files and waits for no disk.
namespace ductile::cluster::testing {

struct FailingVfs {
  enum class How : uint8_t {
    full,       // the disk is full: this change and all later ones, until heal()
    quota,      // the same of the user's share, which the system alone knows
    read_only,  // the same of a disk that may not be written any more
    broken,     // the same of a disk that fails
    error,      // this change alone fails
    kill,       // the process ends
  };

  // Registers it; its name for Database and Store.
  static const char* name();
  static void fail_at(int64_t n, How how);  // counted from now on, from 1
  static void heal();                       // nothing fails, the count begins anew
  static int64_t count();
  static int64_t reads();  // of pages, since the process began
};

}  // namespace ductile::cluster::testing
