// A full disk must not keep anybody from ending the job that fills it: some room is kept for that.
#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/cluster/store.h"

namespace ductile::cluster {
namespace {

constexpr off_t kRequest = off_t{40} << 10;  // of one that commits alone, about

// For each job that runs, since it may be the one that fills the disk, and for some requests more.
off_t room_for(int64_t running) {
  constexpr off_t kOthers = off_t{1} << 20, kLeast = off_t{2} << 20, kMost = off_t{12} << 20;
  return std::clamp<off_t>(kOthers + running * kRequest, kLeast, kMost);
}

// Keeps blocks behind the end of SQLite's log. Nobody but SQLite writes there, so no job can take
// them, as it would take what another file gave back. False: the disk has none. True also where the
// file system knows no such blocks, or there is no log yet: then SQLite says what finds room.
bool keep_room_behind(const fs::path& log, off_t least) {
  const Descriptor fd(::open(log.c_str(), O_WRONLY | O_CLOEXEC));
  struct stat is {};
  if (!fd || ::fstat(fd.get(), &is) != 0) return true;
  constexpr off_t kBlock = 512;  // of st_blocks, on every file system
  if (off_t{is.st_blocks} * kBlock >= is.st_size + least) return true;
  for (const off_t room : {2 * least, least}) {  // more than is wanted, so that it is done seldom
    if (::fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, is.st_size, room) == 0) return true;
    if (errno != ENOSPC && errno != EDQUOT) return true;
  }
  return false;
}

}  // namespace

// Not on the file of SQLite's shared memory, nor on the database: to close those again would end
// the locks that this process has on them.
void Store::require_room() {
  int64_t running = 0;
  try {
    running = database_.integer("SELECT count(*) FROM jobs WHERE phase = 'running'", 0);
  } catch (const Error&) {  // the transaction says what is wrong
  }
  if (keep_room_behind(log_, room_for(running))) return;
  throw StoreError(
      Error(ErrorCode::unavailable,
            fmt::format("{}: its disk is full, but for a little that is kept for what ends jobs "
                        "(cancel, pause, revoke); free space on its disk",
                        database_.file().string())),
      StoreFault::full);
}

}  // namespace ductile::cluster
