#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "ductile/base/clock.h"
#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/cluster/database.h"
#include "ductile/cluster/schema.h"
#include "ductile/cluster/store_check.h"
#include "ductile/page/numbers.h"

namespace ductile::cluster {
namespace {

void sync_to_disk(const fs::path& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) fail_errno(path.string(), errno);
}

// A file of this call alone, beside the one that it is to become. Its name is of no other call, so
// that two at once do not take it from each other, and nobody's file of that name is lost.
class PartFile {
 public:
  explicit PartFile(const fs::path& target) {
    std::string name = target.string() + ".part-XXXXXX";
    const Descriptor made(::mkostemp(name.data(), O_CLOEXEC));
    if (!made) fail_errno(target.string(), errno);
    path_ = name;
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  ~PartFile() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove(path_, ignored);
    if (!path_.empty()) fs::remove(path_.string() + "-journal", ignored);  // SQLite's, of a failure
  }

  const fs::path& path() const { return path_; }

  // Never in the place of another file that was made meanwhile, where the disk can see to that.
  void become(const fs::path& target) {
    if (::link(path_.c_str(), target.c_str()) == 0) return;
    const auto lacks_it = [] { return errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS; };
    bool done = false;
    if (lacks_it()) {  // links
      done = ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0;
      if (!done && (errno == EINVAL || lacks_it()))
        done = ::rename(path_.c_str(), target.c_str()) == 0;
    }
    if (done)
      path_.clear();
    else if (errno == EEXIST)
      fail_taken(target);
    else
      fail_errno(target.string(), errno);
  }

  [[noreturn]] static void fail_taken(const fs::path& target) {
    fail(ErrorCode::conflict, "{}: there is something already; give another name", target.string());
  }

 private:
  fs::path path_;
};

// So that whoever begins on it can say what it does not know: of a backup on which no service has
// begun, what happened since that one was made. A store of an old schema has no place for that. By
// the store's connection, since a copy may lie on a network file system.
void mark_copy(Database& store, const fs::path& part) {
  store.run("ATTACH ? AS copy", part.string());
  store.execute("PRAGMA copy.journal_mode = MEMORY");  // it has no name yet, and leaves no file
  if (store.integer("SELECT count(*) FROM copy.sqlite_schema WHERE name = 'memory'", 0) > 0)
    store.run("INSERT OR IGNORE INTO copy.memory (name, value) VALUES (?, ?)",
              std::string(kBackupMark), page::local_time(wall_seconds()));
}

// Of the store nothing is written here.
bool is_of_target(const StoreError& error) {
  const bool of_file =
      error.fault() == StoreFault::failing || error.fault() == StoreFault::read_only;
  return of_file && !error.cause().in_reading;
}

// SQLite names the file that it reads, whichever of the two it is that fails.
void copy_store(const fs::path& file, const fs::path& part, const fs::path& target) {
  Database store(file, Database::Access::write);
  require_written(store);
  try {
    store.run("VACUUM INTO ?", part.string());
    mark_copy(store, part);
  } catch (const StoreError& error) {
    if (error.fault() == StoreFault::full)
      throw StoreError(Error(ErrorCode::unavailable,
                             fmt::format("{}: the backup finds no room: free space on its disk, or "
                                         "choose another one",
                                         target.string())),
                       StoreFault::full);
    if (is_of_target(error))
      throw StoreError(
          Error(error.code(),
                fmt::format("{}: the backup was not made, since its file cannot be written: {}; "
                            "find what hinders that (dmesg, ulimit -f), or choose another disk",
                            target.string(), error.cause().text)),
          error.fault());
    throw StoreError(Error(error).with_context(target.string() + ": the backup was not made"),
                     error.fault());
  }
}

}  // namespace

std::string backup_text(std::string_view made) {
  return fmt::format("the store is a backup of {}, and what happened since is not known here: {}",
                     made, kForgotten);
}

// Under another name until it is whole: a backup that was cut short is none.
void back_up_store(const fs::path& folder, const fs::path& to) {
  const fs::path file = folder / "store.db", target = fs::absolute(to);
  if (kind_of(file) == FileKind::none)
    fail(ErrorCode::not_found, "{}: there is no store; --folder says where the service's is",
         file.string());
  if (kind_of(target) != FileKind::none) PartFile::fail_taken(target);
  PartFile part(target);
  copy_store(file, part.path(), target);
  sync_to_disk(part.path());
  part.become(target);
  sync_to_disk(target.parent_path());
}

}  // namespace ductile::cluster
