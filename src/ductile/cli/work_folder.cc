#include "ductile/cli/work_folder.h"

#include <cerrno>
#include <ctime>
#include <string>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ductile::cli {
namespace {

constexpr std::string_view kPrefix = "ductile-command-files";
constexpr const char* kMark = ".ductile-left-over";
constexpr std::time_t kYoung = 60;  // seconds; what a killed command started may be ending still

// What the mark of a folder says. It names the folder, so that of a copy, or of one that its user
// has renamed, is not its own.
std::string mark_of(const fs::path& folder) {
  return "Files of a ductile command. Once nobody holds the lock of this file, the next command of "
         "this user removes the folder " +
         folder.filename().string() + ".\n";
}

bool is_own(int fd, mode_t type) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) == type &&
         status.st_uid == ::geteuid();
}

bool is_young(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) != 0 || std::time(nullptr) - status.st_mtime < kYoung;
}

// Marks a new folder; returns the mark, with its lock. One that cannot be marked or locked here is
// used all the same: nobody recognises it, so it stays if this process is killed. The text comes
// after the lock: whoever locks the mark before that reads none.
Descriptor marked(const fs::path& folder) {
  const std::string text = mark_of(folder);
  Descriptor out(
      ::open((folder / kMark).c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!out) return out;
  int rc = 0;
  do rc = ::flock(out.get(), LOCK_EX);
  while (rc != 0 && errno == EINTR);
  if (rc != 0 || ::write(out.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    out.close();
  return out;
}

Descriptor folder_at(const fs::path& path) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// The mark of a folder that a killed command left, locked; none where it is anything else.
Descriptor mark_of_left_over(const Descriptor& folder, const std::string& text) {
  if (!is_own(folder.get(), S_IFDIR) || is_young(folder.get())) return {};
  Descriptor mark(::openat(folder.get(), kMark, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!mark || !is_own(mark.get(), S_IFREG)) return {};
  if (::flock(mark.get(), LOCK_EX | LOCK_NB) != 0) return {};
  std::string found(text.size() + 1, '\0');
  const ssize_t size = ::pread(mark.get(), found.data(), found.size(), 0);
  if (size < 0) return {};
  found.resize(static_cast<size_t>(size));
  if (found != text) return {};
  return mark;
}

// Of the open folder, whatever lies at its path by now; links are removed, not followed. The mark
// goes last: what a process that is killed meanwhile leaves is still recognised.
void remove_marked(const Descriptor& folder, const fs::path& path) {
  const fs::path inside = "/proc/self/fd/" + std::to_string(folder.get());
  std::error_code error;
  for (fs::directory_iterator at(inside, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename() == kMark) continue;
    std::error_code stays;
    fs::remove_all(at->path(), stays);
    if (stays) return;
  }
  if (!error && ::unlinkat(folder.get(), kMark, 0) == 0) ::rmdir(path.c_str());
}

// What cannot be removed, or looked at, is in nobody's way.
void remove_left_over_beside(const fs::path& own) {
  std::error_code error;
  for (fs::directory_iterator at(own.parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    const fs::path& path = at->path();
    if (path == own || !path.filename().string().starts_with(kPrefix)) continue;
    const Descriptor folder = folder_at(path);
    if (!folder) continue;
    if (const Descriptor mark = mark_of_left_over(folder, mark_of(path)))
      remove_marked(folder, path);
  }
}

}  // namespace

WorkFolder::WorkFolder() : folder_(kPrefix), mark_(marked(folder_.path())) {
  remove_left_over_beside(folder_.path());
}

WorkFolder::~WorkFolder() {
  if (const Descriptor folder = folder_at(folder_.path())) remove_marked(folder, folder_.path());
}

}  // namespace ductile::cli
