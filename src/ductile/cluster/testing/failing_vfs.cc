#include "ductile/cluster/testing/failing_vfs.h"

#include <cerrno>
#include <cstring>

#include <sqlite3.h>
#include <unistd.h>

namespace ductile::cluster::testing {
namespace {

constexpr const char* kName = "ductile-failing";

std::atomic<int64_t> changes, at, pages;
std::atomic<FailingVfs::How> how;

// What the change of a file has to return; SQLITE_OK: go on.
int next(int error) {
  const int64_t n = ++changes, when = at;
  if (when == 0 || n < when) return SQLITE_OK;
  switch (how.load()) {
    case FailingVfs::How::full:
      return SQLITE_FULL;
    case FailingVfs::How::quota:
      errno = EDQUOT;
      return error;
    case FailingVfs::How::read_only:
      errno = EROFS;
      return error;
    case FailingVfs::How::broken:
      errno = EIO;
      return error;
    case FailingVfs::How::error:
      errno = EIO;
      return n == when ? error : SQLITE_OK;
    case FailingVfs::How::kill:
      _exit(77);
  }
  return SQLITE_OK;
}

sqlite3_vfs* below() { return sqlite3_vfs_find("unix"); }

// The file of the VFS below lies behind this one, in the same memory.
struct File {
  sqlite3_file head;
  sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};
sqlite3_file* real(sqlite3_file* file) { return reinterpret_cast<File*>(file)->real(); }

int x_close(sqlite3_file* f) { return real(f)->pMethods->xClose(real(f)); }
int x_read(sqlite3_file* f, void* to, int n, sqlite3_int64 from) {
  ++pages;
  return real(f)->pMethods->xRead(real(f), to, n, from);
}
int x_write(sqlite3_file* f, const void* from, int n, sqlite3_int64 to) {
  if (const int error = next(SQLITE_IOERR_WRITE)) return error;
  return real(f)->pMethods->xWrite(real(f), from, n, to);
}
int x_truncate(sqlite3_file* f, sqlite3_int64 size) {
  if (const int error = next(SQLITE_IOERR_TRUNCATE)) return error;
  return real(f)->pMethods->xTruncate(real(f), size);
}
int x_sync(sqlite3_file*, int) { return next(SQLITE_IOERR_FSYNC); }
int x_size(sqlite3_file* f, sqlite3_int64* size) {
  return real(f)->pMethods->xFileSize(real(f), size);
}
int x_lock(sqlite3_file* f, int kind) { return real(f)->pMethods->xLock(real(f), kind); }
int x_unlock(sqlite3_file* f, int kind) { return real(f)->pMethods->xUnlock(real(f), kind); }
int x_reserved(sqlite3_file* f, int* out) {
  return real(f)->pMethods->xCheckReservedLock(real(f), out);
}
int x_control(sqlite3_file* f, int op, void* arg) {
  return real(f)->pMethods->xFileControl(real(f), op, arg);
}
int x_sector(sqlite3_file* f) { return real(f)->pMethods->xSectorSize(real(f)); }
int x_device(sqlite3_file* f) { return real(f)->pMethods->xDeviceCharacteristics(real(f)); }
int x_shm_map(sqlite3_file* f, int page, int size, int extend, void volatile** out) {
  return real(f)->pMethods->xShmMap(real(f), page, size, extend, out);
}
int x_shm_lock(sqlite3_file* f, int offset, int n, int flags) {
  return real(f)->pMethods->xShmLock(real(f), offset, n, flags);
}
void x_shm_barrier(sqlite3_file* f) { real(f)->pMethods->xShmBarrier(real(f)); }
int x_shm_unmap(sqlite3_file* f, int remove) {
  return real(f)->pMethods->xShmUnmap(real(f), remove);
}

const sqlite3_io_methods kMethods = {
    2,          x_close,       x_read,      x_write,   x_truncate, x_sync,   x_size,
    x_lock,     x_unlock,      x_reserved,  x_control, x_sector,   x_device, x_shm_map,
    x_shm_lock, x_shm_barrier, x_shm_unmap, nullptr,   nullptr,
};

int x_open(sqlite3_vfs*, const char* name, sqlite3_file* f, int flags, int* out) {
  auto* const file = reinterpret_cast<File*>(f);
  file->head.pMethods = nullptr;
  const int code = below()->xOpen(below(), name, file->real(), flags, out);
  if (file->real()->pMethods != nullptr) file->head.pMethods = &kMethods;
  return code;
}

int x_delete(sqlite3_vfs*, const char* name, int sync) {
  if (const int error = next(SQLITE_IOERR_DELETE)) return error;
  return below()->xDelete(below(), name, sync);
}

}  // namespace

const char* FailingVfs::name() {
  static const bool registered = [] {
    static sqlite3_vfs vfs = *below();
    vfs.szOsFile = static_cast<int>(sizeof(File)) + below()->szOsFile;
    vfs.zName = kName;
    vfs.pNext = nullptr;
    vfs.xOpen = x_open;
    vfs.xDelete = x_delete;
    return sqlite3_vfs_register(&vfs, 0) == SQLITE_OK;
  }();
  return registered ? kName : nullptr;
}

void FailingVfs::fail_at(int64_t n, How what) {
  changes = 0;
  how = what;
  at = n;
}
void FailingVfs::heal() {
  at = 0;
  changes = 0;
}
int64_t FailingVfs::count() { return changes; }
int64_t FailingVfs::reads() { return pages; }

}  // namespace ductile::cluster::testing
