#include <string>
#include <string_view>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/spec/job.h"

namespace ductile::spec {

void require_data(const JobOptions& job, std::string_view remedy) {
  if (!job.python.object.empty()) return;
  for (const auto& [name, path] :
       {std::pair<const char*, const std::string&>{"data.path", job.data.path},
        {"data.test_path", job.data.test_path}}) {
    const bool is_pattern = job.data.format == "tar" && path.find('{') != std::string::npos;
    if (path.empty() || is_pattern) continue;  // a pattern is of many files
    FileKind kind = FileKind::other;
    try {
      kind = kind_of(path);
    } catch (const Error&) {  // who reads it says what is wrong with it
    }
    if (kind == FileKind::none)
      fail(ErrorCode::not_found, "{} = \"{}\": {}{}{}", name, path,
           fs::is_symlink(path) ? "a link that leads nowhere" : "there is no such file or folder",
           remedy.empty() ? "" : "; ", remedy);
  }
}

}  // namespace ductile::spec
