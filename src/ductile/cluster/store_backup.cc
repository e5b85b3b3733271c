#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/cluster/database.h"
#include "ductile/cluster/store_check.h"

namespace ductile::cluster {
namespace {

void sync_to_disk(const fs::path& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) fail_errno(path.string(), errno);
}

}  // namespace

// Under another name until it is whole: a backup that was cut short is none.
void back_up_store(const fs::path& folder, const fs::path& to) {
  const fs::path file = folder / "store.db", target = fs::absolute(to);
  const fs::path part = target.string() + ".part";
  if (kind_of(file) == FileKind::none)
    fail(ErrorCode::not_found, "{}: there is no store; --folder says where the service's is",
         file.string());
  if (kind_of(target) != FileKind::none)
    fail(ErrorCode::conflict, "{}: there is something already; give another name", target.string());
  std::error_code ignored;
  fs::remove(part, ignored);  // of one that was killed
  const Descriptor made(::open(part.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (made.get() < 0) fail_errno(part.string(), errno);
  try {
    Database(file, Database::Access::write).run("VACUUM INTO ?", part.string());
    sync_to_disk(part);
    // Never in the place of another one that was made meanwhile, where the disk can see to that.
    if (::link(part.c_str(), target.c_str()) != 0) {
      if (errno != EPERM && errno != EOPNOTSUPP) fail_errno(target.string(), errno);
      if (::rename(part.c_str(), target.c_str()) != 0) fail_errno(target.string(), errno);
    }
  } catch (...) {
    fs::remove(part, ignored);
    throw;
  }
  fs::remove(part, ignored);
  sync_to_disk(target.parent_path());
}

}  // namespace ductile::cluster
