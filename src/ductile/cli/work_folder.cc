#include "ductile/cli/work_folder.h"

#include <cstdlib>
#include <ctime>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ductile::cli {
namespace {

constexpr std::string_view kPrefix = "ductile-work";
constexpr std::time_t kYoung = 60;  // seconds; one that is made just now has no lock yet

// Its lock; none where somebody else has it.
Descriptor locked(const fs::path& folder) {
  Descriptor out(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (out && ::flock(out.get(), LOCK_EX | LOCK_NB) != 0) out.close();
  return out;
}

void remove_left_over(const fs::path& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return;
  if (status.st_uid != ::geteuid() || std::time(nullptr) - status.st_mtime < kYoung) return;
  const Descriptor lock = locked(folder);
  if (!lock) return;
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

// What cannot be removed, or looked at, is in nobody's way.
void remove_left_over_beside(const fs::path& own) {
  std::error_code error;
  for (fs::directory_iterator at(own.parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.size() == own.filename().string().size() && name.starts_with(kPrefix) &&
        at->path() != own)
      remove_left_over(at->path());
  }
}

}  // namespace

WorkFolder::WorkFolder() : folder_(kPrefix), lock_(locked(folder_.path())) {
  remove_left_over_beside(folder_.path());
}

}  // namespace ductile::cli
