// A full disk must not keep anybody from ending the job that fills it: some room is kept for that.
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/cluster/store.h"

namespace ductile::cluster {
namespace {

constexpr off_t kRoom = off_t{2} << 20;  // about fifty requests, if each commits alone

// Keeps blocks behind the end of SQLite's log. Nobody but SQLite writes there, so no job can take
// them, as it would take what another file gave back. False: the disk has none. True also where the
// file system knows no such blocks, or there is no log yet: then SQLite says what finds room.
bool keep_room_behind(const fs::path& log) {
  const Descriptor fd(::open(log.c_str(), O_WRONLY | O_CLOEXEC));
  struct stat is {};
  if (!fd || ::fstat(fd.get(), &is) != 0) return true;
  constexpr off_t kBlock = 512;  // of st_blocks, on every file system
  if (off_t{is.st_blocks} * kBlock >= is.st_size + kRoom) return true;
  for (const off_t room : {2 * kRoom, kRoom}) {  // more than is wanted, so that it is done seldom
    if (::fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, is.st_size, room) == 0) return true;
    if (errno != ENOSPC && errno != EDQUOT) return true;
  }
  return false;
}

}  // namespace

// Not on the file of SQLite's shared memory, nor on the database: to close those again would end
// the locks that this process has on them.
void Store::require_room() const {
  if (keep_room_behind(log_)) return;
  throw StoreError(
      Error(ErrorCode::unavailable,
            fmt::format("{}: its disk is full, but for a little that is kept for what ends jobs "
                        "(cancel, pause, revoke); free space on its disk",
                        database_.file().string())),
      StoreFault::full);
}

}  // namespace ductile::cluster
