#include "ductile/data/data_format.h"

#include <string_view>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"

namespace ductile::data {
namespace {

// The format that one file's name tells, or "".
std::string format_of_name(std::string_view name) {
  if (name.ends_with("-ubyte") || name.ends_with("-ubyte.gz")) return "idx";
  if (name.ends_with(".tar")) return "tar";
  if (name.ends_with(".records")) return "records";
  return "";
}

}  // namespace

std::string guess_data_format(const fs::path& path) {
  if (path.extension() == ".tar") return "tar";  // also a pattern, "shard-{000..007}.tar"
  if (kind_of(path) == FileKind::none) {
    fail(ErrorCode::not_found, "{}: {}", path.string(),
         fs::is_symlink(path) ? "a link that leads nowhere" : "no such data");
  }
  std::string format;
  if (!is_folder(path)) {
    format = format_of_name(path.filename().string());
    if (format.empty() && path.extension() == ".bin") format = "tokens";
  } else if (is_file(path / "data_batch_1.bin")) {
    format = "cifar10";
  } else if (is_file(path / "train.bin") && is_file(path / "test.bin")) {
    format = "cifar100";
  } else {
    bool folders = false;
    for (const fs::path& entry : list_folder(path)) {
      const FileKind kind = kind_of(entry);
      folders = folders || kind == FileKind::folder;
      if (format.empty() && kind == FileKind::file)
        format = format_of_name(entry.filename().string());
    }
    if (format.empty() && folders) format = "folder";
  }
  if (format.empty()) {
    fail(ErrorCode::invalid_argument,
         "{}: file names do not tell what this is; say which data.format it has (idx, cifar10, "
         "cifar100, folder, tar, records or tokens)",
         path.string());
  }
  return format;
}

}  // namespace ductile::data
