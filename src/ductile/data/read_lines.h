#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ductile::data {

// The lines of a text file that are not empty, without line ends (LF or CR LF).
std::vector<std::string> read_lines(const std::filesystem::path& file);

}  // namespace ductile::data
