#include "ductile/base/paths.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <sys/stat.h>

namespace ductile {
namespace {

// Whether something lies at the path; throws where that cannot be seen.
bool look_at(const fs::path& path, struct stat& info) {
  if (::stat(path.c_str(), &info) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  if (errno == ELOOP) {  // will not pass by itself
    fail(ErrorCode::invalid_argument, "{}: {}", path.string(), std::strerror(ELOOP));
  }
  fail_errno(path.string(), errno);
}

bool has_kind(const fs::path& path, FileKind wanted) {
  const FileKind kind = kind_of(path);
  if (kind == FileKind::other) {
    fail(ErrorCode::invalid_argument, "{}: is {}, not a file or a folder", path.string(),
         kind_text(path));
  }
  return kind == wanted;
}

}  // namespace

FileKind kind_of(const fs::path& path) {
  struct stat info {};
  if (!look_at(path, info)) return FileKind::none;
  return S_ISREG(info.st_mode)   ? FileKind::file
         : S_ISDIR(info.st_mode) ? FileKind::folder
                                 : FileKind::other;
}

bool is_file(const fs::path& path) { return has_kind(path, FileKind::file); }
bool is_folder(const fs::path& path) { return has_kind(path, FileKind::folder); }

std::string kind_text(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return ::lstat(path.c_str(), &info) == 0 ? "a link that leads nowhere" : "not there";
  }
  return S_ISFIFO(info.st_mode)   ? "a FIFO"
         : S_ISSOCK(info.st_mode) ? "a socket"
         : S_ISREG(info.st_mode)  ? "a file"
         : S_ISDIR(info.st_mode)  ? "a folder"
                                  : "a device";
}

std::vector<fs::path> list_folder(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    paths.push_back(it->path());
  }
  if (error) fail_errno(folder.string(), error.value());
  std::sort(paths.begin(), paths.end());
  return paths;
}

Error error_of(const fs::filesystem_error& error) {
  try {
    fail_errno(error.path1().string(), error.code().value());
  } catch (const Error& known) {
    return known;
  }
}

}  // namespace ductile
