#include "ductile/data/read_lines.h"

#include <algorithm>

#include "ductile/base/files.h"

namespace ductile::data {

std::vector<std::string> read_lines(const std::filesystem::path& file) {
  std::vector<std::string> lines;
  const std::string text = read_file(file);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    at = end + 1;
  }
  return lines;
}

}  // namespace ductile::data
