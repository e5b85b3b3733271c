#pragma once

#include <optional>
#include <string_view>

// The page of a service: a small program of plain scripts that a browser runs. It holds no data of
// its own; it asks the service's interface for them.
namespace ductile::dashboard {

struct File {
  std::string_view type, text;
};

// What stands behind a path ("/", "/assets/main.js"); nothing for other paths.
std::optional<File> file(std::string_view path);

}  // namespace ductile::dashboard
