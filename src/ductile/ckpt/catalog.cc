#include <algorithm>
#include <system_error>

#include "ductile/base/error.h"
#include "ductile/ckpt/catalog_impl.h"

namespace ductile::ckpt {

fs::path manifest_path(const fs::path& folder, int64_t step) {
  return folder / "manifests" / manifest_name(step);
}

std::vector<ManifestFile> list_manifests(const fs::path& folder) {
  std::vector<ManifestFile> files;
  std::error_code error;
  fs::directory_iterator it(folder / "manifests", error);
  if (error == std::errc::no_such_file_or_directory) return files;
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    ManifestFile file{0, it->path()};
    if (parse_manifest_name(file.path.filename().string(), file.step)) files.push_back(file);
  }
  if (error) fail_errno((folder / "manifests").string(), error.value());
  std::sort(files.begin(), files.end(),
            [](const ManifestFile& a, const ManifestFile& b) { return a.step > b.step; });
  return files;
}

Manifest load_manifest(const ManifestFile& file) {
  constexpr uintmax_t kMaxBytes = uintmax_t{256} << 20;
  std::error_code error;
  const uintmax_t size = fs::file_size(file.path, error);
  if (!error && size > kMaxBytes) {
    fail(ErrorCode::data_loss, "the manifest has {} bytes; none is that big", size);
  }
  Manifest m = parse_manifest(read_file(file.path));
  if (m.step != file.step) {
    fail(ErrorCode::data_loss, "the manifest is that of step {}, under another name", m.step);
  }
  return m;
}

}  // namespace ductile::ckpt
