#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <system_error>

namespace ductile::server::testing {

// The names of what processes share by memory and did not remove. Tests beside this one have
// folders of their own there.
inline std::set<std::string> shared_files() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error))
    if (!entry.is_directory(error)) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace ductile::server::testing
