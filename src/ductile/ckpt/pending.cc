#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <system_error>

#include "ductile/base/error.h"
#include "ductile/ckpt/catalog_impl.h"
#include "ductile/ckpt/pending_impl.h"

namespace ductile::ckpt {
namespace {

std::string tagged(std::string name, std::string_view tag) {
  return name.insert(name.size() - std::string_view(".json").size(), "." + std::string(tag));
}

// Undoes tagged(); false for other names.
bool parse_tagged(const std::string& name, int64_t& step, std::string& tag) {
  const size_t begin = name.find('.');
  const size_t end = name.rfind('.');
  if (begin == std::string::npos || begin == end) return false;
  tag = name.substr(begin + 1, end - begin - 1);
  return parse_manifest_name(name.substr(0, begin) + name.substr(end), step);
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  if (error == std::errc::no_such_file_or_directory) return paths;
  for (; !error && it != fs::directory_iterator(); it.increment(error)) paths.push_back(it->path());
  if (error) fail_errno(folder.string(), error.value());
  return paths;
}

}  // namespace

void check_tag(std::string_view tag) {
  const bool good =
      !tag.empty() && tag.size() <= 64 && std::all_of(tag.begin(), tag.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '-' || c == '_';
      });
  if (!good) {
    fail(ErrorCode::invalid_argument,
         "a writer's tag is 1 to 64 letters, digits, '-' or '_', not \"{}\"", tag);
  }
}

fs::path pending_path(const fs::path& folder, int64_t step, std::string_view tag) {
  return folder / "pending" / tagged(manifest_name(step), tag);
}

fs::path intent_path(const fs::path& folder, int64_t step, std::string_view tag) {
  return folder / "tmp" / tagged(manifest_name(step), tag);
}

fs::path tagged_chunk_path(const fs::path& folder, const ChunkId& id, std::string_view tag) {
  return folder / "tmp" / (id.hex() + "." + std::string(tag));
}

PendingFiles find_pending(const fs::path& folder, int64_t step) {
  PendingFiles found;
  std::set<std::string> writing;  // tags of saves under way
  std::vector<fs::path> others;
  for (const char* place : {"pending", "tmp"}) {
    for (const fs::path& path : entries(folder / place)) {
      ManifestFile file{0, path};
      std::string tag;
      if (!parse_tagged(path.filename().string(), file.step, tag)) {
        others.push_back(path);
        continue;
      }
      if (file.step <= step) {
        found.stale.push_back(path);
        continue;
      }
      if (std::string_view(place) == "tmp") writing.insert(tag);
      try {
        for (const ChunkRef& chunk : load_manifest(file).chunks) found.needed.insert(chunk.id);
      } catch (const Error& e) {
        // In tmp/ it may be half written, its chunks not begun; anywhere it may be gone by now.
        if (e.code() != ErrorCode::data_loss && e.code() != ErrorCode::not_found) throw;
        if (e.code() == ErrorCode::data_loss && std::string_view(place) == "pending")
          found.stale.push_back(path);
      }
    }
  }
  for (const fs::path& path : others) {
    const std::string name = path.filename().string();
    const size_t dot = name.find('.');
    if (dot == std::string::npos || !writing.contains(name.substr(dot + 1)))
      found.stale.push_back(path);
  }
  return found;
}

}  // namespace ductile::ckpt
