#include "ductile/process/find_program.h"

#include <cstdlib>

#include <unistd.h>

namespace ductile::process {

std::optional<fs::path> find_program(std::string_view name) {
  const char* variable = std::getenv("PATH");
  std::string_view path = variable == nullptr ? "" : variable;
  while (!path.empty()) {
    const size_t colon = path.find(':');
    const fs::path place = fs::path(path.substr(0, colon)) / name;
    if (colon != 0 && ::access(place.c_str(), X_OK) == 0) return place;
    path = colon == std::string_view::npos ? "" : path.substr(colon + 1);
  }
  return std::nullopt;
}

}  // namespace ductile::process
