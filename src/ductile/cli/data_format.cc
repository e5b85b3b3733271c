#include "ductile/cli/data_format.h"

#include <string_view>

#include "ductile/base/error.h"

namespace ductile::cli {
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
  std::error_code error;
  if (path.extension() == ".tar") return "tar";  // also a pattern, "shard-{000..007}.tar"
  if (!fs::exists(path, error)) fail(ErrorCode::not_found, "{}: no such data", path.string());
  std::string format;
  if (!fs::is_directory(path, error)) {
    format = format_of_name(path.filename().string());
    if (format.empty() && path.extension() == ".bin") format = "tokens";
  } else if (fs::exists(path / "data_batch_1.bin", error)) {
    format = "cifar10";
  } else if (fs::exists(path / "train.bin", error) && fs::exists(path / "test.bin", error)) {
    format = "cifar100";
  } else {
    bool folders = false;
    for (const auto& entry : fs::directory_iterator(path)) {
      folders = folders || entry.is_directory(error);
      if (format.empty() && entry.is_regular_file(error))
        format = format_of_name(entry.path().filename().string());
    }
    if (format.empty() && folders) format = "folder";
  }
  if (format.empty()) {
    fail(
        ErrorCode::invalid_argument,
        "{}: file names do not tell what this is; say it with --set data.format=... (idx, cifar10, "
        "cifar100, folder, tar, records or tokens)",
        path.string());
  }
  return format;
}

}  // namespace ductile::cli
