#include "ductile/cli/trust.h"

#include <cerrno>
#include <string>

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile::cli {
namespace {

std::string name_of(uid_t user) {
  const passwd* entry = ::getpwuid(user);
  return entry != nullptr ? entry->pw_name : fmt::format("number {}", user);
}

}  // namespace

void require_trusted(const fs::path& run) {
  for (const fs::path& path :
       {run, run / "job.toml", run / "hosts.json", run / "tune.json", run / "former_plan.json"}) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) {
      if (errno == ENOENT) continue;
      fail_errno(path.string(), errno);
    }
    if (info.st_uid == 0 || info.st_uid == ::geteuid()) continue;
    fail(
        ErrorCode::invalid_argument,
        "{}: belongs to user {}, and going on runs what the files say (the launcher in hosts.json, "
        "model.library in job.toml) as user {}; look at them, then add --trust",
        path.string(), name_of(info.st_uid), name_of(::geteuid()));
  }
}

}  // namespace ductile::cli
